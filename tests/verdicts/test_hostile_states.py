import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, item_size
from tallystick.verdicts.buckets import Bucket, DualBucket
from tallystick.verdicts.distances import Projection, Residual, ResidualLimits
from tallystick.verdicts.exact import Exact
from tallystick.verdicts.reach import moment_cosine, reach_adamw, reach_sgd, second_moment_floor
from tallystick.verdicts.tolerance import ReplayedState

DTYPES = ["F16", "BF16", "F32", "F64", "I64", "U8", "F8_E4M3"]
TOLERANCES = [
    Exact(),
    Bucket(),
    Bucket("grid"),
    Bucket(hint_margin=0.25),
    Bucket("grid", hint_margin=0.25),
    DualBucket(),
    Projection(bytes(32)),
]
RESIDUAL = Residual(ResidualLimits(1.0, 1.0, 1.0, 1.0))


@st.composite
def any_tensor(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0,), (1,), (5,), (2, 3)]))
    size = item_size(dtype) * int(np.prod(shape))
    return Tensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def three_alike(draw):
    first = draw(any_tensor())
    bits = st.binary(min_size=first.nbytes, max_size=first.nbytes)
    return first, *(Tensor(first.dtype, first.shape, draw(bits)) for _ in range(2))


@settings(max_examples=150, deadline=None)
@given(three_alike())
def test_any_bits_have_a_summary_that_agrees_with_themselves_if_they_are_finite(tensors):
    start, end, _ = tensors
    sane = end.dtype not in DTYPES[:4] or all(is_moderate(tensor) for tensor in (start, end))
    for tolerance in TOLERANCES:
        claimed = tolerance.summarize({"w": end})
        agrees = tolerance.compare(claimed, ReplayedState({"w": start}, {"w": end})).agrees
        assert agrees or (isinstance(tolerance, Projection) and not sane)


def is_moderate(tensor):
    with np.errstate(invalid="ignore"):
        return bool((np.abs(tensor.values()) < 1e30).all())


@settings(max_examples=150, deadline=None)
@given(three_alike())
def test_any_bits_are_measured_without_a_warning(tensors):
    claimed, start, end = tensors
    replayed = ReplayedState({"w": start}, {"w": end})
    RESIDUAL.compare({"w": claimed}, replayed, 1e-3)
    RESIDUAL.advise({"w": claimed}, replayed)
    second_moment_floor(start, end, 0.999, 10)
    moment_cosine(start, end, claimed)
    reach_adamw(start, end, [1e-3], (0.9, 0.999), 0.1)
    reach_sgd(start, end, [1e-3], [1.0])


@settings(max_examples=100, deadline=None)
@given(any_tensor(), any_tensor())
def test_unlike_shapes_are_findings_or_malformed(left, right):
    if left.shape == right.shape:
        return
    findings = RESIDUAL.compare({"w": left}, ReplayedState({"w": right}, {"w": right}), 1e-3)
    assert [finding.name for finding in findings] == ["tensors"]
    assert RESIDUAL.advise({"w": left}, ReplayedState({"w": right}, {"w": right})).advisory
    for screen in (
        lambda: second_moment_floor(left, right, 0.999, 10),
        lambda: moment_cosine(left, right, right),
        lambda: reach_adamw(left, right, [1e-3], (0.9, 0.999), 0.1),
    ):
        with pytest.raises(MalformedError, match="unlike shapes"):
            screen()


def test_states_of_other_names_are_malformed():
    with pytest.raises(MalformedError, match="beside"):
        reach_sgd({"a": np.ones(1)}, {}, [1.0], [1.0])
