"""The delivered text beside the text of the tokens: where one character has several tokens, servers differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.answers.delivered import check_text
from tallystick.answers.report import CheckLog
from tallystick.answers.response import DeliveredChoice

WORD, SPACE_AND_FIRST, REST, END = 0, 1, 2, 3
PIECES = {WORD: b"notch", SPACE_AND_FIRST: b" \xf0\x9f", REST: b"\xaa\xb5", END: b""}


def decode(ids: Any) -> str:
    return b"".join(PIECES[each] for each in ids).decode(errors="replace")


def outcome(ids: tuple[int, ...], delivered: str) -> bool:
    """Whether the text is taken for that of the tokens."""
    receipt = SimpleNamespace(receipt=SimpleNamespace(answer=SimpleNamespace(finish="length")))
    response: Any = SimpleNamespace(choice=DeliveredChoice(text=delivered), receipt=receipt)
    log, model = CheckLog(), SimpleNamespace(decode=decode, end_tokens=frozenset({END}))
    check_text(log, response, ids, model, None)  # type: ignore[arg-type]
    return not log.findings.rejected


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
