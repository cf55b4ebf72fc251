import numpy as np
import pytest

from tallystick.core.digests import digest_bytes
from tallystick.core.errors import MalformedError
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.verdicts.exact import Exact, describe_difference
from tallystick.verdicts.tolerance import Replayed, ReplayedState

STATE = {"a": np.arange(5, dtype=np.float32), "b": np.ones((2, 2), np.float32), "rng": np.zeros(8, np.uint8)}


def test_the_summary_of_a_tensor_is_its_digest():
    tensor = Tensor.of(STATE["a"])
    assert Exact().summarize(tensor) == digest_bytes(tensor_digest(tensor))


def test_the_summary_of_a_state_is_its_digest():
    assert Exact().digest(STATE) == state_digest({name: Tensor.of(array) for name, array in STATE.items()})


def test_a_replay_with_equal_bytes_agrees():
    claimed = Exact().summarize(STATE)
    assert Exact().compare(claimed, ReplayedState(STATE, {k: v.copy() for k, v in STATE.items()})).agrees


def test_one_flipped_bit_is_a_distance_of_one():
    values = STATE["a"].copy()
    claimed = Exact().summarize(values)
    values.view(np.uint32)[3] ^= 1
    assert Exact().compare(claimed, Replayed((), values)).distance == 1.0


def test_a_negative_zero_is_other_bytes():
    claimed = Exact().summarize(np.zeros(1, np.float32))
    assert not Exact().compare(claimed, Replayed((), -np.zeros(1, np.float32))).agrees


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_summary_of_another_length_is_malformed(size):
    with pytest.raises(MalformedError, match="exact summary"):
        Exact().compare(bytes(size), ReplayedState(STATE, STATE))


def described(claimed, replayed, dtype=None):
    return describe_difference(Tensor.of(np.asarray(claimed), dtype), Tensor.of(np.asarray(replayed), dtype))


def test_numbers_that_differ_are_counted_and_measured():
    ours = np.zeros(96, np.float32)
    theirs = ours.copy()
    theirs[[3, 50]] = 0.5, -0.25
    assert described(theirs, ours) == "2 of 96 elements differ, by at most 0.5"


def test_zeros_of_unlike_sign_and_payloads_are_said_to_differ_in_their_bits():
    ours, theirs = np.zeros(96, np.float32), np.zeros(96, np.float32)
    theirs[:3] = -0.0
    theirs[3:5].view(np.uint32)[:] = 0x7FC00001
    ours[3:5] = np.nan
    alone = "in their bits alone: the sign of a zero, or the payload of a NaN"
    assert described(theirs, ours) == f"5 of 96 elements differ {alone}"
    theirs[90] = 1.0
    assert described(theirs, ours) == f"1 of 96 elements differ, by at most 1; 5 more {alone}"


@pytest.mark.parametrize("dtype", ["BF16", "I64", "BOOL"])
def test_every_kind_of_number_is_described(dtype):
    ours = {"BF16": np.zeros(4, np.uint16), "I64": np.zeros(4, np.int64), "BOOL": np.zeros(4, np.bool_)}[dtype]
    theirs = ours.copy()
    theirs[1] = {"BF16": 0x3F80, "I64": 1, "BOOL": True}[dtype]
    assert described(theirs, ours, dtype) == "1 of 4 elements differ, by at most 1"


def test_another_kind_is_named():
    assert described(np.zeros(3), np.zeros(3, np.float32)) == "F64 (3,), replayed F32 (3,)"
