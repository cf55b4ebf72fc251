"""Calibration profiles: thresholds of operators with their stacks and sample, and budgets of whole openings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Literal, Self

from pydantic import Field

from tallystick.core.digests import Digest
from tallystick.core.documents import Count, DigestText, Document, Positive
from tallystick.verdicts.bounds import Errors, Threshold, join as join_errors

# A calibration profile: the thresholds of operators, with the stacks and the sample they were measured on.
#
# It comes from the verifier, never from a prover. A calibrated graph has an entry for each node; other graphs use the
# entries by operator.

Size = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Percentiles = tuple[Size, Size, Size, Size]
NodeName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})(\.[1-9][0-9]{0,3})?$")]
OperatorName = Annotated[str, Field(pattern=r"^[a-z]+(\.\w+)+ (F16|BF16|F32|F64)$", max_length=128)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class Calibrated(Document):
    """The largest errors measured, at the percentiles of `verdicts.bounds.QUANTILES`."""

    share: Percentiles
    absolute: Percentiles
    relative: Percentiles
    ulp: Percentiles
    bias: Size
    elements: Count

    @classmethod
    def of(cls, errors: Errors) -> Self:
        """The errors as a document; raises `ValueError` if one is infinite."""
        stated = asdict(errors)
        del stated["undetermined"]
        return cls(**stated)

    def errors(self) -> Errors:
        """The errors of the document, as `Errors`."""
        return Errors(self.share, self.absolute, self.relative, self.ulp, self.bias, self.elements)


class Profile(Document):
    """Thresholds of operators, measured on `stacks` over `inputs` sets of inputs."""

    profile: Literal["operators"] = "operators"
    version: Literal[1] = 1
    graphs: tuple[DigestText, ...] = ()
    stacks: tuple[Name, ...]
    machines: tuple[Name, ...]
    inputs: Positive
    safety: Annotated[float, Field(ge=1.0, le=100.0)]
    nodes: dict[DigestText, dict[NodeName, Calibrated]] = {}
    operators: dict[OperatorName, Calibrated]

    def threshold(self, graph: Digest, result: str, operator: str, dtype: str) -> Threshold | None:
        """The threshold of one result, such as `12` or `12.1`: its own, else its operator's, else None."""
        entry = self.nodes.get(graph, {}).get(result) or self.operators.get(f"{operator} {dtype}")
        return None if entry is None else Threshold(entry.errors(), self.safety)

    def merged(self, other: Profile) -> Profile:
        """A profile for the stacks of both: the larger error of each entry, and the larger safety factor."""
        return Profile(
            graphs=tuple(sorted({*self.graphs, *other.graphs})),
            stacks=tuple(sorted({*self.stacks, *other.stacks})),
            machines=tuple(sorted({*self.machines, *other.machines})),
            inputs=self.inputs + other.inputs,
            safety=max(self.safety, other.safety),
            nodes={
                graph: _joined(self.nodes.get(graph, {}), other.nodes.get(graph, {}))
                for graph in sorted({*self.nodes, *other.nodes})
            },
            operators=_joined(self.operators, other.operators),
        )


def _joined(one: dict[str, Calibrated], other: dict[str, Calibrated]) -> dict[str, Calibrated]:
    def join(name: str) -> Calibrated:
        if name not in one or name not in other:
            return one[name] if name in one else other[name]
        return Calibrated.of(join_errors((one[name].errors(), other[name].errors())))

    return {name: join(name) for name in sorted({*one, *other})}


# A budget: limits on the accumulated errors of a whole opening of one graph, as measured on honest stacks.
#
# It comes from the verifier, never from a prover. `verdicts.opening.budget` defines the statistics and compares with
# these limits.

OutputName = Annotated[str, Field(min_length=1, max_length=256)]


class Budget(Document):
    """The limits for openings of `graph`; `path` applies to results that `paths` does not name.

    They are `safety` times the largest values in `runs` honest runs, on `stacks` of `machines`.
    """

    budget: Literal["opening"] = "opening"
    version: Literal[1] = 1
    graph: DigestText
    stacks: tuple[Name, ...] = ()
    machines: tuple[Name, ...] = ()
    runs: Positive
    safety: Annotated[float, Field(ge=1.0, le=100.0)]
    one_direction: Size
    any_direction: Size
    path: Size
    paths: dict[OutputName, Size] = {}


def budget_for(budgets: Iterable[Budget], graph: Digest) -> Budget | None:
    """The first budget that was measured on `graph`, or None; limits of one graph do not apply to another."""
    return next((budget for budget in budgets if budget.graph == graph), None)
