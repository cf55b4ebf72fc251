"""`tally calibrate-answers` writes a table that `verify-response --limits` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallystick.answers.distance_limits import FingerprintCalibration


def test_a_model_is_calibrated_and_a_wrong_precision_is_refused(
    tally: Any, model_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "table.json"
    asked = ("calibrate-answers", model_directory, "--out", out, "--answers", 5, "--tokens", 4)
    told = tally(*asked)
    assert told.code == 0
    assert "tie band" in told.out
    assert "answers in batches of 8" in told.err
    before = out.read_bytes()
    table = FingerprintCalibration.from_bytes(before.strip(), "table")
    assert {each.place for each in table.rows} == {"block", "final", "logits"}
    assert table.tokens[0].answers == 5
    refused = tally(*asked, "--dtype", "BF17")
    assert (refused.code, "BF17" in refused.err) == (2, True)
    assert out.read_bytes() == before
