"""The step graphs that records name besides that of the spec; each is read when a step first needs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from tallystick.audits.claimed_graph import read_claimed_graph
from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.graphs.graph import Graph
from tallystick.judging.findings import require
from tallystick.tensors.tensor import State
from tallystick.workloads.program import Further
from tallystick.workloads.same_training import difference, trained_by

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun
    from tallystick.transcripts.rule import GroupRule
    from tallystick.workloads.program import StepProgram

Rules: TypeAlias = "tuple[GroupRule, ...] | None"
KEPT: Final = 8
"""How many graphs are held in memory: batches of one shape come again and again."""


class FurtherGraphs:
    """Finds the graph of a step by its record; `first` is the graph of the spec."""

    def __init__(self, evidence: CheckedRun, first: Graph) -> None:
        self._evidence, self._first = evidence, first
        self._kept: dict[tuple[Digest, Rules], Further] = {}

    def __call__(self, index: int) -> Further | None:
        """The graph of step `index` with its constants, and its settings; `None` where they are those of the spec.

        Raises:
            UnavailableError: the step has no graph, as its record or the claim says; or its file is missing, or no
                verifier would run it.
            ProofError: the file holds another graph, or one that trains otherwise than that of the spec.
        """
        record = self._evidence.step(index)
        if record.no_graph is not None:
            raise UnavailableError(f"step {index} has no step graph: {record.no_graph}")
        if (why := self._evidence.claim.why_withdrawn(index)) is not None:
            raise UnavailableError(f"the recorder withdrew the graph of step {index}: {why}")
        if record.graph is None or record.graph == self._evidence.spec.graph:
            return None if record.optimizer is None else Further(rules=record.optimizer)
        key = record.graph, record.optimizer
        found = self._kept.pop(key, None) or self._read(index, record.graph, record.optimizer)
        self._kept[key] = found
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _read(self, index: int, root: Digest, rules: Rules) -> Further:
        path = self._evidence.run.graph_path_of(self._evidence.step(index))
        graph, constants = self._loaded(index, root)
        unlike = difference(self._first, graph, self._alike(index, rules))
        require(not unlike, f"{path.name} is no step of the training that the spec names: {unlike}")
        self._note_frozen(index, graph)
        return Further(graph, constants, rules)

    def _note_frozen(self, index: int, graph: Graph) -> None:
        """Say which parameters have a gradient in one of both graphs alone: that is the prover's statement."""
        moved = sorted(trained_by(self._first) ^ trained_by(graph))
        if moved:
            having = "no gradient" if moved[0] in trained_by(self._first) else "a gradient"
            more = f" and {len(moved) - 1} others" if moved[1:] else ""
            self._evidence.left_out.append(f"why {moved[0]}{more} has {having} in step {index}, unlike the first")

    def _alike(self, index: int, rules: Rules) -> Graph | None:
        """The graph of the first step with the same settings; `None` for that step itself."""
        if rules is None:
            return self._first
        first = self._evidence.settings[rules].first
        if first == index:
            return None
        root = self._evidence.step(first).graph
        return self._first if root is None else self._loaded(first, root)[0]

    def _loaded(self, index: int, root: Digest) -> tuple[Graph, State]:
        path = self._evidence.run.graph_path_of(self._evidence.step(index))
        try:
            return read_claimed_graph(path, root, f"the record of step {index}")
        except MalformedError as error:
            raise UnavailableError(f"the step graph of step {index}: {error}") from None


def foreign_graph(program: StepProgram, steps: Iterable[int]) -> tuple[int, str] | None:
    """The first of `steps` whose record names a graph that is not one of the training, and why it is not.

    Steps behind one that cannot be replayed are not looked at.
    """
    for index in steps:
        try:
            program.at(index)
        except ProofError as error:
            return index, str(error)
        except UnavailableError:
            break
    return None
