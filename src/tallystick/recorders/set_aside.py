"""A state that is set aside in a file, so that it takes no memory until it is needed.

The check of a step needs the state before it until the step is over. For a model that is trained as a whole that is
three times the weights, while the loop itself needs the most memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.tensors.safetensors import StateFile, write_state
from tallystick.tensors.tensor import State, Tensor

IN_MEMORY_BYTES_MAX: Final = 64 << 20
"""A smaller state is copied: that takes less time than a file."""
FILE: Final = ".aside.safetensors"


class SetAside(Mapping[str, Tensor]):
    """The tensors of a state, read from a file that has no name any more; nothing of it is left behind.

    Raises `UnavailableError` if the file cannot be written.
    """

    def __init__(self, folder: Path, state: State) -> None:
        path = folder / FILE
        write_state(path, state, durable=False)
        self._file = StateFile(path)
        path.unlink()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file.specs:
            raise KeyError(name)
        return self._file.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.names)

    def __len__(self) -> int:
        return len(self._file.specs)

    def release(self, name: str) -> None:
        """Give back the memory of a tensor that was read; it can be read again."""
        if self[name].nbytes:
            self._file.release(name, 0, self[name].nbytes)


def set_aside(folder: Path, state: State) -> State:
    """The same state, whatever is written into its tensors later: a file in `folder`, or copies if it is small."""
    if sum(tensor.nbytes for tensor in state.values()) > IN_MEMORY_BYTES_MAX:
        try:
            return SetAside(folder, state)
        except UnavailableError:  # a disk that is full or cannot be written costs memory, not the recording
            pass
    return {name: tensor.copy() for name, tensor in state.items()}
