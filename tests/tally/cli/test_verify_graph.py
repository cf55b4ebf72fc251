"""`tally verify-graph`: the graph that an answer names is the promised model's, and each route says which it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.tally.cli.entry import run


@pytest.fixture(scope="module")
def answered(one_thread: None, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an answer whose receipt names the decode graph beside it."""
    folder = tmp_path_factory.mktemp("answered")
    key, out = str(folder / "key"), str(folder / "out")
    assert run(["new-key", key]) == 0
    options = ["--key", key, "--out", out, "--prompt", "Notch", "--max-tokens", "4"]
    assert run(["generate", str(model_directory), *options, "--graph"]) == 0
    (folder / "receipt.json").write_bytes((folder / "out" / "receipts.jsonl").read_bytes().splitlines()[0])
    return folder


def verify(folder: Path, model: Path, *options: str) -> int:
    return run(["verify-graph", str(folder / "out" / "graphs" / "decode.json"), "--model", str(model), *options])


@pytest.mark.parametrize("route", ["own capture", "teacher forcing"])
def test_the_graph_of_an_answer_is_the_models(
    route: str, answered: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--receipt", str(answered / "receipt.json"), "--route", route, "--verbose")
    assert verify(answered, model_directory, *named) == 0
    assert f"route taken: {route}" in capsys.readouterr().out


def test_the_receipt_has_to_name_this_graph(answered: Path, model_directory: Path, tmp_path: Path) -> None:
    signed = json.loads((answered / "receipt.json").read_bytes())
    signed["receipt"]["engine"]["graph"] = "sha256:" + "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(signed))
    assert verify(answered, model_directory, "--receipt", str(tmp_path / "other.json")) == 1
    del signed["receipt"]["engine"]["graph"]
    (tmp_path / "none.json").write_text(json.dumps(signed))
    assert verify(answered, model_directory, "--receipt", str(tmp_path / "none.json")) == 4


def test_a_graph_of_another_model_is_rejected(
    answered: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    other = Path(shutil.copytree(model_directory, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert verify(answered, other) == 1
    assert "aten." in capsys.readouterr().out


def test_no_route_is_inconclusive(answered: Path, model_directory: Path) -> None:
    assert verify(answered, model_directory, "--route", "symbolic length") == 3


def test_an_unknown_route_is_a_question_of_usage(answered: Path, model_directory: Path) -> None:
    assert verify(answered, model_directory, "--route", "faith") == 2
