from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.engines.tokenizers import train_bpe
from tallystick.formats.data.openings import check_record, open_record
from tallystick.formats.data.preparation import LibraryVersions, open_dataset, prepare, verify_data, verify_tokenizer
from tallystick.formats.data.samples import BatchPlan, ExampleDataset, TokenDataset
from tallystick.formats.data.tokenizer import Tokenizer, commit_tokens, read_tokens, write_tokens
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import TokenizerRecipe

TEXT = b"a stick was notched,\r\nthen split: the halves had to match.\n" * 40
LINES = b'{"text":"one notch"}\r\n{"id":2,"text":"two notches"}'
SAME = LibraryVersions("1", "1")
Prepared = tuple[Path, DatasetCommitment]
Change = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    root = tmp_path_factory.mktemp("prepared")
    (root / "text").write_bytes(TEXT)
    (root / "lines").write_bytes(LINES)
    settings = {"tokenization": "bpe", "vocabulary": 280, "train_bpe": train_bpe}
    return {
        "bytes": (root / "a", prepare("text", root / "text", root / "a")),
        "bpe": (root / "b", prepare("text", root / "text", root / "b", **settings)),
        "jsonl": (root / "c", prepare("jsonl", root / "lines", root / "c")),
        "digits": (root / "d", prepare("digits", None, root / "d")),
    }


KINDS = pytest.mark.parametrize("kind", ["bytes", "bpe", "jsonl", "digits"])


