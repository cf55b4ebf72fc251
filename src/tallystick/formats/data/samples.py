"""Samples, the order in which they are trained on, and how often each was a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tallystick.core.canonical_json import INTEGER_MAX, Json, encode
from tallystick.core.digests import Digest, digest, digest_bytes
from tallystick.core.errors import MalformedError, ProofError
from tallystick.core.lazy import not_installed
from tallystick.core.safetensors import read_state
from tallystick.formats.data.records import RecordTree, encode_example
from tallystick.formats.data.tokenizer import Tokens
from tallystick.formats.data.tokens import JoinedTokens
from tallystick.formats.dataset import DatasetCommitment
from tallystick.programs.random_words import permutation

# The order of samples: every batch follows from (step, data root, seed) alone, on every machine.
#
# See `spec/order.md`; its vectors stand in `vectors/order/`.

Indices = NDArray[np.int64]
Purpose = Literal["split", "epoch"]


@dataclass(frozen=True)
class BatchPlan:
    """Which samples are kept for validation, and which ones every step trains on.

    One permutation of all `count` samples is drawn; its first `validation_count` are validation. The others
    are shuffled anew for every epoch, and batches flow over the end of one epoch into the next.
    """

    data_root: Digest
    seed: int
    count: int
    validation_count: int
    batch: int

    def __post_init__(self) -> None:
        if not 0 <= self.validation_count < self.count:
            raise MalformedError(
                f"{self.validation_count} of {self.count} samples for validation leave none to train on"
            )
        if self.batch < 1 or not 0 <= self.seed <= INTEGER_MAX:
            raise MalformedError(f"a batch of {self.batch} samples with seed {self.seed}: one of them is out of range")

    @property
    def train_count(self) -> int:
        """The number of samples that are trained on: one epoch."""
        return self.count - self.validation_count

    @property
    def validation(self) -> Indices:
        """The samples kept for validation, sorted."""
        return self._split[0]

    @property
    def train(self) -> Indices:
        """The samples that are trained on, sorted."""
        return self._split[1]

    def indices(self, step: int) -> Indices:
        """The samples of `step`, int64[batch]; the first step is 1."""
        assert step >= 1
        places = np.arange((step - 1) * self.batch, step * self.batch)
        epochs, positions = np.divmod(places, self.train_count)
        parts = [epoch_order(self, int(epoch))[positions[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def epoch(self, step: int) -> int:
        """The epoch, counted from 0, of the first sample of `step`."""
        return (step - 1) * self.batch // self.train_count

    def key(self, purpose: Purpose, epoch: int = 0) -> bytes:
        """The 32 bytes that key one permutation."""
        named: Json = {"data_root": self.data_root, "epoch": epoch, "purpose": purpose, "seed": self.seed}
        return digest_bytes(digest("permutation", encode(named)))

    @cached_property
    def _split(self) -> tuple[Indices, Indices]:
        split = permutation(self.key("split"), self.count)
        parts = split[: self.validation_count].copy(), split[self.validation_count :]
        for part in parts:
            part.sort()
        return parts


@lru_cache(maxsize=2)
def epoch_order(plan: BatchPlan, epoch: int) -> Indices:
    """The training samples in the order of `epoch`, int64[train_count], read-only."""
    order = plan.train[permutation(plan.key("epoch", epoch), plan.train_count)]
    order.setflags(write=False)
    return order


# Samples: what a batch of indices stands for, in arrays that a training step takes.

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class TokenDataset:
    """Windows of `sequence` tokens, each with the tokens one place further as its targets."""

    tokens: Tokens | JoinedTokens
    sequence: int

    def __post_init__(self) -> None:
        assert self.sequence >= 1

    @property
    def count(self) -> int:
        """The number of windows: (T - 1) // sequence."""
        return max(self.tokens.size - 1, 0) // self.sequence

    def batch(self, indices: Indices) -> Arrays:
        """`inputs` and `targets`, int64[batch, sequence] each; raises `MalformedError` outside the data."""
        check_indices(indices, self.count)
        places = indices[:, np.newaxis] * self.sequence + np.arange(self.sequence)
        return {
            "inputs": self.tokens[places].astype(np.int64),
            "targets": self.tokens[places + 1].astype(np.int64),
        }


