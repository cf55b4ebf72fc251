"""The ladder of checks on a receipt: tokens, fingerprints, one layer, exact replay; up to a rung, or while in doubt."""

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
"""The highest rung that needs only the one pass over prompt and answer."""


@dataclass(frozen=True)
class Tools:
    """What the upper rungs need in addition to the model: layers as graphs, and a generator on this stack.

    `environment` is the provider's. `layer` is the layer to judge, if the verifier chooses it.
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
    """Judge a receipt up to `rung`; without `rung`, climb while there is doubt and `tools` has what the rung needs.

    Raises `UsageError` for a rung that does not exist, and what `verify_receipt` raises.
    """
    check_rung(rung)
    found = begin_verification(context, model, policy or ReceiptPolicy())
    check_statements(found)
    return climb_from(found, rung, tools)


def climb_from(found: Verification, rung: int | None = None, tools: Tools | None = None) -> ReceiptReport:
    """As `climb`, for a receipt whose statements were checked already."""
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
