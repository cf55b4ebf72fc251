"""`tally calibrate-answers` writes a table that `verify-response --limits` takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.answers.limits import FingerprintCalibration


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


def test_an_interrupted_run_leaves_the_table_of_before_and_says_so(
    tally: Any, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.tally.calibration import answers as calibrate

    out = tmp_path / "table.json"
    out.write_text("before")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "observe", interrupted)
    told = tally("calibrate-answers", model_directory, "--out", out, "--answers", 5, "--tokens", 4)
    assert told.code == 130
    assert told.complaint == f"tally: interrupted: {out} is as before, nothing was kept; fewer --answers end sooner"
    assert [each.name for each in tmp_path.iterdir()] == ["table.json"]
    assert out.read_text() == "before"


@pytest.fixture(scope="module")
def deep(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model that is deeper than all that the shipped limits hold for."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("deep") / "model"
    shutil.copytree(model_directory, folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 31, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    for each in folder.glob("*.safetensors*"):
        each.unlink()
    torch.manual_seed(1)
    model: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    return folder


def test_a_model_beyond_the_shipped_limits_is_judged_by_limits_of_its_own(
    tally: Any, deep: Path, tmp_path: Path
) -> None:
    table, key, answers = tmp_path / "table.json", tmp_path / "key.json", tmp_path / "answers"
    assert tally("new-key", key).code == 0
    asked = ("--prompt", "The stick", "--max-tokens", 50, "--temperature", 0, "--key", key, "--out", answers)
    assert tally("generate", deep, *asked).code == 0
    judged = ("verify-response", answers / "receipts.jsonl", "--model", deep, "--rung", 2)
    told = tally(*judged)
    assert told.code == 3
    assert "measure them with `tally calibrate-answers MODEL --out TABLE`" in told.out
    assert tally("calibrate-answers", deep, "--out", table, "--answers", 5, "--tokens", 16).code == 0
    told = tally(*judged, "--limits", table)
    assert "no limits were measured" not in told.out
    assert told.code == 0, told.out + told.err
