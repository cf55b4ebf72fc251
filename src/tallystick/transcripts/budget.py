"""A budget: limits on the accumulated errors of a whole opening of one graph, as measured on honest stacks.

It comes from the verifier, never from a prover. `judging.budget` defines the statistics and compares with these limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest
from tallystick.documents.document import DigestText, Document, Positive
from tallystick.transcripts.profile import Name, Size

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
