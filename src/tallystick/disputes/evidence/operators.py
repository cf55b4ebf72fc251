"""The operators of one record, opened once and kept: the prover answers every move of a dispute from these files.

Two replays may differ in their last bits, and a prover that posts values of both contradicts itself. So the first files
are kept, also across restarts of the program, and values of another replay are never posted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tallystick.commitments.digests import Digest, digest_bytes
from tallystick.commitments.proofs import prove_inclusion
from tallystick.commitments.tree import leaf_hash
from tallystick.disputes.evidence.whole import Operators, read_operators
from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.protocols import Descent, OpenedLeaves
from tallystick.documents.files import read_document
from tallystick.errors import UnavailableError
from tallystick.graphs.files import constants_path
from tallystick.graphs.graph import Ref
from tallystick.judging.leaf.bundling import WholeOpening
from tallystick.judging.opening.files import GRAPH, OPENING, OPERATOR, OPERATORS
from tallystick.judging.opening.values import HEADER_BYTES_MAX, NAME_BYTES, VALUES, value_name
from tallystick.tensors.appending import AppendedState
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.opening import Opening

PARTS: Final = ".parts"
"""Where the files of answers lie in the folder of an opening."""
Open = Callable[[Path], None]
"""Writes the operators of a record, and all their values, into an empty folder."""


@dataclass(frozen=True)
class KeptOperators:
    """An opening directory with all values, as the prover answers from it."""

    operators: Operators

    @classmethod
    def read(cls, folder: Path) -> KeptOperators:
        """Read a directory that `tally open --operators` wrote."""
        return cls(read_operators(folder))

    @property
    def whole(self) -> WholeOpening:
        """The opening."""
        return self.operators.whole

    @property
    def root(self) -> str:
        """The root of the operators' tree, in hexadecimal digits."""
        return digest_bytes(self.whole.opening.operators.root).hex()

    @property
    def size(self) -> int:
        """How many operators there are."""
        return len(self.whole.lines)

    def partition(self, low: int, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, with the values that cross the cuts after them."""
        refs = self.operators.cuts.opened_at(low, places)
        return OpenedLeaves(tuple(map(self.cut, places)), self._values(self._names(low, places[-1], refs)))

    def descent(self, record: Cut) -> Descent:
        """The tree of the operators, with the opening, the graph, and the values at both ends of the step."""
        folder, opening = self.whole.folder, self.whole.opening
        names = [OPENING, OPERATORS, GRAPH]
        if constants_path(folder / GRAPH).is_file():
            names.append(constants_path(folder / GRAPH).name)
        ends = self._values((*opening.sources.values(), *opening.results.values()))
        return Descent(record, self.root, self.size, {name: folder / name for name in names} | ends)

    def reveal(self, place: int) -> OpenedLeaves:
        """One operator with the values that it read and gave."""
        operator = self.whole.operator(place)
        named = (*operator.record.inputs.values(), *operator.record.outputs.values())
        return OpenedLeaves((self.cut(place),), {OPERATOR: operator.to_bytes(), **self._values(named)})

    def cut(self, place: int) -> Cut:
        """The leaf of one operator, with its proof."""
        proof = prove_inclusion(self.whole.leaves, place, self.size)
        return Cut(leaf=leaf_hash(self.whole.lines[place]).hex(), proof=tuple(each.hex() for each in proof))

    def _names(self, low: int, high: int, refs: Iterable[Ref]) -> Iterator[Digest]:
        given = {ref: name for place in range(low, high + 1) for ref, name in self.whole.record(place).outputs.items()}
        yield from (given[ref] for ref in refs)

    def _values(self, names: Iterable[Digest]) -> dict[str, bytes | Path]:
        """A file with these of the values, which is written where it is not there yet."""
        wanted = tuple(dict.fromkeys(names))
        path = self.whole.folder / PARTS / f"{sha256(''.join(wanted).encode()).hexdigest()}.safetensors"
        if wanted and not path.is_file():
            draft, tensors = path.with_name(f".{path.name}"), self._tensors(wanted)
            draft.parent.mkdir(exist_ok=True)
            with AppendedState(draft, map(TensorSpec.of, tensors.values()), NAME_BYTES) as file:
                for name, tensor in tensors.items():
                    file.append(value_name(name), tensor)
            draft.replace(path)
        return {VALUES: path} if wanted else {}

    def _tensors(self, names: Iterable[Digest]) -> dict[Digest, Tensor]:
        """Views of these of the values, in the order of the names."""
        with StateFile(self.whole.folder / VALUES, header_bytes_max=HEADER_BYTES_MAX) as file:
            return {name: file.tensor(value_name(name)) for name in names}


def keep(folder: Path, write: Open) -> KeptOperators:
    """The operators in `folder`; if they are not there yet, `write` writes them, completely or not at all.

    Raises whatever `write` raises.
    """
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write(draft)
        os.sync()
        draft.replace(folder)
    return KeptOperators.read(folder)


def require_posted(kept: KeptOperators, root: str) -> KeptOperators:
    """Raise `UnavailableError` unless these are the operators that were posted."""
    if kept.root != root:
        raise UnavailableError(
            "the replay that the posted operators came from is not kept here, and another replay has other bits"
        )
    return kept


def root_of(folder: Path) -> str:
    """The root of the operators that a folder holds, in hexadecimal digits; reads one small file."""
    opening = Opening.from_bytes(read_document(folder / OPENING), OPENING)
    return digest_bytes(opening.operators.root).hex()
