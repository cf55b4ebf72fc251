"""Mutated receipts: refused or rejected, and accepted only where they say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.attacks.receipts.fuzz import KINDS, Fuzzed, fuzz, mutate_bytes, mutate_field

COUNT = 150


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutant_is_accepted_that_says_something_else(kind: Any, scene: Any) -> None:
    found = fuzz(scene, kind, COUNT)
    assert found.is_sound, found
    assert found.accepted == 0
    assert found.refused > COUNT // 4
    answered = found.equal + found.unchecked + found.refused + found.rejected + found.inconclusive + found.accepted
    assert found.tried == answered == COUNT
    assert found == fuzz(scene, kind, COUNT)


def test_signed_anew_some_mutants_are_rejected_by_what_they_say(scene: Any) -> None:
    found = fuzz(scene, "signed", COUNT)
    assert found.rejected > 0
    assert found.unchecked > 0
    assert set(found.fields) >= {"engine"}


def test_an_accepted_mutant_would_be_reported() -> None:
    assert not Fuzzed("bytes", tried=1, accepted=1).is_sound
    assert not Fuzzed("signed", tried=1, accepted=1).is_sound
    assert not Fuzzed("fields", tried=1, unchecked=1).is_sound
    assert Fuzzed("signed", tried=1, unchecked=1).is_sound


def test_mutations_change_something_and_leave_the_original_alone() -> None:
    rng = np.random.default_rng(0)
    data, value = b"0123456789abcdef", {"a": [1, 2, 3], "b": {"c": "text"}, "d": None}
    kept = repr(value)
    assert sum(mutate_bytes(data, rng) != data for _ in range(50)) > 40
    fields = [mutate_field(value, rng) for _ in range(200)]
    assert repr(value) == kept
    assert {name for name, _ in fields} == {"a", "b", "d"}
    assert sum(each != value for _, each in fields) > 150
