"""All values of an opening at once, to take some away or to put others there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tallystick.core.digests import Digest
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_writer import AppendedState
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.verdicts.opening.files import NAME_BYTES, VALUES, value_name


def read_values(folder: Path) -> dict[Digest, Tensor]:
    """The opened values by the digests that name them, whatever their bytes are."""
    return {Digest(f"sha256:{name}"): tensor for name, tensor in read_state(folder / VALUES).items()}


def write_values(folder: Path, values: Mapping[Digest, Tensor]) -> None:
    """Put these values into the place of all that are opened."""
    with AppendedState(folder / VALUES, map(TensorSpec.of, values.values()), NAME_BYTES) as file:
        for name, tensor in values.items():
            file.append(value_name(name), tensor)
