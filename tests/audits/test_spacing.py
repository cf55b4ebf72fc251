"""The spacing of float32 widens a limit where an update is tiny, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.audits.tolerant import spacing_shares
from tallystick.core.tensors import Tensor


def moved(by: float, dtype: type = np.float32) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    start = np.full(100, 0.75, dtype)
    return {"weights.a": Tensor.of(start)}, {"weights.a": Tensor.of((start + dtype(by)).astype(dtype))}


@pytest.mark.parametrize(("by", "share"), [(2.0**-10, 2.0**-15), (2.0**-20, 2.0**-5)])
def test_the_share_is_half_a_spacing_over_the_update(by: float, share: float) -> None:
    assert spacing_shares(*moved(by)) == (pytest.approx(share), pytest.approx(share))


def test_a_tensor_that_did_not_move_counts_for_nothing() -> None:
    assert spacing_shares(*moved(0.0)) == (0.0, 0.0)


def test_what_is_not_finite_widens_no_limit() -> None:
    start, end = moved(2.0**-10)
    end["weights.a"] = Tensor.of(np.full(100, np.inf, np.float32))
    assert spacing_shares(start, end) == (0.0, 0.0)


def test_the_worst_tensor_is_the_one_that_moved_least() -> None:
    start, end = moved(2.0**-10)
    other_start, other_end = moved(2.0**-20)
    shares = spacing_shares(
        start | {"weights.b": other_start["weights.a"]}, end | {"weights.b": other_end["weights.a"]}
    )
    assert shares[1] == pytest.approx(2.0**-5)
    assert shares[0] < 2.0**-14
