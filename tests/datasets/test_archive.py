from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.datasets import archive
from tallystick.datasets.archive import (
    check_directory,
    check_tar,
    commit_directory,
    commit_path,
    read_commit,
    write_commit,
)
from tallystick.datasets.artifact import ArtifactCommit
from tallystick.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError

VECTORS = Path(__file__).parents[2] / "vectors"
MANIFEST = json.loads((VECTORS / "archives" / "manifest.json").read_bytes())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write(root, {"a.txt": b"x", "d/b.txt": b"y", "d-e": b"z" * 3000, ".hidden": b"", "__pycache__/c": b"kept"})
    (root / "empty").mkdir()
    return root


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def tar_of(root: Path) -> bytes:
    """The archive as the standard library writes it, an independent implementation of the format."""
    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    names += [f"{path.relative_to(root).as_posix()}/" for path in root.rglob("*") if is_empty_folder(path)]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(names, key=str.encode):
            info = tarfile.TarInfo(name.removesuffix("/"))
            info.type, info.mode = (tarfile.DIRTYPE, 0o755) if name.endswith("/") else (tarfile.REGTYPE, 0o644)
            content = b"" if name.endswith("/") else (root / name).read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def test_a_directory_and_its_tar_by_the_standard_library_have_one_commit(directory: Path) -> None:
    commit = commit_directory(directory)
    tar = tar_of(directory)
    assert commit == check_tar(tar)
    assert commit.size == len(tar)
    assert (commit.files, commit.chunks) == (5, 1)


def test_nothing_is_left_out_because_of_its_name(directory: Path) -> None:
    names = [member.name for member in commit_directory(directory).members]
    assert names == [".hidden", "__pycache__/c", "a.txt", "d-e", "d/b.txt", "empty/"]


def test_a_long_name_is_split_as_the_standard_library_splits_it(tmp_path: Path) -> None:
    write(tmp_path, {f"{'p' * 90}/{'q' * 60}/{'r' * 80}": b"deep"})
    assert commit_directory(tmp_path) == check_tar(tar_of(tmp_path))


def test_a_name_that_no_header_holds_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"p" * 101: b""})
    with pytest.raises(MalformedError, match="does not fit"):
        commit_directory(tmp_path)


def test_metadata_is_no_part_of_the_commit(directory: Path) -> None:
    before = commit_directory(directory)
    os.utime(directory / "a.txt", (1, 1))
    (directory / "a.txt").chmod(0o600)
    assert commit_directory(directory) == before


def test_files_larger_than_a_chunk_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "READ_BYTES", 70_001)
    write(tmp_path, {"big": bytes(range(256)) * 10_000, "small": b"s"})
    commit = commit_directory(tmp_path)
    assert commit.chunks == 3
    assert commit == check_tar(tar_of(tmp_path))


def test_an_empty_directory_has_a_commit(tmp_path: Path) -> None:
    assert commit_directory(tmp_path) == check_tar(bytes(10_240))


@pytest.mark.parametrize("name", sorted(name for name in MANIFEST if name.endswith(".tar")))
def test_published_archives_are_judged_as_their_manifest_says(name: str) -> None:
    path = VECTORS / "archives" / name
    if MANIFEST[name]["expect"] == "accept":
        assert [member.name for member in check_tar(path).members] == ["a.txt", "d/b.txt"]
        return
    with pytest.raises(MalformedError):
        check_tar(path)


@pytest.mark.parametrize("name", sorted(name for name in MANIFEST if name.endswith(".zip")))
def test_a_zip_is_no_tar(name: str) -> None:
    with pytest.raises(MalformedError):
        check_tar(VECTORS / "archives" / name)


def test_links_pipes_and_sockets_in_a_directory_are_refused(directory: Path) -> None:
    place = directory / "special"
    makers = (
        lambda: place.symlink_to("a.txt"),
        lambda: place.symlink_to("/"),
        lambda: os.mkfifo(place),
        lambda: bind(place),
    )
    for make in makers:
        make()
        with pytest.raises(MalformedError, match="'special': a link, device, pipe or socket"):
            commit_directory(directory)
        place.unlink()
    assert commit_directory(directory).files == 5


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("first", "second"),
    [("A", "a"), ("caf\u00e9", "cafe\u0301"), ("Dir/x", "dir/y"), ("stra\u00dfe", "STRASSE")],
)
def test_names_that_a_file_system_could_confuse_are_refused(tmp_path: Path, first: str, second: str) -> None:
    write(tmp_path, {first: b""})
    assert commit_directory(tmp_path).files == 1
    write(tmp_path, {second: b""})
    with pytest.raises(MalformedError, match="only in case or form"):
        commit_directory(tmp_path)


