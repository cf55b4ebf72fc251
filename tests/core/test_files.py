"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.core.files import file_size, read_document, write_atomically


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


def test_a_function_may_write_the_file_piece_by_piece(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", lambda file: file.writelines([b"one", b"two"]))
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"onetwo"}


def test_a_disk_that_fills_up_between_two_pieces_leaves_the_old_file_alone(tmp_path: Path) -> None:
    def fill_up(file: BinaryIO) -> None:
        file.write(b"new")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_atomically(tmp_path / "file", b"old")
    with pytest.raises(UnavailableError, match="file: could not be written: No space"):
        write_atomically(tmp_path / "file", fill_up)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"old"}


KILLED = """
import os, signal, sys
from pathlib import Path
from tallystick.core.files import write_atomically
def write(file):
    file.write(b"new")
    file.flush()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), write)
"""


@pytest.mark.parametrize(("fate", "left"), [("killed", b"old"), ("spared", b"new")])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_goes_on(tmp_path: Path, fate: str, left: bytes) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    run = subprocess.run([sys.executable, "-c", KILLED, str(path), fate], check=False)
    assert (run.returncode == 0, path.read_bytes()) == (fate == "spared", left)
    write_atomically(path, b"newer")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"newer"}


@pytest.mark.parametrize(("durable", "synced"), [(True, ["file", "folder"]), (False, [])])
def test_the_file_and_its_folder_are_synced_unless_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: list[str]
) -> None:
    kinds: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: kinds.append(kind_of(handle)))
    write_atomically(tmp_path / "file", b"data", durable=durable)
    assert kinds == synced


def kind_of(handle: int) -> str:
    return "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"


def test_a_document_of_the_allowed_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_document(tmp_path / "file", bytes_max=5) == b"12345"


def test_a_larger_a_missing_and_a_special_file_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="file: 5 bytes, more than the 4 allowed"):
        read_document(tmp_path / "file", bytes_max=4)
    for name, says in (
        ("none", "not there"),
        ("pipe", "not a regular file"),
        (".", "a folder, not a"),
    ):
        with pytest.raises(UnavailableError, match=says):
            read_document(tmp_path / name)
        with pytest.raises(UnavailableError, match=says):
            file_size(tmp_path / name)
    assert file_size(tmp_path / "file") == 5


def test_a_file_that_the_system_does_not_hand_out_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "file").write_bytes(b"12345")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UnavailableError, match="file: could not be read: Permission denied"):
        read_document(tmp_path / "file")
    with pytest.raises(UnavailableError, match="could not be read: File name too long"):
        read_document(tmp_path / ("x" * 300))
