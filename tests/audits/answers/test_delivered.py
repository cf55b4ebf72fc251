"""The delivered text beside the text of the tokens: where one character has several tokens, servers differ."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.audits.answers.delivery import check_text, texts_of
from tallystick.audits.answers.response import DeliveredChoice
from tallystick.verdicts.verdict import Findings

WORD, SPACE_AND_FIRST, REST, END = 0, 1, 2, 3
PIECES = {WORD: b"notch", SPACE_AND_FIRST: b" \xf0\x9f", REST: b"\xaa\xb5", END: b""}


def decode(ids: Any) -> str:
    return b"".join(PIECES[each] for each in ids).decode(errors="replace")


def outcome(
    ids: tuple[int, ...],
    delivered: str,
    prompt: tuple[int, ...] = (),
    decoder: Callable[[Any], str] = decode,
    finish: str = "length",
) -> bool:
    """Whether the text is taken for that of the tokens."""
    receipt = SimpleNamespace(receipt=SimpleNamespace(answer=SimpleNamespace(finish=finish)))
    response: Any = SimpleNamespace(choice=DeliveredChoice(content=delivered), receipt=receipt)
    log, model = Findings(), SimpleNamespace(decode=decoder, end_tokens=frozenset({END}))
    check_text(log, response, texts_of(prompt, ids, model), None)  # type: ignore[arg-type]
    return not log.rejected


@pytest.mark.parametrize("ending", [(), (END,)])
@pytest.mark.parametrize("delivered", ["notch", "notch \ufffd"])
def test_an_unfinished_character_at_the_end_may_be_held_back(ending: tuple[int, ...], delivered: str) -> None:
    assert outcome((WORD, SPACE_AND_FIRST, *ending), delivered)


@pytest.mark.parametrize("delivered", ["", "notc", "notch ", "notch \U0001fab5"])
def test_any_other_text_is_not_that_of_the_tokens(delivered: str) -> None:
    assert not outcome((WORD, SPACE_AND_FIRST), delivered)


def test_a_finished_character_is_not_held_back() -> None:
    assert outcome((WORD, SPACE_AND_FIRST, REST), "notch \U0001fab5")
    assert not outcome((WORD, SPACE_AND_FIRST, REST), "notch")


def test_many_unfinished_characters_do_not_excuse_an_empty_text() -> None:
    assert not outcome((WORD, *(SPACE_AND_FIRST,) * 20), "")
    assert outcome((SPACE_AND_FIRST,) * 3, "")


THINKING = {0: "<think>", 1: "so", 2: "</think>", 3: " 42", 4: "!"}


@pytest.mark.parametrize(
    ("ids", "reasoning", "text", "expected"),
    [
        ((0, 1, 2, 3), "so", "42", "agrees"),
        ((0, 1, 2, 3), "so", " 42", "agrees"),
        ((1, 2, 3), "so", "42", "agrees"),  # the template has begun the reasoning
        ((0, 1), "so", "", "agrees"),
        ((1,), "so", "", "open"),
        ((1, 3), "so", "42", "open"),
        ((0, 1, 2, 3, 4), "so", "42", "open"),
        ((0, 1, 4, 2, 3), "so", "42", "open"),
        ((0, 1, 2, 3), "so", "43", "differs"),
        ((0, 1, 2, 3), "pay", "42", "differs"),
        ((0, 1, 2, 3), "42", "so", "differs"),
    ],
)
def test_reasoning_apart_is_what_a_mark_in_the_tokens_divides(
    ids: tuple[int, ...], reasoning: str, text: str, expected: str
) -> None:
    receipt = SimpleNamespace(receipt=SimpleNamespace(answer=SimpleNamespace(finish="length")))
    response: Any = SimpleNamespace(choice=DeliveredChoice(content=text, reasoning=reasoning), receipt=receipt)
    model: Any = SimpleNamespace(decode=lambda each: "".join(THINKING[one] for one in each), end_tokens=frozenset())
    log = Findings()
    check_text(log, response, texts_of((), ids, model), None)
    found = "open" if log.undecided else "differs" if log.rejected else "agrees"
    assert found == expected


@pytest.fixture(scope="module")
def sentences() -> Any:
    """A tokenizer whose decoder is that of Llama 2: `▁` is a space, and a space at the very beginning is dropped."""
    from tokenizers import Tokenizer, decoders, models

    words = ("<s>", "</s>", "[INST]", "\u2581The", "\u2581moon", "s", "\u2581", "<0xF0>", "<0x9F>", "<0x8C>", "<0x99>")
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<s>"))
    found.add_special_tokens(["<s>", "</s>"])
    parts = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    found.decoder = decoders.Sequence(list(parts))
    return found


@pytest.mark.parametrize("prompt", [(), (0,), (0, 2), (0, 3, 4), (0, 2) * 50, (0, 3, 4, 6)])
@pytest.mark.parametrize("ids", [(3, 4, 5), (4,), (6, 3), (5, 4), (7, 8, 9, 10), (3, 7, 8)])
def test_a_space_at_the_beginning_may_be_there_or_not(
    sentences: Any, prompt: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)  # as vLLM decodes
    streamed = "".join(stream.step(sentences, each) or "" for each in ids)
    for text in (streamed, sentences.decode(list(ids))):
        assert outcome(ids, text, prompt, sentences.decode), text
        assert outcome(ids, text[:-1], prompt, sentences.decode, finish="stop"), text
        for other in (f"  {text}", f"{text}.", f"a{text}"):
            assert not outcome(ids, other, prompt, sentences.decode)
