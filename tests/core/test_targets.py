"""Where a result will go is tried first, and nothing is left of the trial."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import require_empty_folder, require_writable, require_writable_folder


def test_where_a_file_can_be_written_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    require_writable(tmp_path / "page.html")
    require_writable(tmp_path / "new/folder/page.html", makes_folders=True)
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path, says in (
        (tmp_path, "a folder; name a file to write"),
        (tmp_path / "no/page.html", "no: no such folder"),
        (tmp_path / "file/page.html", "file: no such folder"),
        (Path("/proc/page.html"), "could not be written"),
    ):
        with pytest.raises(UnavailableError, match=says):
            require_writable(path)
    with pytest.raises(UnavailableError, match="file: a file; name a folder"):
        require_writable(tmp_path / "file/deeper/page.html", makes_folders=True)
    with pytest.raises(UnavailableError, match="file: a file; name a folder"):
        require_writable_folder(tmp_path / "file")
    require_writable_folder(tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_for_something_new_is_empty_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    require_empty_folder(tmp_path / "empty")
    require_empty_folder(tmp_path / "new")
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="not an empty directory"):
            require_empty_folder(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file"]


def test_a_folder_that_is_read_only_is_named_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_writable_folder(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UnavailableError, match=r"is read-only for this user; choose another folder$"):
        require_writable_folder(tmp_path / "run")
