from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.formats.data.corpus import Corpus, read_corpus_commit
from tallystick.formats.data.openings import check_record, open_record
from tallystick.formats.data.preparation import (
    CorpusCheck,
    LibraryVersions,
    check_stated_tokenizer,
    open_dataset,
    prepare_corpus,
)
from tallystick.formats.data.samples import TokenDataset
from tallystick.formats.data.tokenizer import (
    BytesEncoder,
    Encoder,
    ReadEncoder,
    batches,
    commit_tokens,
    read_tokens,
    write_tokens,
)
from tallystick.formats.data.tokens import (
    CorpusTokens,
    JoinedTokens,
    ShardTokens,
    files_of_windows,
    open_corpus_tokens,
    token_path,
)
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import Recipe

SHARDS = {
    "a.jsonl": b'{"text":"one notch"}\n{"text":"two notches"}\n',
    "b.jsonl": b"\n",
    "d/c.txt": b"a stick was notched, then split\n" * 4,
}
TEXT = "one notch\ntwo notches\n" + "a stick was notched, then split\n" * 4 + "\n"
FILE = b"a tokenizer made elsewhere"

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "tokens" / "corpus.json").read_bytes())["corpora"]


class Shifted:
    """Tokens that are bytes and 3 more, with 2 behind each document."""

    vocabulary = 260

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([token for text in texts for token in [*(byte + 3 for byte in text.encode()), 2]], np.uint32)


