from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tallystick.tally.attacks import catalogue
from tallystick.tally.attacks.catalogue import ATTACKS
from tallystick.tally.cli.entry import run


def test_the_list_names_every_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attack", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(ATTACKS)


def test_a_forgery_says_what_was_changed_and_who_should_see_it(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["attack", "record-edited-resealed", str(reference), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 1
    assert "the loss of one step is lowered" in said
    assert "`tally audit` should see it" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["attack"], "tally attack NAME RUN OUT"),
        (["attack", "no-such-attack", "{run}", "{out}"], "no such attack"),
        (["attack", "record-edited", "{run}", "{run}"], "not an empty directory"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str], reason: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [part.format(run=reference, out=tmp_path / "out") for part in arguments]
    assert run(filled) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert reason in said[0]


def test_a_missing_run_is_one_line_and_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attack", "bad-seed", str(tmp_path / "none"), str(tmp_path / "out")]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_outside_of_a_clone_only_the_forgers_of_the_package_run(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name == "research" else find_spec(name))
    assert run(["attack", "clock-forged", str(reference), str(tmp_path / "out")]) == 4
    assert "in a clone, `python -m tallystick attack clock-forged RUN OUT`" in capsys.readouterr().err
    assert run(["attack", "record-edited", str(reference), str(tmp_path / "out")]) == 0
    monkeypatch.undo()
    assert run(["attack", "clock-forged", str(reference), str(tmp_path / "other")]) == 0
