"""Compares the first anchor with the state that the recipe's seed gives; that takes no training.

Generators give the same words on every machine, and the normal numbers made of them differ by the rounding of a
logarithm and a cosine; nothing else may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.replay import judge_whole_state
from tallystick.judging.findings import DIFFERS, Findings
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.streams import side_by_side
from tallystick.tolerances.tolerance import Finding

State = Mapping[str, Tensor]
FLOATS = ("F16", "BF16", "F32", "F64")
CUDA_GENERATORS = "rng.torch_cuda_"
FROM_ELSEWHERE = ("weights.", "buffers.")
INITIAL_ROUNDING = 2.0**-18
"""Of a tensor's largest value: 64 units of float32 roundoff."""


def judge_initial_state(
    notes: Findings, claimed: State, drawn: State, is_exact: bool, elsewhere: Collection[str] = ()
) -> None:
    """Compare the first anchor with the state that the verifier drew from the seed.

    The tensors that come from `elsewhere` are left out.
    """
    claimed, drawn = ({name: each[name] for name in each.keys() - set(elsewhere)} for each in (claimed, drawn))
    if is_exact:
        found = Findings()
        judge_whole_state(found, claimed, drawn, "step 0")
        for finding in found.seen:
            notes.note(finding, "initial state")
        return
    for name in sorted(claimed.keys() | drawn.keys()):
        if not name.startswith(CUDA_GENERATORS):
            notes.note(_judge_tensor(claimed.get(name), drawn.get(name)), "initial state", f"step 0, {name}")


def begun_elsewhere(evidence: CheckedRun, state: State) -> frozenset[str]:
    """The tensors of the first state that the seed does not give, where the recipe begins with weights from elsewhere.

    Where these are known they are compared with them (`audits.first_state`); otherwise any of these may be one.
    """
    recipe = evidence.spec.recipe
    if recipe is None or recipe.model.initial is None:
        return frozenset()
    if evidence.first_weights is not None:
        return frozenset(evidence.first_weights.places)
    return frozenset(name for name in state if name.startswith(FROM_ELSEWHERE))


def _judge_tensor(claimed: Tensor | None, drawn: Tensor | None) -> Finding:
    if claimed is None or drawn is None or (claimed.dtype, claimed.shape) != (drawn.dtype, drawn.shape):
        return DIFFERS
    if drawn.dtype not in FLOATS:
        return Finding(float(bytes(claimed.data) != bytes(drawn.data)), 0.0)
    scale = gap = 0.0
    for ours, theirs in side_by_side(drawn, claimed):
        scale, gap = np.max(np.abs(ours), initial=scale), np.max(np.abs(theirs - ours), initial=gap)
    return Finding(float(gap / scale) if scale else float(gap != 0), INITIAL_ROUNDING)
