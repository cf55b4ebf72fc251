"""Sums of products in one thread: as exact as BLAS, for every size and for numbers that are not finite."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tallystick.verdicts.tolerance import BLOCK, euclidean, inner, row_sum, square_sum

SOURCE = Path(__file__).parents[2] / "src" / "tallystick"
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17]


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_those_of_numpy(size: int) -> None:
    a, b = np.random.default_rng(size).standard_normal((2, size))
    assert inner(a, b) == pytest.approx(math.fsum(a * b), rel=1e-12, abs=1e-12)
    assert square_sum(a) == pytest.approx(math.fsum(a * a), rel=1e-14)
    assert euclidean(a.reshape(1, -1)) == pytest.approx(float(np.linalg.norm(a)), rel=1e-14)


@pytest.mark.parametrize("width", [1, 3, 16, 4096])
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 700])
def test_rows_are_summed_as_by_a_product(rows: int, width: int) -> None:
    generator = np.random.default_rng(rows)
    factors, values = generator.choice([-1.0, 1.0], rows), generator.standard_normal((rows, width))
    assert row_sum(factors, values) == pytest.approx(factors @ values, rel=1e-12, abs=1e-11)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_never_hidden(value: float) -> None:
    for place in (0, BLOCK + 3):
        values = np.ones(BLOCK + 5)
        values[place] = value
        assert not math.isfinite(square_sum(values))
        assert not math.isfinite(inner(values, np.ones(BLOCK + 5)))
        assert not np.isfinite(row_sum(np.ones(BLOCK + 5), values[:, None])).any()


def test_checks_share_no_small_product_among_threads() -> None:
    """`np.dot` of 10,001 numbers, and what uses it, wakes the threads of BLAS."""
    shared = re.compile(r"np\.(dot|vdot|inner)\(|np\.linalg\.norm\((?!.*axis=)")
    files = [path for folder in ("verdicts", "audits", "disputes/evidence") for path in (SOURCE / folder).rglob("*.py")]
    assert len(files) > 80
    assert [path.name for path in files if shared.search(path.read_text())] == ["tolerance.py"]
    assert BLOCK <= 9216  # from there on, OpenBLAS shares a product of a matrix and a vector
