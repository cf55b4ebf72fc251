"""Every forgery against a static fingerprint and against opened states, beside its honest twin."""

import numpy as np
import pytest

from tallystick.audits.answers.fingerprints import judge_fingerprint
from tallystick.audits.answers.limits import FingerprintRule
from tallystick.audits.answers.states import judge_states
from tallystick.audits.answers.subject import StatesChallenge
from tallystick.core.errors import MalformedError
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.hidden_states import commit_states
from tallystick.verdicts.fingerprints import make_fingerprint
from tests.support.attacks.fingerprints.altered import (
    blocks_dropped,
    blocks_swapped,
    layers_swapped,
    rows_shifted,
    signs_flipped,
)
from tests.support.attacks.fingerprints.forged import forge_states
from tests.support.limits import card_of

RULE, CARD = FingerprintRule(), card_of()
PROMPT, TOKENS = 4, 20
NONCE = b"drawn after the receipt"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def passes(language_model):
    """The promised model's states of an answer, in one pass and with a cache, and those of another request."""
    layers = range(language_model.card.layers + 1)
    ids = np.random.default_rng(3).integers(0, language_model.card.vocabulary, (2, PROMPT + TOKENS - 1)).tolist()
    own, foreign = (dict(language_model.prefill(each, PROMPT - 1, layers).hidden) for each in ids)
    return own, with_cache(language_model, ids[0], layers), foreign


def with_cache(language_model, ids, layers):
    import torch

    from tallystick.engines.torch.generation.layer_tap import watching_layers

    rows, cache = {layer: [] for layer in layers}, None
    model = language_model.model
    with torch.inference_mode(), watching_layers(model, layers, lambda layer, seen: rows[layer].append(seen[0, -1])):
        for fed in (ids[:PROMPT], *([each] for each in ids[PROMPT:])):
            cache = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True).past_key_values
    return {layer: torch.stack(each).float().numpy() for layer, each in rows.items()}


def settings_of(rows, **changes):
    return FingerprintSettings(**{"layers": tuple(sorted(rows)), "block": 8, "width": 8, **changes})


def passes_static(claimed, own, **changes):
    findings = judge_fingerprint(make_fingerprint(claimed, settings_of(own, **changes)), own, RULE, CARD)
    assert findings
    return all(each.agrees for each in findings)


def passes_dynamic(claimed, own):
    committed = commit_states({layer: each.astype(np.float32) for layer, each in claimed.items()}, sorted(own), 8)
    findings = judge_states(StatesChallenge(NONCE, 4, committed.open(NONCE, 4)), committed.statement, own, RULE, CARD)
    return all(each.agrees for each in findings)


@pytest.mark.parametrize(("bits", "width"), [(32, 8), (8, 8), (4, 15), (1, 60)])
def test_the_same_model_with_a_cache_is_accepted(passes, bits, width):
    own, cached, _ = passes
    assert passes_static(cached, own, bits=bits, width=width)
    assert passes_dynamic(cached, own)


@pytest.mark.parametrize(("bits", "width"), [(32, 8), (8, 8), (4, 15), (1, 60)])
@pytest.mark.parametrize(
    "alter",
    [
        signs_flipped,
        lambda rows: signs_flipped(rows, 0.1),
        rows_shifted,
        lambda rows: layers_swapped(rows, 0, 1),
        lambda rows: {layer: each * 1.5 for layer, each in rows.items()},
    ],
    ids=["signs flipped", "a tenth of signs flipped", "positions shifted", "layers swapped", "scaled"],
)
def test_right_states_with_other_signs_places_layers_or_scale_are_rejected(passes, alter, bits, width):
    own, cached, _ = passes
    assert not passes_static(alter(cached), own, bits=bits, width=width)
    assert not passes_dynamic(alter(cached), own)


def test_the_fingerprint_of_another_request_is_rejected(passes):
    own, _, foreign = passes
    assert not passes_static(foreign, own)
    assert not passes_dynamic(foreign, own)


def test_moved_and_missing_blocks(passes):
    own, cached, _ = passes
    fingerprint = make_fingerprint(cached, settings_of(own))
    assert all(each.agrees for each in judge_fingerprint(fingerprint, own, RULE, CARD))
    assert not all(each.agrees for each in judge_fingerprint(blocks_swapped(fingerprint), own, RULE, CARD))
    for dropped in (blocks_dropped(fingerprint), blocks_dropped(fingerprint, tokens=16)):
        with pytest.raises(MalformedError, match="fingerprint"):
            judge_fingerprint(dropped, own, RULE, CARD)


@pytest.mark.parametrize(("bits", "width"), [(32, 4), (8, 7), (4, 15), (1, 60)])
def test_states_forged_for_known_directions_pass_the_static_check_and_fail_the_dynamic_one(passes, bits, width):
    own, cached, foreign = passes
    chosen = settings_of(own, bits=bits, width=width)
    forged = {layer: forge_states(foreign[layer], own[layer], layer, chosen) for layer in own}
    for layer, each in forged.items():
        moved = np.linalg.norm(each - own[layer]) / np.linalg.norm(own[layer])
        assert moved > 0.3  # nothing like the states that the model has
    assert passes_static(forged, own, bits=bits, width=width)
    assert not passes_dynamic(forged, own)
    assert passes_dynamic(cached, own)


def test_forged_states_fail_under_directions_they_were_not_made_for(passes):
    own, _, foreign = passes
    chosen = settings_of(own)
    forged = {layer: forge_states(foreign[layer], own[layer], layer, chosen) for layer in own}
    other = make_fingerprint(forged, settings_of(own, seed="11" * 32))
    assert not all(each.agrees for each in judge_fingerprint(other, own, RULE, CARD))
    assert passes_static(forged, own)
