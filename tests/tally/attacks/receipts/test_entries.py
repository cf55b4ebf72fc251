"""The study's entries are those of the catalogue, judged."""

from __future__ import annotations

import json
from typing import Any

from research.inference.forgeries import forge_all, fuzz_all
from tests.support.attacks.receipts.catalogue import FORGERIES


def test_there_is_an_entry_for_every_forgery(scene: Any) -> None:
    entries = json.loads(json.dumps([*forge_all(scene)]))
    assert [each["name"] for each in entries] == [each.name for each in FORGERIES]
    assert all(each["is_as_expected"] and each["twin"] == "accepted" for each in entries)
    assert all(each["detail"] for each in entries if each["outcome"] != "accepted")
    assert {each["outcome"] for each in entries} == {"accepted", "rejected", "inconclusive", "refused"}


def test_there_is_an_entry_for_every_kind_of_mutant(scene: Any) -> None:
    entries = json.loads(json.dumps([*fuzz_all(scene, 20)]))
    assert [each["kind"] for each in entries] == ["bytes", "fields", "signed"]
    assert all(each["tried"] == 20 and each["is_sound"] for each in entries)
