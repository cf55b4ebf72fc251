"""Bytes named by their digest: verified whenever they are read, whole or not there, on a folder and on fsspec."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, ClassVar, cast

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tallystick.core.digests import digest
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.formats.store import blobs as blobs_module
from tallystick.formats.store.blobs import Blobs, blob_digest
from tallystick.formats.store.remote_anchors import RemoteAnchors
from tests.support.blob_stores import change_blob, flipped, path_of, url as url

DATA = b"notches" * 1000
OTHER = b"splits" * 1000


def test_bytes_and_files_are_kept_under_their_digest(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OTHER)
    store = Blobs(url)
    assert list(store.digests()) == []
    names = [store.put(DATA), store.put(tmp_path / "file"), store.put(DATA)]
    assert names == [digest("blob", DATA), digest("blob", OTHER), digest("blob", DATA)]
    assert list(Blobs(url).digests()) == sorted({*names})
    assert (store.get(names[0]), store.size(names[1])) == (DATA, len(OTHER))
    store.fetch(names[1], tmp_path / "fetched", len(OTHER))
    assert (tmp_path / "fetched").read_bytes() == OTHER
    store.delete(names[0])
    store.delete(names[0])
    assert list(store.digests()) == [names[1]]


def test_the_page_says_where_a_blob_lies(tmp_path: Path) -> None:
    name = Blobs(str(tmp_path)).put(b"hello")
    assert name == "sha256:223a756ab0fcfdb84953515ee571296fa6b1f95a30710965641c75d2996985cb"
    assert (tmp_path / path_of(name)).read_bytes() == b"hello"
    assert Blobs(f"file://{tmp_path}").get(name) == b"hello"


@pytest.mark.parametrize("edit", [flipped, lambda data: data[:-1], lambda _: OTHER, lambda _: b""])
def test_other_bytes_under_a_name_are_refused(url: str, tmp_path: Path, edit: Callable[[bytes], bytes]) -> None:
    store = Blobs(url)
    name = store.put(DATA)
    change_blob(url, name, edit)
    target = tmp_path / "target"
    with pytest.raises(ProofError, match="damaged"):
        store.get(name)
    with pytest.raises(ProofError, match="damaged"):
        store.fetch(name, target, len(DATA))
    with pytest.raises(ProofError, match="damaged"):
        store.verify(name, len(DATA))
    assert not target.exists()
    assert not list(tmp_path.glob(".*"))
    assert store.put(DATA, again=True) == name
    assert store.get(name) == DATA


def test_a_missing_blob_is_said_to_be_missing(url: str, tmp_path: Path) -> None:
    store = Blobs(url)
    store.put(OTHER)
    name = blob_digest(DATA)
    assert store.size(name) is None
    with pytest.raises(UnavailableError, match=f"{name}: missing"):
        store.get(name)
    with pytest.raises(UnavailableError, match=f"{name}: missing"):
        store.fetch(name, tmp_path / "target", 10)
    assert not (tmp_path / "target").exists()


def test_no_more_is_read_than_the_reader_allows(url: str) -> None:
    store = Blobs(url)
    name = store.put(DATA)
    assert store.get(name, len(DATA)) == DATA
    with pytest.raises(UnavailableError, match="more than the 6999 bytes"):
        store.get(name, len(DATA) - 1)


def test_a_put_that_breaks_off_leaves_no_blob(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(file: IO[bytes]) -> Iterator[bytes]:
        yield file.read(3)
        raise OSError("the line is dead")

    store, name = Blobs(url), blob_digest(DATA)
    with monkeypatch.context() as patch:
        patch.setattr(blobs_module, "blob_digest", lambda _: name)
        patch.setattr(blobs_module, "_pieces", breaking)
        with pytest.raises(UnavailableError, match="could not be written: the line is dead"):
            store.put(DATA)
    assert (store.size(name), list(store.digests())) == (None, [])
    assert store.drop_drafts(0.0) == 0
    assert store.drop_drafts(2.0**40) == 1
    assert store.get(store.put(DATA)) == DATA


KILLED = """
import os, signal, sys
from pathlib import Path
from tallystick.formats.store import blobs
from tallystick.formats.store.blobs import _LocalFolder

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "writing":
    first = blobs.blob_digest(b"notches" * 1000)
    blobs.blob_digest, blobs.PIECE = lambda _: first, 100
    pieces = blobs._pieces
    blobs._pieces = lambda file: (each if at < 5 else die() for at, each in enumerate(pieces(file)))
else:
    _LocalFolder.move = die
blobs.Blobs(sys.argv[1]).put(b"notches" * 1000)
"""


@pytest.mark.parametrize("moment", ["writing", "moving"])
def test_a_killed_put_leaves_no_half_blob(tmp_path: Path, moment: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "drafts").iterdir())) == 1
    store = Blobs(str(tmp_path))
    assert list(store.digests()) == []
    assert store.get(store.put(DATA)) == DATA


def test_what_is_no_blob_is_not_listed(tmp_path: Path) -> None:
    name = Blobs(str(tmp_path)).put(DATA)
    (tmp_path / path_of(name)).with_name("notes.txt").write_bytes(b"")
    (tmp_path / "blobs/zz").mkdir()
    (tmp_path / "blobs/zz" / name.removeprefix("sha256:")).write_bytes(DATA)
    assert list(Blobs(str(tmp_path)).digests()) == [name]


def test_a_store_of_no_known_kind_and_a_file_that_is_gone_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="nope://x: no store"):
        Blobs("nope://x")
    with pytest.raises(UnavailableError, match="could not be read"):
        Blobs(url).put(tmp_path / "gone")


class Unreachable(MemoryFileSystem):  # type: ignore[misc]
    """A store whose library has errors of its own, as those of S3 have."""

    protocol = "unreachable"

    def info(self, path: str, **_: object) -> dict[str, object]:
        raise OwnError("no\nconnection")

    _open = ls = info


class OwnError(Exception):
    """Neither an `OSError` nor a `ValueError`."""


def test_a_store_that_is_not_reached_is_told_in_one_line() -> None:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    store = Blobs("unreachable://folder")
    for asked in (lambda: store.put(DATA), lambda: store.get(blob_digest(DATA)), lambda: list(store.digests())):
        with pytest.raises(UnavailableError, match=r"unreachable://folder: could not be .*OwnError: no connection"):
            asked()
    with pytest.raises(UnavailableError, match="could not be read: OwnError: no connection"):
        _ = RemoteAnchors("unreachable://folder").names


class Buckets(MemoryFileSystem):  # type: ignore[misc]
    """A store with buckets, which makes one for whoever makes a folder."""

    protocol = ("gs", "buckets")
    made: ClassVar[set[str]] = {"lab"}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.made.add(self._strip_protocol(path).split("/")[1])

    def _open(self, path: str, mode: str = "rb", **more: object) -> IO[bytes]:
        if self._strip_protocol(path).split("/")[1] not in self.made:
            raise FileNotFoundError("there is no such bucket")
        return cast("IO[bytes]", super()._open(path, mode, **more))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("buckets://").strip("/")


def test_no_bucket_is_made_that_nobody_asked_for() -> None:
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    with pytest.raises(UnavailableError, match="there is no such bucket"):
        Blobs("buckets://typo/blobs").put(DATA)
    store = Blobs("buckets://lab/blobs")
    assert store.get(store.put(DATA)) == DATA
    assert Buckets.made == {"lab"}
