"""The ladder of checks on a receipt: tokens, fingerprints, one layer, exact replay, as far as asked or needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import RUNGS, ReceiptReport
from tallystick.answers.verify import ReceiptContext, Verification, begin_verification, check_statements, compute
from tallystick.errors import UsageError
from tallystick.workloads.language_model import LanguageModel

if TYPE_CHECKING:
    from tallystick.answers.exact import ExactReplayer
    from tallystick.answers.layer import LayerSource
    from tallystick.transcripts.environment import Environment

FREE: Final = 2
"""The highest rung that needs no more than the one pass over prompt and answer."""


@dataclass(frozen=True)
class Tools:
    """What the upper rungs need besides the model: layers as graphs, and a generator on this stack.

    `environment` is the provider's, `layer` the layer to judge where the verifier wants a certain one.
    """

    layers: LayerSource | None = None
    replayer: ExactReplayer | None = None
    environment: Environment | None = None
    layer: int | None = None


def climb(
    context: ReceiptContext,
    model: LanguageModel,
    policy: ReceiptPolicy | None = None,
    rung: int | None = None,
    tools: Tools | None = None,
) -> ReceiptReport:
    """Judge a receipt up to `rung`; without it, go on as long as there is doubt and the material is there.

    Raises `UsageError` for a rung that the ladder does not have, and otherwise what `verify_receipt` raises.
    """
    check_rung(rung)
    found = begin_verification(context, model, policy or ReceiptPolicy())
    check_statements(found)
    return climb_from(found, rung, tools)


def climb_from(found: Verification, rung: int | None = None, tools: Tools | None = None) -> ReceiptReport:
    """As `climb`, where the statements of the receipt are checked already."""
    check_rung(rung)
    reached = 1 if rung == 1 else FREE
    compute(found, 1 if rung == 1 else FREE)
    if not (found.is_doubtful if rung is None else found.can_compute and rung > FREE):
        return found.report(reached)
    from tallystick.answers.upper_rungs import climb_on  # loads graphs and operators, which few receipts need

    return climb_on(found, rung, tools or Tools())


def check_rung(rung: int | None) -> None:
    """Raise `UsageError` for a rung that the ladder does not have."""
    if rung is not None and rung not in RUNGS:
        raise UsageError(f"rung {rung}: the ladder has {RUNGS[0]} to {RUNGS[-1]}")
