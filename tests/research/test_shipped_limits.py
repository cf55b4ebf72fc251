"""A measured table replaces the shipped limits of its own precision and size, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from research import shipped_limits
from tallystick.audits.answers.limits import (
    FingerprintCalibration,
    FingerprintRule,
    RowLimits,
    TokenLimits,
    shipped_calibration,
)
from tests.support.limits import card_of

SIZE = {"dtype": "BF16", "layers": 30, "width": 576}
MEASURED = FingerprintCalibration(
    machine="another machine",
    software=shipped_calibration().software,
    stacks=("batches of 3",),
    rows=(RowLimits(**SIZE, place="final", largest=0.5),),  # type: ignore[arg-type]
    tokens=(TokenLimits(**SIZE, band=0.25, mismatches=0.1, rms=0.05),),  # type: ignore[arg-type]
)


def test_a_table_takes_the_place_of_limits_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, path = shipped_calibration(), tmp_path / "table.json"
    path.write_bytes(MEASURED.to_bytes())
    monkeypatch.setattr(sys, "argv", ["shipped_limits", str(path), "--name", "a model", "--out", str(tmp_path)])
    shipped_limits.main()
    written = (tmp_path / shipped_limits.TABLE).read_bytes()
    found = FingerprintCalibration.from_bytes(written.strip(), "written")
    for held, before, after in (
        (MEASURED.rows, shipped.rows, found.rows),
        (MEASURED.tokens, shipped.tokens, found.tokens),
    ):
        alike = [each for each in after if (each.dtype, each.layers, each.width) == ("BF16", 30, 576)]
        others = [each for each in before if (each.dtype, each.layers, each.width) != ("BF16", 30, 576)]
        assert alike == [each.model_copy(update={"models": ("a model",)}) for each in held]
        assert others == [each for each in after if each not in alike]
        assert len(others) < len(before)
    assert found.machine == f"{shipped.machine}; another machine"
    assert found.software == shipped.software
    assert found.stacks == (*shipped.stacks, "batches of 3")


def test_limits_that_a_table_does_not_hold_stay() -> None:
    shipped = shipped_calibration()
    rows_alone = MEASURED.model_copy(update={"tokens": ()})
    assert shipped_limits.merged(shipped, rows_alone).tokens == shipped.tokens


def test_blocks_are_added_where_there_are_none_and_no_later_one_is_tighter() -> None:
    def block(depth: int, largest: float) -> RowLimits:
        return RowLimits(**SIZE, place="block", layer_max=depth, largest=largest)  # type: ignore[arg-type]

    held = (block(10, 0.2), RowLimits(**SIZE, place="final", largest=0.3))  # type: ignore[arg-type]
    measured = MEASURED.model_copy(update={"rows": (block(5, 0.05), block(10, 0.5), block(20, 0.1), *MEASURED.rows)})
    found = shipped_limits.with_blocks(held, measured)
    assert found.rows == (*held, block(5, 0.05), block(20, 0.2))
    assert found.tokens == ()


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_shipped_limits_hold_for_every_layer_of_the_real_model(dtype: str) -> None:
    rule, card = FingerprintRule(), card_of(dtype, 30, 576)
    for tokens in (1, 8, 32, 128):
        found = [rule.limits_for(card, layer, tokens) for layer in range(card.layers)]
        assert all(each is not None and each.place == "block" for each in found)
