"""A budget: what the errors of a whole opening of one graph may add up to, as measured on honest stacks.

A verifier brings it; a prover never can. `judging.budget` defines the statistics and compares with these limits.
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
    """The limits for openings of `graph`; `path` holds for results that `paths` does not name.

    They are `safety` times the largest that `runs` honest runs showed, on `stacks` of `machines`.
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
    """The first budget that was measured on `graph`; limits of one graph say nothing about another."""
    return next((budget for budget in budgets if budget.graph == graph), None)
