"""Example calls of the operators that count groups and multiply each by a matrix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.programs.operators.examples import Bf16, Call, call
from tests.programs.operators.examples_moves import by_operator, floats

GROUPED = "aten._grouped_mm.default"
EXPERTS = np.array([0, 0, 1, 2, 2, 2, 3, 3], np.float32)


def ends(*places: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(places, np.int32)


def histograms() -> Iterator[Call]:
    for bins in (1, 4, 7):
        yield call("aten.histc.default", self=EXPERTS, bins=bins, min=0, max=3)
    yield call("aten.histc.default", self=floats(5, 6), bins=10, min=-1, max=1.5)
    yield call("aten.histc.default", self=floats(9).astype(np.float64), bins=3, min=-0.1, max=0.3)
    yield call("aten.histc.default", self=np.array([0.5, np.nan, np.inf, -np.inf, -0.0], np.float32), bins=2, max=1)
    yield call("aten.histc.default", self=np.zeros((0, 3), np.float32), bins=3, min=-1, max=1)
    yield call("aten.histc.default", self=np.array(1.0, np.float32), bins=3, min=-1, max=1)


def products() -> Iterator[Call]:
    x, matrices = floats(6, 8), floats(3, 8, 4, seed=1)
    for places in (ends(2, 3, 6), ends(0, 6, 6), ends(6, 6, 6)):
        yield call(GROUPED, self=x, mat2=matrices, offs=places)
    yield call(GROUPED, self=x, mat2=matrices, offs=ends(2, 3, 6), out_dtype="F32")
    yield call(GROUPED, self=Bf16(x), mat2=Bf16(floats(3, 8, 8)), offs=ends(1, 5, 6))
    for places in (ends(2, 3, 8), ends(0, 8), ends(8)):
        yield call(GROUPED, self=floats(4, 8), mat2=floats(8, 4, seed=1), offs=places)
    yield call(GROUPED, self=Bf16(floats(8, 8)), mat2=Bf16(floats(8, 16)), offs=ends(3, 8))


def malformed() -> Iterator[Call]:
    yield call("aten.histc.default", self=EXPERTS, bins=0, min=0, max=3)
    yield call("aten.histc.default", self=EXPERTS, bins=4)
    yield call("aten.histc.default", self=EXPERTS > 1, bins=4, min=0, max=3)
    yield call("aten.histc.default", self=EXPERTS.astype(np.int64), bins=4, min=0.5, max=3)
    x, matrices = floats(6, 8), floats(3, 8, 4)
    yield call(GROUPED, self=x, mat2=matrices)
    yield call(GROUPED, self=x, mat2=matrices, offs=np.array([2, 3, 6]))
    yield call(GROUPED, self=x, mat2=matrices, offs=ends(2, 6))
    yield call(GROUPED, self=x, mat2=matrices, offs=ends(2, 3, 6), bias=floats(3, 4))
    yield call(GROUPED, self=x, mat2=matrices, offs=ends(2, 3, 6), out_dtype="F16")
    yield call(GROUPED, self=x, mat2=floats(3, 4, 4), offs=ends(2, 3, 6))
    yield call(GROUPED, self=x, mat2=floats(6, 4), offs=ends(8))
    yield call(GROUPED, self=floats(2, 6, 8), mat2=floats(8, 4), offs=ends(2, 4))


EXAMPLES = by_operator(histograms(), products())
MALFORMED = by_operator(malformed())