@KINDS
def test_prepared_data_opens_and_verifies(prepared: dict[str, Prepared], kind: str) -> None:
    folder, commitment = prepared[kind]
    dataset = open_dataset(folder, commitment, sequence=4)
    assert dataset.count == ((commitment.count - 1) // 4 if commitment.tokens else commitment.count)
    assert all(len(array) == 2 for array in dataset.batch(np.array([0, 1])).values())
    verify_data(folder, commitment)
    if commitment.tokens is not None:
        verify_tokenizer(
            folder,
            commitment,
            TokenizerRecipe(kind="bpe" if kind == "bpe" else "bytes", vocabulary=280),
            train_bpe,
            SAME,
        )


@KINDS
def test_a_commitment_round_trips(prepared: dict[str, Prepared], kind: str) -> None:
    _, commitment = prepared[kind]
    again = DatasetCommitment.from_json(commitment.to_json(), "data")
    assert (again, again.root) == (commitment, commitment.root)


@KINDS
def test_every_record_of_the_source_can_be_shown(prepared: dict[str, Prepared], kind: str) -> None:
    folder, commitment = prepared[kind]
    last = commitment.source.count - 1
    check_record(open_record(folder, commitment, last), commitment.source)
    with pytest.raises(UsageError, match="does not exist"):
        open_record(folder, commitment, last + 1)


def test_every_preparation_has_a_root_of_its_own(prepared: dict[str, Prepared]) -> None:
    assert len({commitment.root for _, commitment in prepared.values()}) == 4


def test_the_same_source_prepared_twice_has_the_same_bytes(prepared: dict[str, Prepared], tmp_path: Path) -> None:
    folder, commitment = prepared["bpe"]
    (tmp_path / "text").write_bytes(TEXT.replace(b"\r\n", b"\n"))
    again = prepare(
        "text", tmp_path / "text", tmp_path / "out", tokenization="bpe", vocabulary=280, train_bpe=train_bpe
    )
    assert again == commitment
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["source.txt", "tokenizer.json", "tokens.bin"]
    assert all((tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_byte_tokens_are_the_bytes_of_the_normalised_source(prepared: dict[str, Prepared]) -> None:
    folder, commitment = prepared["bytes"]
    dataset = open_dataset(folder, commitment, sequence=16)
    assert isinstance(dataset, TokenDataset)
    assert dataset.tokens.astype(np.uint8).tobytes() == TEXT.replace(b"\r\n", b"\n")


def test_the_digits_are_opened_as_examples(prepared: dict[str, Prepared]) -> None:
    dataset = open_dataset(*prepared["digits"])
    assert isinstance(dataset, ExampleDataset)
    assert dataset.batch(np.array([3]))["images"].shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("bytes", "source.txt"),
        ("bpe", "tokenizer.json"),
        ("bpe", "tokens.bin"),
        ("jsonl", "source.jsonl"),
        ("digits", "examples.safetensors"),
    ],
)
def test_every_changed_byte_of_the_data_is_refused(
    prepared: dict[str, Prepared], tmp_path: Path, kind: str, file: str
) -> None:
    folder, commitment = prepared[kind]
    shutil.copytree(folder, tmp_path / "copy")
    data = (folder / file).read_bytes()
    for place in np.linspace(0, len(data) - 1, 40 if kind != "digits" else 8, dtype=int):
        (tmp_path / "copy" / file).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(TallyError):
            open_dataset(tmp_path / "copy", commitment)
    (tmp_path / "copy" / file).write_bytes(data)
    open_dataset(tmp_path / "copy", commitment)
    (tmp_path / "copy" / file).unlink()
    with pytest.raises(UnavailableError, match=file):
        open_dataset(tmp_path / "copy", commitment)


def recommit(folder: Path, commitment: DatasetCommitment, change: Callable[[np.ndarray], np.ndarray]) -> Prepared:
    """What a forger does: change the tokens, then commit to the changed ones."""
    tokens, vocabulary = read_tokens(folder / "tokens.bin")
    write_tokens(folder / "tokens.bin", change(np.array(tokens)), vocabulary)
    forged, _ = read_tokens(folder / "tokens.bin")
    return folder, commitment.model_copy(update={"tokens": commit_tokens(forged, vocabulary)})


def with_token_5(tokens: np.ndarray) -> np.ndarray:
    tokens[5] = 65
    return tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_token_5, "token 5 is 65"),
        (lambda tokens: tokens[:-1], "2319 tokens, but the source gives"),
    ],
)
def test_tokens_that_are_not_those_of_the_source_are_named(
    prepared: dict[str, Prepared], tmp_path: Path, change: Change, message: str
) -> None:
    shutil.copytree(prepared["bytes"][0], tmp_path / "copy")
    forged = recommit(tmp_path / "copy", prepared["bytes"][1], change)
    open_dataset(*forged)
    with pytest.raises(ProofError, match=message):
        verify_data(*forged)


def test_a_tokenizer_that_was_not_trained_on_the_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    foreign = Tokenizer.bpe(((122, 122),))
    commitment = prepare(
        "text", tmp_path / "text", tmp_path / "out", tokenization="bpe", train_bpe=lambda text, size: foreign
    )
    verify_data(tmp_path / "out", commitment)
    with pytest.raises(ProofError, match="merge 0"):
        verify_tokenizer(tmp_path / "out", commitment, TokenizerRecipe(kind="bpe", vocabulary=257), train_bpe, SAME)


@pytest.mark.parametrize(("ours", "theirs"), [("0.23.3", "0.22.0"), ("unknown", "unknown"), ("0.23.3", "unknown")])
def test_merges_of_another_library_are_not_held_against_anybody(tmp_path: Path, ours: str, theirs: str) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    foreign = Tokenizer.bpe(((122, 122),))
    commitment = prepare(
        "text", tmp_path / "text", tmp_path / "out", tokenization="bpe", train_bpe=lambda text, size: foreign
    )
    with pytest.raises(UnavailableError, match=f"tokenizers {ours}; the run states {theirs}.*install that one"):
        verify_tokenizer(
            tmp_path / "out",
            commitment,
            TokenizerRecipe(kind="bpe", vocabulary=257),
            train_bpe,
            LibraryVersions(ours, theirs),
        )


