"""Hidden states kept by reference while a model runs: which rows belong to which token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UnavailableError

torch = pytest.importorskip("torch")

from tallystick.engines.torch.generation.layer_tap import LayerTap  # noqa: E402
from tallystick.verdicts.fingerprints import logit_rows  # noqa: E402

SEED = "ab" * 32
PROMPT, ANSWER = [5, 9, 17, 4, 33], [7, 8, 9, 200]
FED = PROMPT + ANSWER[:-1]


@pytest.fixture
def feed(language_model: Any) -> Callable[..., None]:
    """Feed tokens to the model in the given pieces, with a cache."""

    def run(*pieces: int, tokens: list[int] = FED) -> None:
        cache, place = None, 0
        with torch.inference_mode():
            for length in pieces:
                ids = torch.tensor([tokens[place : place + length]])
                cache = language_model.model(input_ids=ids, past_key_values=cache, use_cache=True).past_key_values
                place += length

    return run


@pytest.fixture
def expected(language_model: Any) -> Any:
    return language_model.prefill(FED, 0, (0, 1, 2)).hidden


def differs(rows: Any, expected: Any) -> float:
    return max(float(abs(rows[layer].numpy() - expected[layer]).max()) for layer in rows)


@pytest.mark.parametrize("pieces", [(5, 1, 1, 1), (2, 3, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 1)])
def test_rows_are_those_that_the_tokens_were_chosen_from(
    language_model: Any, feed: Callable[..., None], expected: Any, pieces: tuple[int, ...]
) -> None:
    with LayerTap(language_model.model, (0, 1, 2)) as tap:
        feed(*pieces)
    rows = tap.rows(0, len(ANSWER), fed=len(PROMPT))
    assert {layer: each.shape for layer, each in rows.items()} == dict.fromkeys((0, 1, 2), (len(ANSWER), 32))
    assert differs(rows, {layer: each[len(PROMPT) - 1 :] for layer, each in expected.items()}) < 1e-5


@pytest.mark.parametrize("pieces", [(5, 1, 1, 1), (3, 2, 1, 1, 1)])
def test_rows_of_the_prompt_are_kept_if_asked_for(
    language_model: Any, feed: Callable[..., None], expected: Any, pieces: tuple[int, ...]
) -> None:
    with LayerTap(language_model.model, (1,), prompt=True) as tap:
        feed(*pieces)
    before = tap.prompt_rows(0, len(PROMPT), fed=len(PROMPT))
    assert before[1].shape == (len(PROMPT) - 1, 32)
    assert differs(before, {1: expected[1][: len(PROMPT) - 1]}) < 1e-5
    without = LayerTap(language_model.model, (1,))
    with without:
        feed(*pieces)
    with pytest.raises(UnavailableError, match="not all were kept"):
        without.prompt_rows(0, len(PROMPT), fed=len(PROMPT))


@pytest.mark.parametrize("layers", [(3,), (0, 3)])
@pytest.mark.parametrize("kept", [0, 1])
def test_logits_are_those_that_the_tokens_were_chosen_from(
    language_model: Any, layers: tuple[int, ...], kept: int
) -> None:
    with LayerTap(language_model.model, layers, seed=SEED) as tap, torch.inference_mode():
        cache, pieces = None, [PROMPT, *([each] for each in ANSWER[:-1])]
        for piece in pieces:
            cache = language_model.model(
                input_ids=torch.tensor([piece]), past_key_values=cache, use_cache=True, logits_to_keep=kept
            ).past_key_values
    rows = tap.rows(0, len(ANSWER), fed=len(PROMPT))
    passed = language_model.prefill(FED, len(PROMPT) - 1, ())
    assert differs({3: rows[3]}, {3: logit_rows(passed.logits, SEED)}) < 1e-5
    assert all(len(each) == len(ANSWER) for each in rows.values())


def test_fewer_rows_than_passes_are_the_first_ones(language_model: Any, feed: Callable[..., None]) -> None:
    with LayerTap(language_model.model, (1,)) as tap:
        feed(5, 1, 1, 1)
    assert torch.equal(tap.rows(0, 4)[1][:2], tap.rows(0, 2)[1])
    with pytest.raises(UnavailableError, match="5 passes"):
        tap.rows(0, 5)


def test_a_loop_of_ones_own_takes_each_pass(language_model: Any, feed: Callable[..., None], expected: Any) -> None:
    with LayerTap(language_model.model, (0, 2)) as tap:
        feed(8)
        taken = tap.take()
        assert differs({layer: each[0] for layer, each in taken.items()}, expected) < 1e-6
        with pytest.raises(UnavailableError, match="no pass"):
            tap.take()
        feed(3)
        assert tap.take()[0].shape == (1, 3, 32)


def test_nothing_is_copied_and_nothing_is_left_behind(language_model: Any, feed: Callable[..., None]) -> None:
    seen = []
    handle = language_model.model.model.norm.register_forward_hook(lambda _, __, output: seen.append(output))
    with LayerTap(language_model.model, (2,)) as tap:
        feed(5)
    handle.remove()
    assert tap.take()[2].data_ptr() == seen[0].data_ptr()
    feed(5)
    assert tap.passes == 0


def test_a_pass_that_broke_off_is_no_pass(language_model: Any, feed: Callable[..., None]) -> None:
    def break_off(*_: Any) -> None:
        raise FloatingPointError

    with LayerTap(language_model.model, (0, 2)) as tap:
        feed(5)
        handle = language_model.model.model.norm.register_forward_pre_hook(break_off)
        with pytest.raises(FloatingPointError):
            feed(5)
        handle.remove()
        with pytest.raises(UnavailableError, match="broke off"):
            tap.rows(0, 1)
        tap.clear()
        feed(5)
        assert tap.rows(0, 1)[2].shape == (1, 32)


def test_a_layer_that_is_not_there_is_named(language_model: Any) -> None:
    with pytest.raises(MalformedError, match="layers: 4 is not from 0 to 3"):
        LayerTap(language_model.model, (0, 4))


def test_without_layers_there_are_no_rows(language_model: Any, feed: Callable[..., None]) -> None:
    with LayerTap(language_model.model, ()) as tap:
        feed(5, 1)
    assert tap.rows(0, 2) == {}
