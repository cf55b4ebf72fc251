"""Text that is given out while tokens arrive: whole characters only, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tallystick.recording.serving.jobs import AnswerText


def of_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def pieces(text: str, stops: Sequence[str] = ()) -> tuple[list[str], AnswerText]:
    answer = AnswerText(of_bytes, stops)
    given = []
    for token in text.encode():
        given.append(answer.add(token))
        if answer.is_stopped:
            break
    return [*given, answer.close()], answer


@pytest.mark.parametrize("text", ["plain", "a 木 and a 🪵", "", "🪵", "ends in half \ufffd"])
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)[0]) == text


def test_a_character_waits_for_its_last_byte() -> None:
    assert pieces("木!")[0] == ["", "", "木", "!", ""]


def test_an_unfinished_character_is_given_at_the_end() -> None:
    answer = AnswerText(of_bytes)
    assert [answer.add(token) for token in "木".encode()[:2]] == ["", ""]
    assert answer.close() == "\ufffd"


def test_text_before_a_stop_is_given_and_the_stop_is_not() -> None:
    given, answer = pieces("notch END tail", ["END"])
    assert (answer.is_stopped, "".join(given)) == (True, "notch ")


def test_the_beginning_of_a_stop_is_held_back_until_it_turns_out_to_be_none() -> None:
    given, answer = pieces("a ENtry", ["END"])
    assert given[2:5] == ["", "", "ENt"]
    assert (answer.is_stopped, "".join(given)) == (False, "a ENtry")


def test_the_beginning_of_a_stop_at_the_end_is_given() -> None:
    assert "".join(pieces("a EN", ["END"])[0]) == "a EN"


def test_the_earliest_of_several_stops_counts() -> None:
    assert "".join(pieces("one two three", ["three", "two"])[0]) == "one "
