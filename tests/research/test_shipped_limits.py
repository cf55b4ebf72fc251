"""A measured table replaces the shipped limits of its own precision and size, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from research import shipped_limits
from tallystick.answers.distance_limits import FingerprintCalibration, RowLimits, TokenLimits, shipped_calibration

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