class Other(Shifted):
    """Another version, which makes other tokens."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return super().encode(texts) ^ 1


def read_encoder(content: bytes, end: str) -> Shifted:
    assert (content, end) == (FILE, "<end>")
    return Shifted()


SAME = LibraryVersions("1", "1")
ELSEWHERE = {"kind": "huggingface", "digest": str(digest("blob", FILE)), "end": "<end>"}


@pytest.fixture
def recipe(recipe_of: Callable[..., Recipe]) -> Callable[..., Recipe]:
    return lambda tokenizer={"kind": "bytes"}: recipe_of({"data": {"kind": "corpus"}, "tokenizer": tokenizer})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name, content in SHARDS.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "corpus"


@pytest.fixture
def run(tmp_path: Path, corpus: Path, recipe: Callable[..., Recipe]) -> tuple[Path, DatasetCommitment]:
    return tmp_path / "run", prepare_corpus(recipe(), corpus, None, tmp_path / "run", read_encoder)


@pytest.fixture
def elsewhere(tmp_path: Path, corpus: Path, recipe: Callable[..., Recipe]) -> tuple[Path, DatasetCommitment]:
    (tmp_path / "tokenizer.json").write_bytes(FILE)
    made = prepare_corpus(recipe(ELSEWHERE), corpus, tmp_path / "tokenizer.json", tmp_path / "else", read_encoder)
    return tmp_path / "else", made


def check(
    run: tuple[Path, DatasetCommitment],
    corpus: Path,
    recipe: Recipe,
    versions: LibraryVersions = SAME,
    read: ReadEncoder = read_encoder,
) -> None:
    opened = CorpusCheck.open(run[0], corpus, run[1], recipe, read, versions)
    opened.check(range(len(opened.corpus.shards)))


def test_a_corpus_opens_as_one_row_of_tokens(run: tuple[Path, DatasetCommitment]) -> None:
    dataset = open_dataset(*run, sequence=8)
    assert isinstance(dataset, TokenDataset)
    assert dataset.tokens.size == run[1].count == len(TEXT.encode())
    every = np.arange(dataset.tokens.size)
    assert bytes(dataset.tokens[every].astype(np.uint8)).decode() == TEXT
    batch = dataset.batch(np.array([2, 0]))  # the first of them reaches from one shard into the next
    assert bytes(batch["inputs"][0].astype(np.uint8)).decode() == TEXT[16:24]
    assert bytes(batch["targets"][1].astype(np.uint8)).decode() == TEXT[1:9]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{len(vector['files'])} shards")
def test_vectors(tmp_path: Path, vector: dict[str, Any], recipe: Callable[..., Recipe]) -> None:
    for name, texts in vector["files"].items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{{"text":"{text}"}}\n' for text in texts), "utf-8")
    made = prepare_corpus(recipe(), tmp_path / "corpus", None, tmp_path / "run", read_encoder)
    assert made.to_json() == vector["data"]
    assert str(made.root) == vector["data_root"]
    assert (tmp_path / "run" / "tokens.json").read_text() == vector["tokens_json"]


def test_the_commitment_reads_back_and_shows_its_shards(run: tuple[Path, DatasetCommitment]) -> None:
    folder, commitment = run
    assert DatasetCommitment.from_json(commitment.to_json(), "data") == commitment
    opening = open_record(folder, commitment, 2)
    check_record(opening, commitment.source)
    assert opening.record == read_corpus_commit(folder / "corpus.json").shards[2].to_bytes()


def test_the_tokens_of_a_shard_are_bound_to_that_shard(run: tuple[Path, DatasetCommitment]) -> None:
    corpus = read_corpus_commit(run[0] / "corpus.json")
    tokens = CorpusTokens.from_bytes((run[0] / "tokens.json").read_bytes(), "tokens.json")
    assert tokens.commit(corpus) == run[1].tokens
    swapped = Corpus.of((corpus.shards[0].model_copy(update={"name": "0.jsonl"}), *corpus.shards[1:]))
    assert tokens.commit(swapped) != run[1].tokens
    with pytest.raises(ProofError, match="tokens of 2 shards, not 3"):
        tokens.model_copy(update={"shards": tokens.shards[:2]}).commit(corpus)


def test_tokens_made_elsewhere_end_each_document(
    elsewhere: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe]
) -> None:
    tokens, vocabulary = read_tokens(token_path(elsewhere[0], 0))
    assert vocabulary == 260
    assert tokens.tolist() == Shifted().encode(["one notch", "two notches"]).tolist()
    check(elsewhere, corpus, recipe(ELSEWHERE))
    check_stated_tokenizer(*elsewhere, recipe(ELSEWHERE).tokenizer)
    with pytest.raises(ProofError, match="not the tokenizer that the recipe states"):
        check_stated_tokenizer(*elsewhere, recipe().tokenizer)


def test_a_recipe_may_state_a_larger_vocabulary(tmp_path: Path, corpus: Path, recipe: Callable[..., Recipe]) -> None:
    larger = recipe({"kind": "bytes", "vocabulary": 320})
    run = tmp_path / "run", prepare_corpus(larger, corpus, None, tmp_path / "run", read_encoder)
    assert run[1].tokens is not None
    assert run[1].tokens.vocabulary == 320
    check(run, corpus, larger)
    with pytest.raises(ProofError, match="a vocabulary of 320"):
        check(run, corpus, recipe())


def test_what_cannot_be_prepared_is_refused(tmp_path: Path, corpus: Path, recipe: Callable[..., Recipe]) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.path"):
        prepare_corpus(recipe(ELSEWHERE), corpus, None, tmp_path / "run", read_encoder)
    (tmp_path / "tokenizer.json").write_bytes(b"another")
    with pytest.raises(MalformedError, match="not the tokenizer that the recipe states"):
        prepare_corpus(recipe(ELSEWHERE), corpus, tmp_path / "tokenizer.json", tmp_path / "run", read_encoder)
    (corpus / "README.md").write_text("about")
    with pytest.raises(MalformedError, match=r"'README\.md': a shard with documents ends with"):
        prepare_corpus(recipe(), corpus, None, tmp_path / "run", read_encoder)


@pytest.mark.parametrize("file", ["corpus.json", "tokens.json", "tokenizer.json", "tokens/00000002.bin"])
def test_every_changed_byte_of_the_run_is_refused(run: tuple[Path, DatasetCommitment], file: str) -> None:
    folder, commitment = run
    data = (folder / file).read_bytes()
    for place in np.linspace(0, len(data) - 1, 12, dtype=int):
        (folder / file).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(TallyError):
            open_dataset(folder, commitment)
    (folder / file).write_bytes(data)
    open_dataset(folder, commitment)
    (folder / file).unlink()
    with pytest.raises(UnavailableError, match=Path(file).name):
        open_dataset(folder, commitment)


def test_a_changed_document_names_the_shard_and_a_missing_shard_is_unavailable(
    run: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe]
) -> None:
    check(run, corpus, recipe())
    (corpus / "a.jsonl").write_bytes(b'{"text":"two notches"}\n{"text":"one notch"}\n')
    with pytest.raises(ProofError, match=r"'a\.jsonl' differs from the one committed to, first in chunk 0 "):
        check(run, corpus, recipe())
    (corpus / "a.jsonl").unlink()
    with pytest.raises(UnavailableError, match=r"'a\.jsonl': not there"):
        check(run, corpus, recipe())


def recommit(run: tuple[Path, DatasetCommitment], tokens: dict[int, Any]) -> tuple[Path, DatasetCommitment]:
    """The run with other tokens of some shards, consistent in itself."""
    folder, commitment = run
    listed = CorpusTokens.from_bytes((folder / "tokens.json").read_bytes(), "tokens.json")
    shards = list(listed.shards)
    for index, row in tokens.items():
        write_tokens(token_path(folder, index), np.array(row), listed.vocabulary)
        made = commit_tokens(*read_tokens(token_path(folder, index)))
        shards[index] = ShardTokens(count=made.count, root=made.root)
    listed = listed.model_copy(update={"shards": tuple(shards)})
    (folder / "tokens.json").write_bytes(listed.to_bytes())
    tokens = listed.commit(read_corpus_commit(folder / "corpus.json"))
    return folder, commitment.model_copy(update={"tokens": tokens})


FORGED = {
    "one token": lambda row: [*row[:5], row[5] ^ 1, *row[6:]],
    "a token less": lambda row: row[:-1],
    "a token more": lambda row: [*row, 10],
    "documents swapped": lambda row: list(b"two notches\none notch\n"),
    "no token": lambda row: [],
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_forged_tokens_are_found_and_name_the_shard(
    run: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe], forge: Callable[[Any], Any]
) -> None:
    row = read_tokens(token_path(run[0], 0))[0].tolist()
    forged = recommit(run, {0: forge(row)})
    open_dataset(*forged)
    with pytest.raises(ProofError, match=r"'a\.jsonl': (token \d+ is|\d+ tokens, but the documents give)"):
        check(forged, corpus, recipe())
    check(recommit(forged, {0: row}), corpus, recipe())


def test_tokens_of_two_shards_cannot_change_places(
    run: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe]
) -> None:
    rows = {index: read_tokens(token_path(run[0], index))[0].tolist() for index in (0, 2)}
    with pytest.raises(ProofError, match=r"'a\.jsonl': token 0 is"):
        check(recommit(run, {0: rows[2], 2: rows[0]}), corpus, recipe())


def test_other_tokens_of_another_version_of_the_library_decide_nothing(
    elsewhere: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe]
) -> None:
    def other(content: bytes, end: str) -> Encoder:
        return Other()

    versions = LibraryVersions("2", "1")
    with pytest.raises(UnavailableError, match=r"'a\.jsonl': token 0 .* with tokenizers 2; the run states 1, and"):
        check(elsewhere, corpus, recipe(ELSEWHERE), versions, other)
    with pytest.raises(UnavailableError, match="the run states unknown"):
        check(elsewhere, corpus, recipe(ELSEWHERE), LibraryVersions(), other)
    with pytest.raises(ProofError, match="token 0 is"):
        check(elsewhere, corpus, recipe(ELSEWHERE), SAME, other)
    check(elsewhere, corpus, recipe(ELSEWHERE), replace(SAME, library="2"))


def test_the_bytes_are_the_same_in_every_version_of_every_library(
    run: tuple[Path, DatasetCommitment], corpus: Path, recipe: Callable[..., Recipe]
) -> None:
    forged = recommit(run, {0: [1, 2, 3]})
    with pytest.raises(ProofError, match="token 0 is"):
        check(forged, corpus, recipe(), replace(SAME, library="2"))


def test_documents_are_read_a_little_at_a_time() -> None:
    assert [len(batch) for batch in batches("x" * 100_000 for _ in range(7))] == [3, 3, 1]
    assert list(batches([])) == []
    assert BytesEncoder().encode([]).size == 0


def test_joined_tokens_are_one_row_in_any_shape() -> None:
    parts = [np.array(row, np.uint16) for row in ([1, 2, 3], [], [4], [5, 6])]
    joined = JoinedTokens(np.cumsum([0, *map(len, parts)]), parts.__getitem__)
    assert joined.size == 6
    assert joined[np.array([[5, 0], [3, 2]])].tolist() == [[6, 1], [4, 3]]


def test_the_files_of_a_few_windows_are_enough_for_them(run: tuple[Path, DatasetCommitment], tmp_path: Path) -> None:
    whole, few = open_dataset(*run, sequence=8), tmp_path / "few"
    for path in files_of_windows(run[0], [0, 1], 8):
        (few / path.relative_to(run[0])).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, few / path.relative_to(run[0]))
    assert [path.name for path in (few / "tokens").iterdir()] == ["00000000.bin"]
    some = TokenDataset(open_corpus_tokens(few, run[1], lazily=True), 8)
    assert some.count == whole.count
    held = np.array([1, 0])
    assert (some.batch(held)["inputs"] == whole.batch(held)["inputs"]).all()
    with pytest.raises(UnavailableError, match="00000002"):
        some.batch(np.array([2]))
    assert len(files_of_windows(run[0], [2], 8)) == 6  # the window begins in one shard and ends in the third
    with pytest.raises(UnavailableError, match="not there"):
        open_dataset(few, run[1])


def test_what_was_prepared_without_its_directory_still_opens(run: tuple[Path, DatasetCommitment], corpus: Path) -> None:
    shutil.rmtree(corpus)
    open_dataset(*run)
