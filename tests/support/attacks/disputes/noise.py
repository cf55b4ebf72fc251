"""Honest kernels of another machine, in one process: sums in another order, and functions of another library.

Results of operators that accumulate or call a library are moved well inside their bound; whatever is rounded once is
left as every machine gives it. No attack: what an honest prover must never lose its bond for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.tensors import from_tensor, to_tensor
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Node
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import FORMATS
from tests.support.attacks.disputes.engines import Change, ChangingEngine
from tests.support.attacks.disputes.values import bound_of

NOISY: Final = frozenset({Exactness.ACCUMULATES, Exactness.LIBRARY})
ROUNDINGS, SHARE = 4.0, 0.2
"""By how many roundings an element is moved at most, and by what share of its bound."""


def other_kernels(seed: int) -> ChangingEngine:
    """PyTorch with other last bits, the same for the same seed."""
    generator = np.random.default_rng(seed)

    def change(node: Node, arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(results) != 1 or results[0] is None or not results[0].is_floating_point():
            return results
        try:
            found = bound_of(node, arguments)
        except (MalformedError, UnavailableError):
            return results
        most = np.where(np.isfinite(found.radius), SHARE * found.radius, 0.0)
        size = np.minimum(ROUNDINGS * FORMATS[to_tensor(results[0]).dtype].unit * np.abs(found.value), most)
        noise = from_tensor(Tensor.of(np.asarray(size * generator.uniform(-1, 1, size.shape))))
        return ((results[0].double() + noise.reshape(results[0].shape)).to(results[0].dtype),)

    def change_of(node: Node) -> Change | None:
        return change if operator(node.operator).exactness in NOISY else None

    return ChangingEngine(change_of)
