"""An opening directory: its files, the chain of its operator records, and its values, each named by its digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.files import read_document
from tallystick.core.safetensors import StateFile, check_booleans
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.formats.openings import Opening, given_in
from tallystick.formats.records import OperatorRecord
from tallystick.formats.store.log import read_lines
from tallystick.programs.graph import Graph, Ref
from tallystick.verdicts.opening.binding import check_operator, check_sources
from tallystick.verdicts.verdict import require

# Reads the files of an opening that `tally open --operators` wrote; the format is in `formats.openings`.

OPENING: Final = "opening.json"
OPERATORS: Final = "operators.jsonl"
OPERATOR: Final = "operator.json"
GRAPH: Final = "graph.json"
OPERATORS_MAX: Final = 1 << 20


def read_opening(folder: Path) -> Opening:
    """The statement of an opening; raises `UnavailableError` if the file is missing, `MalformedError` if invalid."""
    opening = Opening.from_bytes(read_document(folder / OPENING), OPENING)
    if opening.version == 1:
        raise MalformedError(
            f"{OPENING}: version 1 keeps a file for each value, and is read no more; open the step again"
        )
    return opening


def read_operator_lines(folder: Path) -> list[bytes]:
    """The lines of the operator records; raises `UnavailableError` if there is no file, or if there are too many."""
    lines: list[bytes] = []
    for line in read_lines(folder / OPERATORS):
        if len(lines) >= OPERATORS_MAX:
            raise UnavailableError(f"{OPERATORS}: more than the {OPERATORS_MAX} records allowed")
        lines.append(line)
    return lines


def follow_operators(opening: Opening, graph: Graph, lines: Collection[bytes]) -> dict[Ref, Digest]:
    """The digest of every value, from the sources of the opening through all records to its results.

    Raises `ProofError` if an operator reads a value that was not given, `MalformedError` if a line is not a record.
    """
    digests: dict[Ref, Digest] = dict(opening.sources)
    try:
        _follow(opening, graph, lines, digests)
    except ProofError:
        for number, line in enumerate(lines, 1):  # report a line that is not a record at all before any other error
            _read_record(line, number)
        raise
    return digests


def _follow(opening: Opening, graph: Graph, lines: Collection[bytes], digests: dict[Ref, Digest]) -> None:
    """Add the digests of all results; each record must belong to its node and read the values that were given."""
    check_sources(graph, opening)
    require(len(lines) == len(graph.nodes), f"{len(lines)} operators, and the graph has {len(graph.nodes)}")
    for number, (node, line) in enumerate(zip(graph.nodes, lines, strict=True), 1):
        results = given_in(line, node, digests)
        if results is None:
            record = _read_record(line, number)
            check_operator(node, record)
            for ref, named in record.inputs.items():
                require(digests.get(ref) == named, f"node {node.number} reads another {ref} than was given")
            results = record.outputs
        digests |= results
    results = {output.name: digests[output.value] for output in graph.outputs}
    require(results == opening.results, "the opening names other results than the operators give")


def _read_record(line: bytes, number: int) -> OperatorRecord:
    return OperatorRecord.from_bytes(line, f"{OPERATORS}: line {number}")


# The opened values in a folder: one file, in which each value is named by its tensor digest.
#
# `values.safetensors` is mapped into memory. A value is read on request, and its bytes are compared with its
# digest then. The values that were read last stay in memory, because neighbours in a graph read the same ones. A party
# to a dispute reads a folder of its own, which nobody changes: it compares each value once, and keeps none in memory.

VALUES: Final = "values.safetensors"
HEADER_BYTES_MAX: Final = 256 << 20
"""The header of a million values; with the 16 MiB of other files, 90,000 values would be too many."""
NAME_BYTES: Final = 64
HELD_BYTES_MAX: Final = 256 << 20


class OpenedValues:
    """The values that are opened in one folder; none where it has no such file.

    Of a folder that `is_own`, values are views of the file, and a value that was compared is not compared again.
    The first use raises `MalformedError` if the file is not a safetensors file.
    """

    def __init__(self, folder: Path, held_bytes_max: int = HELD_BYTES_MAX, is_own: bool = False) -> None:
        self.path = folder / VALUES
        self._is_own, self._compared = is_own, set[Digest]()
        self._held: OrderedDict[Digest, Tensor] = OrderedDict()
        self._bytes, self._bytes_max = 0, held_bytes_max

    def require_readable(self) -> None:
        """Raise `MalformedError` if the file is not a safetensors file; reads its header."""
        assert self._file is None or self._file.specs is not None

    def __contains__(self, name: Digest) -> bool:
        """Whether the value with this tensor digest is opened."""
        return self._file is not None and value_name(name) in self._file.specs

    def __getitem__(self, name: Digest) -> Tensor:
        """The value with this tensor digest, which is opened.

        Raises `ProofError` if its bytes have another digest, `MalformedError` if a boolean is neither 0 nor 1.
        """
        if self._is_own:
            return self._read(name)
        if name not in self._held:
            self._hold(name, self._read(name))
        self._held.move_to_end(name)
        return self._held[name]

    def spec(self, name: Digest) -> TensorSpec:
        """The spec that the file states of a value which is opened; its bytes are not read."""
        assert self._file is not None  # callers name values that are opened
        placed = self._file.specs[value_name(name)]
        return TensorSpec(placed.dtype, placed.shape)

    def opened(self, wanted: Mapping[Ref, Digest]) -> dict[Ref, Tensor]:
        """Those of the wanted values that are opened; raises what reading one raises."""
        return {ref: self[name] for ref, name in wanted.items() if name in self}

    @cached_property
    def _file(self) -> StateFile | None:
        return StateFile(self.path, header_bytes_max=HEADER_BYTES_MAX) if self.path.is_file() else None

    def _read(self, name: Digest) -> Tensor:
        assert self._file is not None  # callers name values that are opened
        mapped = self._file.tensor(value_name(name))
        tensor = mapped if self._is_own else mapped.copy()  # what is compared is what is used later
        if name not in self._compared:
            if tensor_digest(tensor) != name:
                raise ProofError(f"{VALUES}: {name} is the name of other bytes")
            check_booleans(f"{VALUES}: {name}", tensor)
        if self._is_own:
            self._compared.add(name)
        return tensor

    def _hold(self, name: Digest, tensor: Tensor) -> None:
        self._held[name] = tensor
        self._bytes += tensor.nbytes
        while self._bytes > self._bytes_max and len(self._held) > 1:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= dropped.nbytes


def value_name(name: Digest) -> str:
    """The name in the file of the value with this tensor digest."""
    return name.removeprefix("sha256:")
