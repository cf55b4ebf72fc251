from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.digests import leaf_hash, tree_root
from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.formats.data import corpus as shards
from tallystick.formats.data.corpus import (
    Corpus,
    ShardFile,
    check_corpus,
    commit_corpus,
    hash_shards,
    leaves_path,
    list_shards,
    notes_path,
    read_corpus_commit,
    read_leaves,
    read_notes,
)
from tallystick.formats.data.openings import ChunkOpening, check_chunk, open_chunk

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "corpus" / "corpora.json").read_bytes())["corpora"]
MIB = 1 << 20


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write(
        root,
        {"a.txt": b"x", "d/b.txt": b"y" * (2 * MIB + 5), "d-e": b"z" * 3000, ".hidden": b"", "__pycache__/c": b"k"},
    )
    (root / "empty").mkdir()
    return root


@pytest.fixture
def commit(directory: Path) -> Path:
    return directory.parent / "commit.json"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were read, piece by piece."""
    names: list[str] = []
    hash_piece = shards._hash_piece

    def noted(piece: Any) -> bytes:
        names.extend([piece.file.name] if piece.known is None else [])
        return hash_piece(piece)

    monkeypatch.setattr(shards, "_hash_piece", noted)
    return names


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{len(vector['files'])} shards")
def test_vectors(tmp_path: Path, vector: dict[str, Any]) -> None:
    write(tmp_path / "data", {name: (text * times).encode() for name, (text, times) in vector["files"].items()})
    corpus = commit_corpus(tmp_path / "data", tmp_path / "commit.json")
    assert (tmp_path / "commit.json").read_text("utf-8") == vector["commit"]
    assert (corpus.corpus, corpus.commit.root.hex()) == (vector["digest"], vector["root"])
    for opening in vector["openings"]:
        shard = check_chunk(ChunkOpening.from_json(opening, "opening"), corpus.commit)
        assert open_chunk(tmp_path / "data", corpus, shard.name, opening["index"]).to_json() == opening


def test_each_shard_has_the_root_over_its_own_chunks(directory: Path, commit: Path) -> None:
    corpus = commit_corpus(directory, commit)
    assert [shard.name for shard in corpus.shards] == [".hidden", "__pycache__/c", "a.txt", "d-e", "d/b.txt"]
    content = (directory / "d/b.txt").read_bytes()
    leaves = [leaf_hash(content[at : at + MIB]) for at in range(0, len(content), MIB)]
    assert corpus.shards[-1].root == tree_root(leaves)
    assert read_leaves(commit, corpus)["d/b.txt"] == b"".join(leaves)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_digest_does_not_depend_on_threads_times_or_permissions(
    directory: Path, commit: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = commit_corpus(directory, commit)
    monkeypatch.setattr(shards, "PIECE_CHUNKS", 1)
    (directory / "a.txt").chmod(0o600)
    os.utime(directory / "a.txt", (1, 1))
    seen: list[int] = []
    files = list_shards(directory)
    found = tuple(each.shard for each in hash_shards(files, hashed=seen.append, threads=threads))
    assert Corpus.of(found) == corpus
    assert sum(seen) == corpus.size
    assert len(seen) == 7  # three pieces of the large shard, one of every other


def test_hashing_reads_only_a_little_ahead(tmp_path: Path, read: list[str]) -> None:
    write(tmp_path, {f"{number:03}": b"x" for number in range(100)})
    next(hash_shards(list_shards(tmp_path), threads=2))
    assert len(read) < 10


def test_what_was_hashed_is_not_read_again_unless_it_changed(directory: Path, commit: Path, read: list[str]) -> None:
    first = commit_corpus(directory, commit)
    assert len(read) == 5
    read.clear()
    assert commit_corpus(directory, commit) == first
    assert read == []
    assert commit_corpus(directory, commit, recheck=True) == first
    assert len(read) == 5
    read.clear()
    commit.unlink()
    write(directory, {"a.txt": b"w", "new": b"n"})
    assert commit_corpus(directory, commit) != first
    assert sorted(read) == ["a.txt", "new"]


def test_an_interrupted_commit_goes_on(
    directory: Path, commit: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(count: int) -> None:
        if count == 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit_corpus(directory, commit, hashed=interrupt)
    assert not commit.exists()
    read.clear()
    corpus = commit_corpus(directory, commit)
    assert sorted(set(read)) == ["d-e", "d/b.txt"]
    check_corpus(directory, corpus, {})


def test_a_damaged_note_is_not_believed(directory: Path, commit: Path, read: list[str]) -> None:
    corpus = commit_corpus(directory, commit)
    notes, known = notes_path(commit).read_bytes(), read_notes(notes_path(commit))
    read.clear()
    for place in range(0, len(notes), 60):
        damaged = notes[:place] + bytes([notes[place] ^ 1]) + notes[place + 1 :]
        notes_path(commit).write_bytes(damaged)
        left = read_notes(notes_path(commit))
        assert len(left) == 4
        assert left.items() <= known.items()
    notes_path(commit).write_bytes(notes[:-9])
    assert commit_corpus(directory, commit) == corpus
    assert len(read) == 1


def test_a_check_believes_no_note(directory: Path, commit: Path, read: list[str]) -> None:
    corpus = commit_corpus(directory, commit)
    read.clear()
    check_corpus(directory, corpus, {})
    assert len(read) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda root: (root / "a.txt").write_bytes(b"w"),
            "'a.txt' differs from the one .*, first in chunk 0 ",
        ),
        (lambda root: (root / "a.txt").write_bytes(b"longer"), "'a.txt' differs: 6 bytes, not 1"),
        (lambda root: (root / "d-e").unlink(), "'d-e' is missing"),
        (lambda root: (root / "extra").write_bytes(b""), "'extra' is not part of the commit"),
        (
            lambda root: (root / "d/b.txt").write_bytes(b"y" * MIB + b"n" + b"y" * (MIB + 4)),
            r"'d/b.txt' differs .*, first in chunk 1 \(bytes 1048576 to 2097151\)",
        ),
    ],
)
def test_a_changed_directory_is_refused_naming_the_first_shard_and_chunk(
    directory: Path, commit: Path, change: Callable[[Path], object], message: str
) -> None:
    corpus = commit_corpus(directory, commit)
    check_corpus(directory, corpus, read_leaves(commit, corpus))
    change(directory)
    with pytest.raises(ProofError, match=message):
        check_corpus(directory, corpus, read_leaves(commit, corpus))
    with pytest.raises(ProofError, match=message.split(",")[0].split(" .*")[0]):
        check_corpus(directory, corpus, {})


def test_leaves_that_are_not_of_the_shards_are_refused(directory: Path, commit: Path) -> None:
    corpus = commit_corpus(directory, commit)
    leaves = leaves_path(commit).read_bytes()
    leaves_path(commit).write_bytes(leaves[:40] + bytes([leaves[40] ^ 1]) + leaves[41:])
    with pytest.raises(ProofError, match=r"not the chunks of 'a\.txt'"):
        read_leaves(commit, corpus)


def test_a_file_that_changes_while_it_is_read_is_refused(directory: Path) -> None:
    listed = list_shards(directory)
    write(directory, {"a.txt": b"other"})
    with pytest.raises(UnavailableError, match=r"'a\.txt': changed while it was read"):
        list(hash_shards(listed))
    with pytest.raises(UnavailableError, match=r"'a\.txt': was cut short while it was read"):
        list(hash_shards(replace(file, size=file.size + 9) for file in listed if file.name == "a.txt"))
    (directory / "a.txt").unlink()
    (directory / "a.txt").symlink_to("d-e")
    with pytest.raises(UnavailableError, match=r"'a\.txt': Too many levels"):
        list(hash_shards(listed))
    assert len(list(hash_shards([file for file in listed if file.name != "a.txt"]))) == 4


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_links_pipes_and_sockets_are_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    place = Path("special")
    for make in (lambda: place.symlink_to("a.txt"), lambda: os.mkfifo(place), lambda: bind(place)):
        make()
        with pytest.raises(MalformedError, match="'special': a link, device, pipe or socket"):
            list_shards(directory)
        place.unlink()
    assert len(list_shards(directory)) == 5


@pytest.mark.parametrize(
    ("first", "second"),
    [("A", "a"), ("caf\u00e9", "cafe\u0301"), ("Dir/x", "dir/y"), ("stra\u00dfe", "STRASSE")],
)
def test_names_that_a_file_system_could_confuse_are_refused(tmp_path: Path, first: str, second: str) -> None:
    write(tmp_path, {first: b""})
    assert len(list_shards(tmp_path)) == 1
    write(tmp_path, {second: b""})
    with pytest.raises(MalformedError, match="only in case or form"):
        list_shards(tmp_path)


@pytest.mark.parametrize("name", [b"back\\slash", b"line\nfeed", b"latin-\xe9", b"C:x"])
def test_names_that_are_not_portable_are_refused(tmp_path: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    with pytest.raises(MalformedError, match="the name"):
        list_shards(tmp_path)


def test_nothing_to_commit_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        list_shards(tmp_path / "none")
    with pytest.raises(UnavailableError):
        read_corpus_commit(tmp_path / "commit.json")
    with pytest.raises(MalformedError, match="holds no file"):
        list_shards(tmp_path)


def test_a_commit_stands_outside_and_replaces_itself_and_nothing_else(directory: Path, commit: Path) -> None:
    corpus = commit_corpus(directory, commit)
    assert read_corpus_commit(commit) == commit_corpus(directory, commit) == corpus
    with pytest.raises(UsageError, match="inside"):
        commit_corpus(directory, directory / "d" / "commit.json")
    write(directory, {"a.txt": b"new"})
    with pytest.raises(UsageError, match="another commit"):
        commit_corpus(directory, commit)


def test_every_flipped_byte_of_a_commit_is_refused(directory: Path, commit: Path) -> None:
    data = commit_corpus(directory, commit).to_bytes()
    assert Corpus.from_bytes(data, "commit").to_bytes() == data
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(TallyError):
            Corpus.from_bytes(changed, "commit")


def test_a_chunk_is_shown_at_its_place_and_at_no_other(directory: Path, commit: Path) -> None:
    corpus = commit_corpus(directory, commit)
    opening = open_chunk(directory, corpus, "d/b.txt", 2)
    assert opening.chunk == b"y" * 5
    assert check_chunk(ChunkOpening.from_json(opening.to_json(), "opening"), corpus.commit) == corpus.shards[-1]
    for forged in (
        opening.model_copy(update={"index": 1}),
        opening.model_copy(update={"index": 3}),
        opening.model_copy(update={"chunk": b"n" * 5}),
        opening.model_copy(update={"proof": opening.proof[:-1]}),
        opening.model_copy(update={"proof": (*opening.proof[:-1], "00" * 32)}),
        opening.model_copy(update={"shard": opening.shard.model_copy(update={"index": 1})}),
        opening.model_copy(update={"shard": opening.shard.model_copy(update={"record": corpus.shards[3].to_bytes()})}),
        opening.model_copy(update={"shard": open_chunk(directory, corpus, "a.txt", 0).shard}),
    ):
        with pytest.raises(ProofError):
            check_chunk(forged, corpus.commit)


def test_a_chunk_that_cannot_be_shown_is_refused(directory: Path, commit: Path) -> None:
    corpus = commit_corpus(directory, commit)
    for name, index in (("d/b.txt", 3), (".hidden", 0), ("none", 0)):
        with pytest.raises(UsageError, match=r"does not exist|has no shard"):
            open_chunk(directory, corpus, name, index)
    write(directory, {"d-e": b"other"})
    with pytest.raises(ProofError, match="'d-e' differs"):
        open_chunk(directory, corpus, "d-e", 0)
    (directory / "d-e").unlink()
    with pytest.raises(UnavailableError, match="'d-e'"):
        open_chunk(directory, corpus, "d-e", 0)
    (directory / "d-e").mkdir()
    with pytest.raises(UnavailableError, match="'d-e'"):
        open_chunk(directory, corpus, "d-e", 0)


def test_a_shard_is_listed_with_an_identity_that_every_change_changes(directory: Path) -> None:
    def listed() -> dict[str, ShardFile]:
        return {file.name: file for file in list_shards(directory)}

    before = listed()
    assert before == listed()
    os.utime(directory / "a.txt", ns=(1, 1))
    changed = [name for name, file in listed().items() if file.identity != before[name].identity]
    assert changed == ["a.txt"]
