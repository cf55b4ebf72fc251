"""Words and states of MT19937 are those of its authors, and the distance between states is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.programs.random_words import BLOCK, GOES_ON, SKIPPED_MAX, distance, draw, seeded

VECTORS = json.loads(Path("vectors/generator/draws.json").read_text())


@pytest.mark.parametrize("case", VECTORS["words"], ids=lambda case: str(case["seed"]))
def test_words_follow_from_a_seed(case: dict[str, list[int]]) -> None:
    drawn, after = draw(seeded(int(case["seed"])), GOES_ON, 0, 6)  # type: ignore[call-overload]
    assert drawn.tolist() == case["words"]
    assert draw(after, int(case["seed"]), 2, 4)[0].tolist() == case["words"][2:]  # type: ignore[call-overload]


def test_the_default_seed_of_the_authors_gives_their_first_word() -> None:
    assert draw(seeded(5489), GOES_ON, 0, 1)[0].tolist() == [3499211612]


@pytest.mark.parametrize("words", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK, 123_457])
@pytest.mark.parametrize("start", [0, 1, BLOCK, 1000])
def test_the_distance_is_how_many_words_were_drawn(start: int, words: int) -> None:
    _, before = draw(seeded(3), GOES_ON, start, 0)
    _, after = draw(before, GOES_ON, words, 0)
    assert distance(before, after, 1 << 20) == words
    assert distance(before, after, words - 1) is None


def test_another_stream_is_at_no_distance() -> None:
    assert distance(seeded(3), draw(seeded(4), GOES_ON, 5, 0)[1], 1 << 20) is None


def test_numbers_that_are_no_state_and_no_move_are_refused() -> None:
    state = seeded(1)
    for place, number in ((0, -1), (5, 1 << 32), (BLOCK, BLOCK + 1), (BLOCK, -1)):
        wrong = state.copy()
        wrong[place] = number
        with pytest.raises(MalformedError, match="other numbers than words and a place"):
            draw(wrong, GOES_ON, 0, 1)
    for seed, skipped in ((-2, 0), (1 << 32, 0), (GOES_ON, -1), (GOES_ON, SKIPPED_MAX + 1)):
        with pytest.raises(MalformedError, match="cannot be moved"):
            draw(state, seed, skipped, 1)
    assert np.array_equal(draw(state, GOES_ON, 0, 0)[1], state)