def test_training_is_repeated_with_the_vocabulary_that_the_recipe_states(prepared: dict[str, Prepared]) -> None:
    folder, commitment = prepared["bpe"]
    asked: list[int] = []

    def train(text: str, vocabulary: int) -> Tokenizer:
        asked.append(vocabulary)
        return train_bpe(text, vocabulary)

    with pytest.raises(ProofError, match="280 tokens, where the recipe allows 279"):
        verify_tokenizer(folder, commitment, TokenizerRecipe(kind="bpe", vocabulary=279), train_bpe, SAME)
    with pytest.raises(ProofError, match="merge 35"):
        verify_tokenizer(folder, commitment, TokenizerRecipe(kind="bpe", vocabulary=300), train, SAME)
    assert asked == [300]
    with pytest.raises(ProofError, match="of kind bpe, where the recipe states bytes"):
        verify_tokenizer(folder, commitment, TokenizerRecipe(kind="bytes", vocabulary=280), train_bpe, SAME)


def test_a_vocabulary_that_is_not_the_tokenizers_is_refused(prepared: dict[str, Prepared], tmp_path: Path) -> None:
    folder, commitment = prepared["bytes"]
    shutil.copytree(folder, tmp_path / "copy")
    tokens, _ = read_tokens(folder / "tokens.bin")
    write_tokens(tmp_path / "copy" / "tokens.bin", tokens, 257)
    with pytest.raises(ProofError, match="a vocabulary of 257"):
        open_dataset(tmp_path / "copy", commitment.model_copy(update={"tokens": commit_tokens(tokens, 257)}))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 1, 8, 8), np.float32), np.array([0, 10]), "label"),
        (np.zeros((2, 1, 8, 8), np.float32), np.array([-1, 9]), "label"),
        (np.zeros((3, 1, 8, 8), np.float32), np.array([0, 9]), "images"),
        (np.zeros((2, 64), np.float32), np.array([0, 9]), "images"),
        (np.zeros((2, 1, 8, 8), np.float64), np.array([0, 9]), "other arrays"),
    ],
)
def test_examples_that_no_classifier_takes_are_refused(
    prepared: dict[str, Prepared], tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    arrays = {"images": Tensor.of(images), "labels": Tensor.of(labels)}
    write_state(tmp_path / "examples.safetensors", arrays)
    with pytest.raises(MalformedError, match=message):
        open_dataset(tmp_path, prepared["digits"][1])


def test_byte_pair_encoding_without_a_trainer_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    with pytest.raises(UsageError, match="trains"):
        prepare("text", tmp_path / "text", tmp_path, tokenization="bpe")
    with pytest.raises(UsageError, match="source"):
        prepare("text", None, tmp_path)


def test_a_source_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        prepare("text", tmp_path / "none", tmp_path)
    with pytest.raises(UnavailableError):
        prepare("text", tmp_path, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "digits"},
        {"kind": "csv"},
        {"kind": 1},
        {"version": 2},
        {"source": {}},
        {"tokenizer": "sha256:0"},
        {"tokenizer": None},
        {"tokens": None},
        {"more": 1},
    ],
)
def test_malformed_commitments_are_refused(prepared: dict[str, Prepared], change: dict[str, object]) -> None:
    good = prepared["bytes"][1].to_json()
    assert isinstance(good, dict)
    for value in (
        {**good, **change},
        {key: good[key] for key in good if key not in change},
        [],
        None,
        "text",
    ):
        if value == good:
            continue
        with pytest.raises(MalformedError, match="data"):
            DatasetCommitment.from_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), "data")


def test_the_data_root_keys_the_order_of_batches(prepared: dict[str, Prepared]) -> None:
    folder, commitment = prepared["bytes"]
    dataset = open_dataset(folder, commitment, sequence=8)
    plan = BatchPlan(commitment.root, seed=1, count=dataset.count, validation_count=10, batch=4)
    assert dataset.batch(plan.indices(1))["inputs"].shape == (4, 8)
