"""Manifests: what may stand in one, and that nothing gets out of a folder or past a digest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.disputes.coordinators import coordinator as limits
from tallystick.disputes.coordinators.coordinator import Manifest, blobs_of, fetch, files_of, manifest_digest, publish

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
    "file-and-outer-folder": raw({"a": BLOB, "a/b/c": BLOB}),
    "folders": raw({f"{number}/a": BLOB for number in range(4097)}),
    "upper-and-lower-case": raw({"a": BLOB, "A": BLOB}),
    "files-as-list": raw(["a"]),
    "no-part": raw({"a": []}),
    "one-part": raw({"a": [BLOB]}),
    "parts": raw({"a": [BLOB] * 65}),
    "parts-in-parts": raw({"a": [BLOB, [BLOB, BLOB]]}),
    "bytes-in-parts": raw({"a": [BLOB] * 64, "b": [BLOB] * 3}),
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


def test_the_most_that_fits_is_taken() -> None:
    files: dict[str, object] = {f"{number}/a": BLOB for number in range(4096)}
    assert len(Manifest.from_bytes(raw({**files, "a": [BLOB] * 64, "b": [BLOB] * 2}), "manifest").files) == 4098


@pytest.fixture
def small_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob has 1,024 bytes at most."""
    monkeypatch.setattr(limits, "BLOB_BYTES_MAX", 1024)


@pytest.mark.usefixtures("small_blobs")
def test_a_file_that_is_no_blob_is_several(tmp_path: Path) -> None:
    """A tensor of more than 64 MiB has to be opened like every other."""
    content = {"a": bytes(1024), "b": bytes(1023) + b"ab", "c": b"c" * 3072, "d": b""}
    (tmp_path / "c").write_bytes(content["c"])
    board = MemoryBoard()
    name = publish({**content, "c": tmp_path / "c"}, board)
    assert name == manifest_digest(content)
    manifest = Manifest.from_bytes(board.get(name), "manifest")
    first, last, whole, empty = (digest("blob", data) for data in (bytes(1023) + b"a", b"b", b"c" * 1024, b""))
    assert manifest.files == {"a": digest("blob", bytes(1024)), "b": (first, last), "c": (whole,) * 3, "d": empty}
    assert {*blobs_of(manifest), name} == board.blobs.keys()
    fetched = fetch(name, board, tmp_path / "fetched")
    assert {key: path.read_bytes() for key, path in files_of(fetched).items()} == content


@pytest.mark.usefixtures("small_blobs")
@pytest.mark.parametrize(
    "parts", [(1023, 1), (1024, 0), (1025, 1), (1024, 1024, 1)], ids=["short", "empty", "long", "exact"]
)
def test_a_file_has_one_form_of_parts(tmp_path: Path, parts: tuple[int, ...]) -> None:
    board = MemoryBoard()
    name = board.put(raw({"a": [board.put(bytes(size)) for size in parts]}))
    if parts == (1024, 1024, 1):
        assert (fetch(name, board, tmp_path / "fetched") / "a").read_bytes() == bytes(2049)
        return
    with pytest.raises(MalformedError, match="bytes"):
        fetch(name, board, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_what_nobody_would_fetch_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FETCHED_BYTES_MAX", 8)
    board = MemoryBoard()
    for files, said in (({"a": b"12345", "b": b"6789"}, "9 bytes"), ({"a": b"", "A": b""}, "upper and lower")):
        with pytest.raises(UsageError, match=said):
            publish(files, board)
    assert board.blobs == {}
    publish({"a": b"12345", "b": b"678"}, board)
    assert len(board.blobs) == 3


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "copies"])
@pytest.mark.usefixtures("small_blobs")
def test_a_blob_under_many_names_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Else 64 KiB at the board fill the disk of everybody who looks; where there are no links, the total bounds it."""
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    board = MemoryBoard()
    blob, part = board.put(bytes(900)), board.put(bytes(1024))
    listed = {f"{number // 4}/{number}": [part, blob] if number % 2 else blob for number in range(8)}
    name = board.put(raw(listed))
    total = 4 * 900 + 4 * 1924
    with pytest.raises(MalformedError, match="come to more"):
        fetch(name, board, tmp_path / "fetched", bytes_max=total - 1)
    fetched = fetch(name, board, tmp_path / "fetched", bytes_max=total)
    assert {key: path.stat().st_size for key, path in files_of(fetched).items()} == {
        key: 1924 if isinstance(each, list) else 900 for key, each in listed.items()
    }
    assert len({path.stat().st_ino for path in files_of(fetched).values()}) == (2 if has_links else 8)


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


def test_the_example_in_parts_is_what_the_code_does() -> None:
    page = (Path(__file__).parents[3] / "spec" / "manifest.md").read_text()
    parts = [digest("blob", bytes(64 << 20)), digest("blob", b"\0")]
    assert Manifest(files={"zeros.bin": tuple(parts)}).to_bytes().decode() in "".join(page.split())
    assert manifest_digest({"zeros.bin": bytes((64 << 20) + 1)}) in page
