"""What a folder holds that a claim can be about; and what it does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.formats.store.directories import InferenceDirectory, OpeningDirectory, read_statement
from tallystick.formats.store.run import RunDirectory

TRAINING, CALLS, OPENED = ("claim.json", b"{}"), ("claim.json", b'{"claim":"inference"}'), ("opening.json", b"{}")


def folder(path: Path, *files: tuple[str, bytes]) -> Path:
    for name, data in files:
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (TRAINING, RunDirectory),
        (("transcript.jsonl", b""), RunDirectory),
        (CALLS, InferenceDirectory),
        (OPENED, OpeningDirectory),
    ],
    ids=["training", "unfinished training", "calls", "operators"],
)
def test_a_folder_is_what_it_holds(file: tuple[str, bytes], kind: type, tmp_path: Path) -> None:
    assert read_statement(folder(tmp_path, file)) == kind(tmp_path)


@pytest.mark.parametrize("levels", [None, 1, 2])
def test_a_folder_that_holds_none_of_them_says_so(levels: int | None, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="an empty folder, and not a run directory"):
        read_statement(tmp_path, levels)


def test_of_a_folder_that_holds_records_and_operators_the_claim_says_which_it_is_about(tmp_path: Path) -> None:
    folder(tmp_path, TRAINING, OPENED)
    assert read_statement(tmp_path, 1) == OpeningDirectory(tmp_path)
    assert read_statement(tmp_path, 2) == RunDirectory(tmp_path)
    assert read_statement(tmp_path) == OpeningDirectory(tmp_path)


def test_a_claim_is_not_about_what_only_the_other_kind_of_claim_is_about(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        read_statement(folder(tmp_path, TRAINING), 1)
    (tmp_path / "claim.json").unlink()
    with pytest.raises(UnavailableError):
        read_statement(folder(tmp_path, OPENED), 2)


def test_a_claim_that_cannot_be_read_counts_as_that_of_a_run(tmp_path: Path) -> None:
    assert read_statement(folder(tmp_path, ("claim.json", b"{"))) == RunDirectory(tmp_path)
