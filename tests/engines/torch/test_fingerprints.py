import numpy as np
import pytest
import torch

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.generation.layer_tap import commit_states, make_fingerprint
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.hidden_states import check_states_opening
from tallystick.verdicts import fingerprints

SETTINGS = [
    FingerprintSettings(layers=(0, 2)),
    FingerprintSettings(layers=(2,), block=8, width=4, bits=32),
    FingerprintSettings(layers=(0, 2), width=30, bits=4),
    FingerprintSettings(layers=(2,), block=1, width=60, bits=1),
    FingerprintSettings.toploc(2),
]
pytestmark = pytest.mark.usefixtures("one_thread")


def states(dtype=torch.float32, tokens=70, size=96):
    generator = torch.Generator().manual_seed(1)
    return {layer: torch.randn(tokens, size, generator=generator).mul(3).to(dtype) for layer in (0, 1, 2)}


def as_arrays(rows):
    return {layer: each.float().numpy() for layer, each in rows.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: f"{each.method} {each.bits}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_and_arrays_have_one_fingerprint_up_to_the_last_place(settings, dtype):
    rows = states(dtype)
    found, expected = make_fingerprint(rows, settings), fingerprints.make_fingerprint(as_arrays(rows), settings)
    assert len(found.raw) == len(expected.raw)
    assert found.model_copy(update={"data": ""}) == expected.model_copy(update={"data": ""})
    assert max(each.distance for each in fingerprints.distances(found, as_arrays(rows))) < 1e-6
    different = np.frombuffer(found.raw, np.uint8) != np.frombuffer(expected.raw, np.uint8)
    assert settings.bits == 32 or different.mean() < 0.01


@pytest.mark.parametrize("tokens", [0, 1, 31, 300])
def test_any_number_of_tokens(tokens):
    rows = states(tokens=tokens)
    found = make_fingerprint(rows, SETTINGS[0])
    assert found.tokens == tokens
    assert len(fingerprints.distances(found, as_arrays(rows))) == 2 * -(-tokens // 32)


def test_states_that_do_not_fit_are_refused():
    rows = states()
    with pytest.raises(MalformedError, match="layer 7"):
        make_fingerprint(rows, FingerprintSettings(layers=(7,)))
    with pytest.raises(MalformedError, match="one row a token"):
        make_fingerprint({**rows, 2: rows[2][:-1]}, SETTINGS[0])
    rows[2][3, 3] = float("nan")
    with pytest.raises(UnavailableError, match="not finite"):
        make_fingerprint(rows, SETTINGS[0])


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "F32"), (torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_states_are_committed_to_in_their_own_precision(dtype, name):
    rows = states(dtype)
    committed = commit_states(rows, (0, 2), 32, prompt=True)
    assert (committed.statement.dtype, committed.statement.rows, committed.statement.prompt) == (name, 70, True)
    found = check_states_opening(committed.open(b"nonce", 6), committed.statement, b"nonce", 6)
    assert all(np.array_equal(found[block, layer], as_arrays(rows)[layer][32 * block :][:32]) for block, layer in found)


def test_later_passes_over_the_same_memory_do_not_change_what_was_committed_to():
    rows = states()
    committed = commit_states(rows, (0, 2), 32)
    before = committed.open(b"nonce", 6)
    rows[0].zero_()
    assert committed.open(b"nonce", 6) == before
