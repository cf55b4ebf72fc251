"""Images with their labels: opened, encoded, and the digits of scikit-learn (Alpaydin & Kaynak 1998)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.records import RecordTree, encode_example
from tallystick.datasets.samples import ExampleDataset
from tallystick.errors import MalformedError, ProofError
from tallystick.tensors.safetensors import read_state
from tallystick.transcripts.dataset import DatasetCommitment

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
        from tallystick.extras import not_installed

        raise not_installed("sklearn") from None
    images, labels = datasets.load_digits(return_X_y=True)
    scaled = (images / PIXEL_MAX).astype(np.float32).reshape(-1, *IMAGE_SHAPE)
    return scaled, labels.astype(np.int64)
