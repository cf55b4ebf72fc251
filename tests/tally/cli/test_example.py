"""`tally example`: everything that is shipped can be listed and written, and nothing is overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.recording.training import read_config

Tally = Callable[..., Any]
EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = EXAMPLES / "data" / "python-topics.txt"


def test_every_shipped_file_is_listed_with_what_it_is(tally: Tally) -> None:
    told = tally("example")
    shipped = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert told.code == 0
    assert len(told.out.splitlines()) == len(shipped)
    assert all(path.stem.replace("_", "-") in told.out for path in shipped)
    assert "A small Llama-style language model on the Python language reference" in told.out


def test_the_list_as_json_names_the_files(tally: Tally) -> None:
    listed = {each["name"]: each for each in json.loads(tally("example", "--json").out)}
    assert listed["own-loop"]["files"] == ["own_loop.py"]
    assert listed["llama-tiny"]["files"][0] == "llama-tiny.toml"
    assert "data/python-topics.txt" in listed["llama-tiny"]["files"]


def test_a_recipe_is_written_with_its_data_and_can_be_read(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = tally("example", "llama-tiny")
    assert told.code == 0
    assert "next: tally train llama-tiny.toml --out run" in told.err
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert written == sorted(told.out.split())
    assert all((tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes() for name in written)
    recipe, source, *_ = read_config(Path("llama-tiny.toml"))
    assert (recipe, source.read_bytes()) == (read_config(EXAMPLES / "llama-tiny.toml")[0], SOURCE.read_bytes())


@pytest.mark.parametrize("name", ["own-loop", "own_loop", "own_loop.py"])
def test_an_example_goes_by_its_name_and_by_its_file(tally: Tally, tmp_path: Path, name: str) -> None:
    told = tally("example", name, "--out", tmp_path / "new", "--json")
    assert json.loads(told.out) == {"name": "own-loop", "written": [str(tmp_path / "new" / "own_loop.py")]}
    assert (tmp_path / "new" / "own_loop.py").read_bytes() == (EXAMPLES / "own_loop.py").read_bytes()


def test_two_recipes_share_their_data_and_a_second_call_changes_nothing(tally: Tally, tmp_path: Path) -> None:
    assert tally("example", "demo", "--out", tmp_path).code == 0
    assert tally("example", "llama-tiny", "--out", tmp_path).out == f"{tmp_path / 'llama-tiny.toml'}\n"
    again = tally("example", "llama-tiny", "--out", tmp_path)
    assert (again.code, again.out) == (0, "")
    assert "llama-tiny is there already, unchanged" in again.err


@pytest.mark.parametrize("edited", ["demo.toml", "data/python-topics.txt"])
def test_what_was_edited_is_kept_and_nothing_is_written(tally: Tally, tmp_path: Path, edited: str) -> None:
    (tmp_path / edited).parent.mkdir(exist_ok=True)
    (tmp_path / edited).write_text("mine")
    told = tally("example", "demo", "--out", tmp_path)
    assert (told.code, told.out) == (2, "")
    assert told.complaint == f"tally: {tmp_path / edited} is there with other content; choose another folder with --out"
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine"]


def test_an_unknown_name_is_answered_with_those_there_are(tally: Tally, tmp_path: Path) -> None:
    told = tally("example", "no-such", "--out", tmp_path)
    assert (told.code, told.out) == (2, "")
    assert told.complaint == "tally: no such example no-such; `tally example` lists all"
