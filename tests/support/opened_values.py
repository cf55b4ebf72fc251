"""All values of an opening at once, to take some away or to put others there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.judging.opening.values import NAME_BYTES, VALUES, value_name
from tallystick.tensors.appending import AppendedState
from tallystick.tensors.safetensors import read_state
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor


def read_values(folder: Path) -> dict[Digest, Tensor]:
    """The opened values by the digests that name them, whatever their bytes are."""
    return {Digest(f"sha256:{name}"): tensor for name, tensor in read_state(folder / VALUES).items()}


def write_values(folder: Path, values: Mapping[Digest, Tensor]) -> None:
    """Put these values into the place of all that are opened."""
    with AppendedState(folder / VALUES, map(TensorSpec.of, values.values()), NAME_BYTES) as file:
        for name, tensor in values.items():
            file.append(value_name(name), tensor)
