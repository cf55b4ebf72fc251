"""The spec: everything that is fixed before a run; the order of its records, and the environment it is computed in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.documents import Count, DigestText, Document, Positive
from tallystick.core.errors import ProofError
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.optimizers import StatedRules
from tallystick.formats.recipe import Recipe, RecordRecipe
from tallystick.formats.records import AnchorRecord, FailedRecord, HeaderRecord, Knobs, Record, StateSummary

# How a training averages its weights beside the steps: what a spec states as `average` (`spec/average.md`).

Form = Literal["lerp", "sum", "difference"]


class AverageRule(Document):
    """An exponential moving average a of the weights w after each step, with `decay` d.

    `form` is the order of its arithmetic: "lerp" is `lerp(a, w, 1 − d)`, "sum" is `a · d + (1 − d) · w`, "difference"
    is `a − (1 − d) · (a − w)`. With `counts` the first average is w itself, and `position.averaged` counts them.
    """

    average: Literal["exponential"] = "exponential"
    decay: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    form: Form = "lerp"
    counts: bool = False


# The weights that a training begins with, where they come from elsewhere.


@dataclass(frozen=True)
class Origin:
    """Weights under the names that their model gives them, and the directory that holds them.

    `rest` is the last state of a run without the weights, under the names of the state; empty for a model directory.
    """

    path: Path
    weights: State
    rest: State = field(default_factory=dict)

    @cached_property
    def digest(self) -> Digest:
        """The state digest of the weights: what `tally import-model` and `tally digest` print and a claim names."""
        return state_digest(self.weights)


# The spec: everything that is fixed before a run. A claim names it by its digest.


Note = Annotated[str, Field(max_length=4096)]


class Spec(Document):
    """A recipe and the roots of its data, or the description of a custom training loop.

    A custom training loop has no recipe from which a verifier could rebuild the run; it has `description` and `record`
    instead. Either kind may name the root of its step graph (`graphs/step.json`), from which a verifier replays. With a
    graph, a custom loop also states the rules of its `optimizer`, one for each parameter group, and the `seed` of its
    random numbers if it draws any. A custom loop without a graph can be checked too, but its verdict says that no step
    was replayed. `initial` is the state digest of the weights with which a custom loop began, and `rows` the digest of
    the rows recipe whose rows its batches are. `average` is how the step graph averages the weights, if it does.
    """

    digest_noun: ClassVar[str] = "spec"

    spec: Literal["training"] = "training"
    version: Literal[1] = 1
    recipe: Recipe | None = None
    description: dict[Annotated[str, Field(max_length=64)], Note] | None = None
    record: RecordRecipe | None = None
    data: DatasetCommitment | None = None
    graph: DigestText | None = None
    optimizer: StatedRules | None = None
    initial: DigestText | None = None
    rows: DigestText | None = None
    seed: Count | None = None
    average: AverageRule | None = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        by_recipe = (self.recipe is not None, self.data is not None)
        by_description = (self.description is not None, self.record is not None)
        is_recipe_run = all(by_recipe) and not any(by_description)
        is_custom_loop = all(by_description) and not any(by_recipe)
        if not (is_recipe_run or is_custom_loop):
            raise ValueError("either recipe and data, or description and record")
        if (self.optimizer is not None) != (self.graph is not None and self.recipe is None):
            raise ValueError("optimizer belongs to the step graph of a custom training loop, and to nothing else")
        if self.initial is not None and self.recipe is not None:
            raise ValueError("initial belongs to a custom training loop; a recipe states it as model.initial")
        if self.rows is not None and self.recipe is not None:
            raise ValueError("rows belong to a custom training loop; a recipe states its data")
        if self.seed is not None and self.optimizer is None:
            raise ValueError("seed belongs to the step graph of a custom training loop; a recipe has its own")
        if self.average is not None and self.optimizer is None:
            raise ValueError("average belongs to the step graph of a custom training loop, and to nothing else")
        return self

    @classmethod
    def of(cls, recipe: Recipe, data: DatasetCommitment, graph: Digest | None = None) -> Spec:
        """The spec of a run that a verifier can rebuild, and the root of its step graph if there is one."""
        return cls(recipe=recipe, data=data, graph=graph)

    @property
    def first_weights(self) -> Digest | None:
        """The state digest of the weights that the run is said to begin with, if it states any."""
        return self.initial if self.recipe is None else self.recipe.model.initial

    @property
    def data_root(self) -> Digest | None:
        """The root of the data; `None` for a custom training loop."""
        return None if self.data is None else self.data.root

    @property
    def recorded(self) -> RecordRecipe:
        """The settings of the recording, from the recipe or from `record`."""
        settings = self.recipe.record if self.recipe is not None else self.record
        assert settings is not None  # checked by _is_of_one_kind
        return settings


# The settings of a process that choose among kernels of the installed libraries, and so decide the last bits.

CAPABILITY: Final = "ATEN_CPU_CAPABILITY"
SWITCHES: Final = (CAPABILITY, "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE")
"""Environment variables that a run may state and that only choose among kernels of the installed libraries."""
VALUE: Final = re.compile(r"[A-Za-z0-9_,]{0,32}", re.ASCII)
"""What such a variable may be set to on the word of a prover."""
THREADS: Final = "OMP_NUM_THREADS"
THREADS_MAX: Final = 256


# The stack on which a run was computed, with everything that can change the last bits of a result.
#
# A value that could not be determined is the string "unknown". An empty list or table means: known to be empty.

Unknown = Literal["unknown"]


class Environment(Document):
    """The software and hardware of a run. No field names a person, a host or a path."""

    version: Literal[1] = 1
    python: str
    system: str
    machine: str
    cpu: str
    capability: str
    torch: str
    threads: Positive
    device: Literal["cpu", "cuda"]
    cuda: str
    cudnn: str
    gpus: tuple[str, ...] | Unknown
    math_libraries: tuple[str, ...] | Unknown
    variables: dict[str, str]
    packages: dict[str, str] | Unknown

    def stack(self) -> dict[str, str]:
        """The fields that decide the bits of a result: compute libraries, processor, threads and switches."""
        fields = {
            name: str(getattr(self, name))
            for name in ("machine", "cpu", "capability", "torch", "threads", "device", "cuda", "cudnn")
        }
        fields["gpus"] = _listed(self.gpus) if self.device == "cuda" else ""
        fields["math libraries"] = _listed(self.math_libraries)
        fields["transformers"] = self.package("transformers")
        return fields | {name: value for name, value in self.variables.items() if value}

    @property
    def stack_digest(self) -> Digest:
        """The digest of the stack alone: packages that compute nothing have no part in it."""
        return digest("environment", encode({"stack": dict(self.stack())}))

    def is_named_by(self, named: str) -> bool:
        """Whether a receipt names this environment: by its stack, or as older receipts do by the whole document."""
        return named in (self.stack_digest, self.digest_as("environment"))

    def package(self, name: str) -> str:
        """The version of an installed package, or "unknown"."""
        return self.packages.get(name, "unknown") if isinstance(self.packages, dict) else "unknown"

    def differing(self, other: Environment) -> dict[str, tuple[str, str]]:
        """Every entry of the two stacks that differs or is unknown, by its name: ours and theirs."""
        ours, theirs = self.stack(), other.stack()
        pairs = {
            name: (ours.get(name, "not set"), theirs.get(name, "not set"))
            for name in sorted(ours.keys() | theirs.keys())
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] or "unknown" in pair}

    def differences(self, other: Environment) -> tuple[str, ...]:
        """Every entry of the two stacks that differs or is unknown, as `name: ours / theirs`."""
        return tuple(f"{name}: {ours} / {theirs}" for name, (ours, theirs) in self.differing(other).items())


def _listed(names: tuple[str, ...] | Unknown) -> str:
    return names if isinstance(names, str) else ", ".join(names)


# The order of a transcript: which record may follow which. A verifier applies these rules to every record of a run.


@dataclass(frozen=True)
class Chain:
    """The state of a transcript after the records read so far.

    `state` is the last step, `anchored` the step of the last anchor; both are -1 before the first.
    """

    spec: Spec
    opened: bool = False
    state: int = -1
    anchored: int = -1
    awaits_anchor: bool = False
    summary: StateSummary | None = None

    def follow(self, record: Record) -> Chain:
        """The chain after one more record; raises `ProofError` naming the step that does not fit."""
        if isinstance(record, HeaderRecord):
            return self._begin(record)
        if not self.opened:
            raise ProofError(f"the transcript starts with a {record.kind} record instead of its header")
        if isinstance(record, AnchorRecord):
            if record.index != self.state:
                raise ProofError(f"anchor {record.index} stands after step {self.state}")
            may_end_here = self.spec.recipe is None and self.anchored < self.state  # a custom loop may end at any step
            if not (self.awaits_anchor or may_end_here):
                raise ProofError(f"anchor {record.index} is not one the spec asks for")
            summary = record.summary if self.summary is None else self.summary
            return replace(self, anchored=self.state, awaits_anchor=False, summary=summary)
        self._check_is_next(record.index)
        if isinstance(record, FailedRecord):
            return self
        if record.data != self.spec.data_root:
            raise ProofError(f"step {record.index} names another data root than the spec")
        if record.pre != self.summary:
            raise ProofError(f"step {record.index} does not start from the state in which step {self.state} ended")
        anchored = record.index % self.spec.recorded.anchor_stride == 0 or record.index == self._last()
        return replace(self, state=record.index, summary=record.post, awaits_anchor=anchored)

    def finish(self) -> None:
        """Raise `ProofError` unless the transcript may end here."""
        last = self._last()
        if self.state < 0 or self.awaits_anchor or (last is None and self.anchored != self.state):
            raise ProofError("the transcript ends without the anchor of its last state")
        if last is not None and self.state != last:
            raise ProofError(f"the transcript ends at step {self.state} of {last}")

    def _begin(self, record: HeaderRecord) -> Chain:
        if self.opened:
            raise ProofError("a second header stands in the middle of the transcript")
        if record.spec != self.spec.identity:
            raise ProofError("the header names another spec than spec.json")
        if record.data != self.spec.data_root:
            raise ProofError("the header names another data root than the spec")
        for name in Knobs.model_fields:
            if getattr(record.knobs, name) != getattr(self.spec.recorded, name):
                raise ProofError(f"the header's {name} is not the spec's")
        return replace(self, opened=True, awaits_anchor=True, state=0)

    def _check_is_next(self, index: int) -> None:
        if self.awaits_anchor:
            raise ProofError(f"the anchor of step {self.state} is missing")
        if index != self.state + 1:
            raise ProofError(f"step {index} stands after step {self.state}")
        last = self._last()
        if last is not None and index > last:
            raise ProofError(f"step {index} stands behind the last step of the spec")

    def _last(self) -> int | None:
        return None if self.spec.recipe is None else self.spec.recipe.training.steps
