"""Manifests: what may stand in one, and that nothing gets out of a folder or past a digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.commitments import Digest, digest, encode
from tallystick.disputes.opened import Manifest, fetch, files_of, manifest_digest, publish
from tallystick.disputes.opened import manifest as limits
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError

BLOB = digest("blob", b"hello")


class MemoryBoard:
    """A board that keeps everything, and can be made to lie."""

    def __init__(self) -> None:
        self.blobs: dict[Digest, bytes] = {}

    def put(self, data: bytes) -> Digest:
        self.blobs[digest("blob", data)] = data
        return digest("blob", data)

    def get(self, name: Digest) -> bytes:
        if name not in self.blobs:
            raise UnavailableError(f"{name}: not at the board")
        return self.blobs[name]


def raw(files: object, **changes: object) -> bytes:
    return encode({"files": files, "kind": "manifest", "version": 1, **changes})  # type: ignore[dict-item]


def test_what_was_published_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "b.bin").write_bytes(b"\0\1")
    files: dict[str, bytes | Path] = {
        "opening.json": b"{}",
        "tensors/a.safetensors": b"abc",
        "b.bin": tmp_path / "source" / "b.bin",
    }
    board = MemoryBoard()
    name = publish(files, board)
    assert name == manifest_digest(files)
    folder = fetch(name, board, tmp_path / "fetched")
    assert {key: path.read_bytes() for key, path in files_of(folder).items()} == {
        "b.bin": b"\0\1",
        "opening.json": b"{}",
        "tensors/a.safetensors": b"abc",
    }
    assert publish(files_of(folder), MemoryBoard()) == name


def test_equal_files_are_kept_once(tmp_path: Path) -> None:
    board = MemoryBoard()
    publish({"a": b"same", "b": b"same"}, board)
    assert len(board.blobs) == 2


def test_an_empty_folder_has_a_manifest_too(tmp_path: Path) -> None:
    board = MemoryBoard()
    assert files_of(fetch(publish({}, board), board, tmp_path / "empty")) == {}


BAD_NAMES = {
    "absolute": "/etc/passwd",
    "parent": "../up",
    "parent-inside": "a/../../up",
    "current": "./a",
    "empty": "",
    "empty-part": "a//b",
    "trailing-slash": "a/",
    "hidden": ".bashrc",
    "hidden-inside": "a/.git",
    "backslash": "a\\b",
    "drive": "C:a",
    "nul": "a\0b",
    "line-feed": "a\nb",
    "umlaut": "ä",
    "trailing-dot": "a.",
    "space": "a b",
    "long": "a" * 256,
    "deep": "/".join("abcdefghi"),
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_name_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(MalformedError, match="files"):
        Manifest.from_bytes(raw({name: BLOB}), "manifest")
    with pytest.raises(UsageError, match="no name of a file"):
        publish({name: b""}, MemoryBoard())


@pytest.mark.parametrize("name", ["a", "a/b", "tensors/0f.safetensors", "calls/1.inputs.safetensors", "a-b_c.d", "_a"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert Manifest.from_bytes(raw({name: BLOB}), "manifest").files == {name: BLOB}


BAD_MANIFESTS = {
    "no-json": b"{",
    "another-kind": raw({}, kind="claim"),
    "another-version": raw({}, version=2),
    "no-digest": raw({"a": "sha256:00"}),
    "unknown-key": raw({}, more=1),
    "not-canonical": json.dumps({"files": {}, "kind": "manifest", "version": 1}).encode(),
    "file-and-folder": raw({"a": BLOB, "a/b": BLOB}),
    "upper-and-lower-case": raw({"a": BLOB, "A": BLOB}),
    "files-as-list": raw(["a"]),
    "truth-as-version": raw({}, version=True),
}


@pytest.mark.parametrize("data", BAD_MANIFESTS.values(), ids=BAD_MANIFESTS)
def test_another_document_is_no_manifest(data: bytes, tmp_path: Path) -> None:
    board = MemoryBoard()
    with pytest.raises(MalformedError, match="manifest"):
        fetch(board.put(data), board, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"f{number}": BLOB for number in range(limits.FILES_MAX + 1)}
    with pytest.raises(MalformedError, match="files"):
        Manifest.from_bytes(raw(files), "manifest")
    with pytest.raises(UsageError, match="files, more than"):
        publish(dict.fromkeys(files, b""), MemoryBoard())
    monkeypatch.setattr(limits, "BLOB_BYTES_MAX", 4)
    with pytest.raises(UsageError, match="a: 5 bytes, more than the 4"):
        publish({"a": b"12345"}, MemoryBoard())


def test_a_folder_that_is_too_large_is_not_laid_out(tmp_path: Path) -> None:
    board = MemoryBoard()
    name = publish({"a": b"12345", "b": b"6789"}, board)
    with pytest.raises(MalformedError, match="more than the 8 bytes"):
        fetch(name, board, tmp_path / "fetched", bytes_max=8)
    assert not (tmp_path / "fetched").exists()
    assert fetch(name, board, tmp_path / "fetched", bytes_max=9).is_dir()


def test_a_board_that_lies_or_lacks_something_is_seen(tmp_path: Path) -> None:
    board = MemoryBoard()
    name = publish({"a": b"honest"}, board)
    kept = board.blobs.pop(digest("blob", b"honest"))
    with pytest.raises(UnavailableError, match="not at the board"):
        fetch(name, board, tmp_path / "fetched")
    board.blobs[digest("blob", b"honest")] = b"forged"
    with pytest.raises(ProofError, match="other bytes"):
        fetch(name, board, tmp_path / "fetched")
    board.blobs[digest("blob", b"honest")] = kept
    assert (fetch(name, board, tmp_path / "fetched") / "a").read_bytes() == b"honest"


def test_hidden_files_and_links_of_a_folder_are_not_published(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_bytes(b"key")
    (tmp_path / "run" / "claim.json").write_bytes(b"{}")
    (tmp_path / "run" / ".draft").write_bytes(b"")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "secret")
    assert list(files_of(tmp_path / "run")) == ["claim.json"]


def test_a_missing_file_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"gone\.json: not there"):
        publish({"gone.json": tmp_path / "gone.json"}, MemoryBoard())


def test_the_example_of_the_page_is_what_the_code_does() -> None:
    page = (Path(__file__).parents[3] / "spec" / "manifest.md").read_text()
    files = {"operator.json": b"{}", "tensors/00.safetensors": b""}
    manifest = Manifest(files={name: digest("blob", data) for name, data in files.items()})
    assert manifest.to_bytes().decode() in "".join(page.split())
    assert manifest_digest(files) in page
