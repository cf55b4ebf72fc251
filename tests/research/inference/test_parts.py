"""The tables say what the entries say."""

from __future__ import annotations

from typing import Any

from research.inference.parts import encoder_part, forgeries_part, stacks_part


def test_areas_stand_in_the_columns_of_their_settings() -> None:
    area = {"value": 0.75, "low": 0.5, "high": 1.0, "honest": 7, "cheated": 7}
    entry: dict[str, Any] = {"dtype": "F32", "way": "int8", "setting": "A", "bytes": 0.5, "area": area}
    found = encoder_part([entry, {**entry, "setting": "B", "area": {**area, "value": 1.0}}])
    assert found["rows"] == [["F32", "int8", "0.7500", "1"]]
    assert found["headings"][2:] == ["A<br>0.50 B", "B<br>0.50 B"]
    assert "7 texts" in found["text"]


def test_a_forgery_that_was_not_answered_as_it_has_to_be_is_marked() -> None:
    entry = {"name": "cut", "change": "less", "outcome": "rejected", "checks": ("finish",), "detail": "x", "why": ""}
    good = {**entry, "expected": "rejected", "is_as_expected": True, "twin": "accepted"}
    bad = {**good, "outcome": "accepted", "checks": (), "is_as_expected": False, "twin": "rejected"}
    counts = dict.fromkeys(("refused", "rejected", "inconclusive", "equal", "accepted", "unchecked"), 1)
    found = forgeries_part([good, bad], [{"kind": "bytes", "tried": 6, **counts}])
    assert found["rows"] == [["cut", "less", "rejected", "finish"], ["cut", "less", "**accepted, not rejected**", ""]]
    assert "accepted in 1 of 2" in found["text"]
    assert "6 of bytes" in found["text"]


def test_makers_are_added_up_for_each_verifier() -> None:
    entry: dict[str, Any] = {"subject": "m, F32", "dtype": "F32", "maker": "a", "verifier": "c", "receipts": 8}
    counts = {"accepted": 7, "inconclusive": 1, "rejected": 0, "rows": 10}
    sizes = {"fingerprint": 0.25, "margin": 0.0, "drift": 1e-6, "spread": 2e-6}
    first = {**entry, **counts, **sizes, "bits": "1"}
    second = {**first, "maker": "b", "fingerprint": 0.5}
    missing = {**entry, "verifier": "d", "unavailable": "no such engine"}
    found = stacks_part([first, second, missing])
    assert found["rows"][0] == ["m, F32", "c", "2", "14 of 16", "2 of 16", "0 of 16", "0.50", "0.00", "1.0e-06"]
    assert found["rows"][1][-1] == "no such engine"
    assert "2 stacks" in found["text"]
    assert "1 different sets of logits by 1 verifiers" in found["text"]
    assert all(len(row) == len(found["headings"]) for row in found["rows"])
