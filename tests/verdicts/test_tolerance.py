import doctest
import importlib
import math

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.verdicts.buckets import Bucket, DualBucket
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import Exact
from tallystick.verdicts.tolerance import Finding, Replayed, ReplayedState, Tolerance, as_state

SEED = bytes(range(32))
WEIGHTS = np.linspace(-1, 1, 100, dtype=np.float32)
EVERYWHERE = [Exact(), Bucket(), Bucket("grid"), Bucket(hint_margin=0.1), DualBucket(), Projection(SEED)]


def test_a_distance_up_to_the_allowed_one_agrees():
    assert Finding(1.0, 1.0).agrees
    assert not Finding(1.0000001, 1.0).agrees


@pytest.mark.parametrize("pair", [(math.nan, 1.0), (0.0, math.nan), (math.nan, math.inf)])
def test_nan_never_agrees(pair):
    assert not Finding(*pair).agrees


@pytest.mark.parametrize("tolerance", EVERYWHERE, ids=lambda each: type(each).__name__)
def test_every_tolerance_serves_a_tensor(tolerance):
    claimed = tolerance.summarize(WEIGHTS)
    assert tolerance.compare(claimed, Replayed((np.zeros_like(WEIGHTS),), WEIGHTS.copy())).agrees
    assert not tolerance.compare(claimed, Replayed((np.zeros_like(WEIGHTS),), WEIGHTS * 1.5)).agrees


@pytest.mark.parametrize("tolerance", EVERYWHERE, ids=lambda each: type(each).__name__)
def test_every_tolerance_serves_a_state_in_any_order(tolerance: Tolerance):
    start = {"a": np.zeros(100, np.float32), "b": np.zeros(100, np.float32)}
    claimed = tolerance.summarize({"a": WEIGHTS, "b": -WEIGHTS})
    assert tolerance.compare(claimed, ReplayedState(start, {"b": -WEIGHTS, "a": WEIGHTS})).agrees
    assert not tolerance.compare(claimed, ReplayedState(start, {"a": -WEIGHTS, "b": WEIGHTS})).agrees


def test_arrays_and_tensors_are_the_same_state():
    tensors = {"w": Tensor.of(WEIGHTS)}
    for tolerance in EVERYWHERE:
        assert tolerance.summarize(tensors) == tolerance.summarize({"w": WEIGHTS})


def test_a_lone_tensor_is_the_state_without_a_name():
    assert list(as_state(WEIGHTS)) == [""]


@pytest.mark.parametrize("module", ["buckets", "exact"])
def test_the_examples_in_the_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"tallystick.verdicts.{module}"))
    assert found.attempted
    assert not found.failed
