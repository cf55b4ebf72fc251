"""What stands at a path that is not what a command takes, and what would have to stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.formats.store.folders import MODEL, OPENING, RECEIPTS, RUN, FolderKind, require_folder


def folder(path: Path, *names: str) -> Path:
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).write_bytes(b"")
    return path


@pytest.mark.parametrize("kind", [RUN, MODEL, OPENING, RECEIPTS], ids=lambda kind: kind.name)
def test_any_mark_makes_a_folder_one_of_its_kind(tmp_path: Path, kind: FolderKind) -> None:
    for mark in kind.marks:
        assert require_folder(folder(tmp_path / mark, mark), kind) == tmp_path / mark


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "an empty folder"),
        (["config.json"], "a model directory"),
        (["opening.json"], "a folder of opened operators"),
        (["receipts.jsonl"], "a folder of receipts"),
        (["a", "b"], "a folder with a, b, and not"),
        (["a", "b", "c", "d", "e"], "a folder with a, b, c and 2 more"),
    ],
)
def test_another_folder_is_told_by_what_it_looks_like(tmp_path: Path, names: list[str], says: str) -> None:
    with pytest.raises(UnavailableError) as refused:
        require_folder(folder(tmp_path / "here", *names), RUN)
    assert says in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "here"))
    assert "run directory; that holds claim.json" in str(refused.value)


def test_a_file_and_nothing_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, says in (("file", "a file"), ("nothing", "not there")):
        with pytest.raises(UnavailableError, match=f"{name}: {says}, and not a model directory"):
            require_folder(tmp_path / name, MODEL)
