"""The anchors of a run directory: which states are there, and reading one of them.

An anchor is one file with the whole state, or a list with the tensors that changed beside it; the list names, for each
of the others, the anchor whose file holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.documents.files import DOCUMENT_BYTES_MAX, read_document
from tallystick.errors import MalformedError, UnavailableError
from tallystick.tensors.safetensors import StateFile, read_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import anchor_file

if TYPE_CHECKING:
    from tallystick.store.remote_anchors import RemoteAnchors

ANCHOR_BYTES_MAX: Final = 1 << 40


@dataclass(frozen=True)
class Anchors:
    """The anchors of the run directory at `path`; those that are not in it are looked up in `remote`, if given."""

    path: Path
    remote: RemoteAnchors | None = None

    def present(self, marks: Iterable[int]) -> tuple[int, ...]:
        """Those of `marks` whose states are there, in ascending order; none of them is opened."""
        folder = self.path / "anchors"
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        names |= set() if self.remote is None else self.remote.names
        return tuple(mark for mark in sorted(marks) if not names.isdisjoint(_marks_of(mark)))

    def read(self, mark: int, bytes_max: int = ANCHOR_BYTES_MAX) -> dict[str, Tensor]:
        """The state after step `mark`, as it stands there; whoever reads it checks its digest.

        Raises:
            MalformedError: a file of it is not what it should be.
            UnavailableError: a file of it is missing, or it is larger than `bytes_max`.
        """
        path = self._found(anchor_file(mark), bytes_max)
        if path is not None and path.stat().st_size > bytes_max:
            raise _too_large(path, bytes_max)
        if path is not None or self._found(self._list(mark), DOCUMENT_BYTES_MAX) is None:
            return read_state(path or self.path / anchor_file(mark), canonical=True)
        return self._collect(mark, bytes_max)

    def elsewhere(self, mark: int) -> dict[str, int]:
        """The tensors of anchor `mark` that stand in the files of other anchors, and which; none of a whole file."""
        from tallystick.transcripts.anchor_parts import AnchorParts

        path = self._found(self._list(mark), DOCUMENT_BYTES_MAX)
        if (self.path / anchor_file(mark)).is_file() or path is None:
            return {}
        return dict(AnchorParts.from_bytes(read_document(path), path.name).elsewhere)

    def holding(self, mark: int) -> Path:
        """The file in which the tensors of anchor `mark` stand that are not elsewhere."""
        from tallystick.transcripts.anchor_parts import part_file

        whole = self.path / anchor_file(mark)
        return whole if whole.is_file() else self.path / part_file(mark)

    def _list(self, mark: int) -> str:
        return str(Path(anchor_file(mark)).with_suffix(".json"))

    def _found(self, file: str, bytes_max: int) -> Path | None:
        """The file, on this machine or fetched to it; `None` where there is none."""
        path = self.path / file
        if path.is_file():
            return path
        return None if self.remote is None else self.remote.fetch(path.name, bytes_max)

    def _holding(self, mark: int, bytes_max: int) -> Path:
        if self.remote is None:
            return self.holding(mark)
        from tallystick.transcripts.anchor_parts import part_file

        found = self._found(anchor_file(mark), bytes_max) or self._found(part_file(mark), bytes_max)
        return found or self.path / part_file(mark)

    def _collect(self, mark: int, bytes_max: int) -> dict[str, Tensor]:
        elsewhere, left = self.elsewhere(mark), bytes_max
        state: dict[str, Tensor] = {}
        for holder, names in _by_holder(mark, elsewhere):
            path = self._holding(holder, bytes_max)
            with StateFile(path, canonical=True) as file:
                wanted = file.names if holder == mark else names
                left -= sum(_bytes_of(file, name, path) for name in wanted)
                if left < 0:
                    raise _too_large(Path(self._list(mark)), bytes_max)
                if not state.keys().isdisjoint(wanted):
                    raise MalformedError(f"anchor {mark} names a tensor that is in {path.name} already")
                state |= {name: file.tensor(name).copy() for name in wanted}
        return state


def _by_holder(mark: int, elsewhere: Mapping[str, int]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The anchor itself, and then the others with the names of what is read from them."""
    yield mark, ()
    for holder in sorted(set(elsewhere.values())):
        if holder >= mark:
            raise MalformedError(f"anchor {mark} names a tensor of anchor {holder}, which is not before it")
        yield holder, tuple(sorted(name for name, place in elsewhere.items() if place == holder))


def _bytes_of(file: StateFile, name: str, path: Path) -> int:
    if name not in file.specs:
        raise UnavailableError(f"{path.name}: holds no tensor {name[:80]!a}")
    return file.specs[name].end - file.specs[name].begin


def _too_large(path: Path, bytes_max: int) -> UnavailableError:
    return UnavailableError(f"{path.name}: larger than the {bytes_max} bytes allowed")


def _marks_of(mark: int) -> tuple[str, str]:
    """The names of the files by which an anchor is there."""
    whole = Path(anchor_file(mark))
    return whole.name, whole.with_suffix(".json").name