@pytest.mark.parametrize("name", [b"back\\slash", b"line\nfeed", b"latin-\xe9", b"C:x"])
def test_names_that_are_not_portable_are_refused(tmp_path: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    with pytest.raises(MalformedError, match="the name"):
        commit_directory(tmp_path)


def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        commit_directory(tmp_path / "none")
    with pytest.raises(UnavailableError):
        check_tar(tmp_path / "none.tar")
    with pytest.raises(UnavailableError):
        read_commit(tmp_path / "commit.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "a.txt").write_bytes(b"w"), "'a.txt' differs: SHA-256"),
        (lambda root: (root / "a.txt").write_bytes(b"longer"), "'a.txt' differs: 6 bytes, not 1"),
        (lambda root: (root / "d-e").unlink(), "'d-e' is missing"),
        (lambda root: (root / "extra").write_bytes(b""), "'extra' is not part of the commit"),
        (lambda root: (root / "empty").rmdir(), "'empty/' is missing"),
    ],
)
def test_a_changed_directory_is_refused_naming_the_first_file(
    directory: Path, change: Callable[[Path], object], message: str
) -> None:
    commit = commit_directory(directory)
    check_directory(directory, commit)
    change(directory)
    with pytest.raises(ProofError, match=message):
        check_directory(directory, commit)


def test_a_commit_is_written_beside_the_directory_and_never_inside(directory: Path) -> None:
    commit = commit_directory(directory)
    path = write_commit(commit, directory)
    assert path == commit_path(directory) == directory.parent / "commit.json"
    assert read_commit(path) == commit
    with pytest.raises(UsageError, match="inside"):
        write_commit(commit, directory, directory / "d" / "commit.json")


def test_a_commit_replaces_itself_and_nothing_else(directory: Path) -> None:
    write_commit(commit_directory(directory), directory)
    write_commit(commit_directory(directory), directory)
    (directory / "a.txt").write_bytes(b"new")
    with pytest.raises(UsageError, match="another commit"):
        write_commit(commit_directory(directory), directory)


def test_every_flipped_byte_of_a_commit_is_refused(directory: Path) -> None:
    data = commit_directory(directory).to_bytes()
    assert ArtifactCommit.from_bytes(data).to_bytes() == data
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(TallyError):
            check_directory(directory, ArtifactCommit.from_bytes(changed))


def test_every_flipped_byte_of_a_tar_changes_its_commit_or_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"content", "b/c": b""})
    tar = tar_of(tmp_path)
    commit = check_tar(tar)
    for place in range(3584):
        changed = tar[:place] + bytes([tar[place] ^ 1]) + tar[place + 1 :]
        try:
            assert check_tar(changed).digest != commit.digest
        except MalformedError:
            continue


@given(st.binary(max_size=2048))
@settings(deadline=None, max_examples=60)
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes) -> None:
    with pytest.raises(MalformedError):
        check_tar(data)


@given(st.integers(0, 10_240))
@settings(deadline=None, max_examples=40)
def test_a_truncated_tar_is_refused(length: int) -> None:
    tar = (VECTORS / "archives" / "ok_plain.tar").read_bytes()
    if length == len(tar):
        assert check_tar(tar).files == 2
        return
    with pytest.raises(MalformedError):
        check_tar(tar[:length])


def test_trailing_bytes_after_a_tar_are_refused() -> None:
    tar = (VECTORS / "archives" / "ok_plain.tar").read_bytes()
    for extra in (b"\0", bytes(512), bytes(10_240), b"x" * 10_240):
        with pytest.raises(MalformedError):
            check_tar(tar + extra)


def test_published_vectors_hold(tmp_path: Path) -> None:
    vectors = json.loads((VECTORS / "artifact" / "artifacts.json").read_bytes())["artifacts"]
    for number, vector in enumerate(vectors):
        root = tmp_path / str(number)
        root.mkdir()
        write(root, {name: text.encode() for name, text in vector["files"].items() if not name.endswith("/")})
        for name in vector["files"]:
            if name.endswith("/"):
                (root / name).mkdir(parents=True)
        commit = commit_directory(root)
        assert (commit.size, commit.root.hex(), commit.digest) == (
            vector["bytes"],
            vector["root"],
            vector["digest"],
        )
