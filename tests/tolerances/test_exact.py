import numpy as np
import pytest

from tallystick.commitments import digest_bytes
from tallystick.errors import MalformedError
from tallystick.tensors import Tensor, state_digest, tensor_digest
from tallystick.tolerances import Exact, Replayed, ReplayedState

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


def test_opened_states_count_and_name_the_tensors_that_differ():
    claimed = {"a": STATE["a"] + 1, "rng": STATE["rng"], "extra": STATE["b"]}
    finding = Exact().compare_opened(claimed, ReplayedState(STATE, STATE))
    assert (finding.distance, finding.where) == (3.0, "a")
    assert Exact().compare_opened(STATE, ReplayedState(STATE, STATE)).agrees
