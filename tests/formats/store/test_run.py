"""The parts of a run directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.store.run import RunDirectory


def test_a_blob_is_read_back_by_its_digest(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    name = run.write_blob(b"hints")
    assert name == digest("blob", b"hints") == run.write_blob(b"hints")
    assert run.read_blob(name) == b"hints"
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [name.removeprefix("sha256:")]


def test_a_blob_with_other_bytes_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    name = run.write_blob(b"hints")
    next((tmp_path / "blobs").iterdir()).write_bytes(b"other")
    with pytest.raises(ProofError, match="does not hold the bytes it is named after"):
        run.read_blob(name)


def test_a_missing_blob_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        RunDirectory(tmp_path).read_blob(digest("blob", b"none"))


def test_documents_are_bound_to_each_other(honest: Path) -> None:
    run = RunDirectory(honest)
    assert run.claim().spec == run.spec().identity
    assert run.claim().environment == run.environment().digest_as("environment")
    assert run.claim().data == run.spec().data_root


def test_a_run_can_be_moved_elsewhere(honest: Path, tmp_path: Path) -> None:
    moved = RunDirectory(Path(shutil.copytree(honest, tmp_path / "elsewhere")))
    assert moved.claim() == RunDirectory(honest).claim()
    assert str(honest) not in moved.spec_path.read_text() + moved.environment_path.read_text()


@pytest.mark.parametrize("name", ["claim", "spec", "environment"])
def test_a_missing_or_malformed_document_is_named(run: Path, name: str) -> None:
    directory = RunDirectory(run)
    path = run / f"{name}.json"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MalformedError, match=rf"{name}\.json"):
        getattr(directory, name)()
    path.unlink()
    with pytest.raises(UnavailableError, match=rf"{name}\.json"):
        getattr(directory, name)()
