"""How long claims have to be open to contests: a window that follows from an audit as it was timed on a machine.

The window is part of the rules, which are the same for everybody and never change. So a prover cannot shorten it, and a
challenger cannot hold a bond by asking for more time.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final

from tallystick.disputes.evidence.claim_statement import Recomputation
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.errors import ProofError, UsageError

AUDITS: Final = 40
"""So many audits, one after the other, fit into a window: other claims come first, and machines become busy."""


def window_for(run: Path) -> int:
    """Seconds in which a claim like `run` can be contested: `AUDITS` times what auditing it takes here and now.

    Raises `UsageError` for a run that is not right, and what an audit raises.
    """
    statement, started = statement_at(run), time.perf_counter()
    own = Recomputation(torch_engine())
    try:
        doubt = statement.doubt(own)
    except ProofError as error:
        raise UsageError(f"{run}: no claim to time an audit with: {error}") from None
    if doubt is not None:
        raise UsageError(f"{run}: no claim to time an audit with: {doubt.reason}")
    statement.unseen(own)
    return math.ceil(AUDITS * (time.perf_counter() - started))
