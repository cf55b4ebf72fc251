"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import UnavailableError


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path if name == "replace" else os, name, crash)
        with pytest.raises(UnavailableError, match="file: could not be written: No space"):
            write_atomically(path, b"new")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"old"}
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_document_of_the_allowed_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_document(tmp_path / "file", bytes_max=5) == b"12345"


def test_a_larger_a_missing_and_a_special_file_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="file: 5 bytes, more than the 4 allowed"):
        read_document(tmp_path / "file", bytes_max=4)
    for name in ("none", "pipe", "."):
        with pytest.raises(UnavailableError, match="not there, or not a file"):
            read_document(tmp_path / name)