@dataclass(frozen=True, eq=False)
class ExampleDataset:
    """Images with their labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.labels)

    def batch(self, indices: Indices) -> Arrays:
        """`images` float32[batch, …] and `labels` int64[batch]; raises `MalformedError` outside the data."""
        check_indices(indices, self.count)
        return {"images": self.images[indices], "labels": self.labels[indices]}


Dataset: TypeAlias = TokenDataset | ExampleDataset
"""Samples that are numbered from 0."""


def check_indices(indices: Indices, count: int) -> None:
    """Raise `MalformedError` unless every index names a sample; a negative one would wrap around."""
    outside = indices[(indices < 0) | (indices >= count)]
    if outside.size:
        raise MalformedError(f"sample {outside[0]} does not exist among {count}")


# Images with their labels: opened, encoded, and the digits of scikit-learn (Alpaydin & Kaynak 1998).

CLASSES = 10
IMAGE_SHAPE = (1, 8, 8)
PIXEL_MAX = 16.0
EXAMPLES_FILE: Final = "examples.safetensors"


def open_examples(folder: Path, commitment: DatasetCommitment) -> ExampleDataset:
    """The committed examples in `folder`; raises `ProofError` for others."""
    state = read_state(folder / EXAMPLES_FILE, canonical=True)
    if {name: tensor.dtype for name, tensor in state.items()} != {"images": "F32", "labels": "I64"}:
        raise MalformedError(f"{EXAMPLES_FILE}: holds other arrays than images F32 and labels I64")
    images, labels = state["images"].array(), state["labels"].array()
    if labels.ndim != 1 or images.shape != (labels.size, *IMAGE_SHAPE):
        raise MalformedError(f"{EXAMPLES_FILE}: images {images.shape} for labels {labels.shape}")
    if labels.size and not 0 <= labels.min() <= labels.max() < CLASSES:
        raise MalformedError(f"{EXAMPLES_FILE}: a label is not within 0 to {CLASSES - 1}")
    examples = ExampleDataset(images, labels)
    if RecordTree.of("arrays", encode_examples(examples)).commit != commitment.source:
        raise ProofError(f"{EXAMPLES_FILE}: not the committed examples")
    return examples


def encode_examples(examples: ExampleDataset) -> list[bytes]:
    """The examples as records, in their order."""
    pairs = zip(examples.images, examples.labels, strict=True)
    return [encode_example({"image": image, "label": np.asarray(label)}) for image, label in pairs]


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images float32[1797, 1, 8, 8] scaled to 0…1, and labels int64[1797].

    Raises:
        UnavailableError: when scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise not_installed("sklearn") from None
    images, labels = datasets.load_digits(return_X_y=True)
    scaled = (images / PIXEL_MAX).astype(np.float32).reshape(-1, *IMAGE_SHAPE)
    return scaled, labels.astype(np.int64)


# Target accounting: how often every sample, and so every token of it, was a target of training.
#
# Windows do not overlap in their targets: token p (p ≥ 1) is a target of window (p - 1) // sequence and of no
# other, so that counting windows counts tokens.


def count_targets(batches: Iterable[Indices], plan: BatchPlan) -> Indices:
    """How often each sample is in recorded batches, int64[count]; those of steps 1, 2, … need not follow the plan.

    Raises:
        ProofError: when a batch names a sample that does not exist.
    """
    times = np.zeros(plan.count, np.int64)
    for step, batch in enumerate(batches, 1):
        try:
            check_indices(batch, plan.count)
        except MalformedError as error:
            raise ProofError(f"step {step}: {error}") from None
        np.add.at(times, batch, 1)
    return times


def target_account(times: Indices) -> dict[str, Any]:
    """The account for reports; `samples_by_times` has the number of samples by how often they were trained on."""
    numbers, samples = np.unique(times, return_counts=True)
    return {
        "most": int(times.max(initial=0)),
        "never_seen": int(np.count_nonzero(times == 0)),
        "samples_by_times": dict(zip(map(str, numbers.tolist()), samples.tolist(), strict=True)),
        "total": int(times.sum()),
    }
