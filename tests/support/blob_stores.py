"""Empty stores of blobs, on a local folder and in memory; a test file imports the fixture."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from tallystick.core.digests import Digest


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store of blobs can be made."""
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    yield f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").store.clear()


def path_of(name: Digest) -> str:
    """Where a blob lies, as spec/blob.md says."""
    digits = name.removeprefix("sha256:")
    return f"blobs/{digits[:2]}/{digits}"


def change_blob(url: str, name: Digest, edit: Callable[[bytes], bytes]) -> bytes:
    """Put other bytes under the name of a blob; returns those that were there."""
    store, folder = fsspec.core.url_to_fs(url)
    was: bytes = store.cat_file(f"{folder}/{path_of(name)}")
    store.pipe_file(f"{folder}/{path_of(name)}", edit(was))
    return was


def flipped(data: bytes) -> bytes:
    """With another last bit."""
    return data[:-1] + bytes([data[-1] ^ 1])
