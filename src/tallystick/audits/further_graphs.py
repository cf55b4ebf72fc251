"""The step graphs that records name besides that of the spec; each is read when a step first needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tallystick.audits.claimed_graph import read_claimed_graph
from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.graphs.graph import Graph
from tallystick.judging.findings import require
from tallystick.tensors.tensor import State
from tallystick.transcripts.record import StepRecord
from tallystick.workloads.attention_masks import attention_kind
from tallystick.workloads.masks import full_masks
from tallystick.workloads.paired_sizes import Followed
from tallystick.workloads.paired_values import micro_batches
from tallystick.workloads.program import Further
from tallystick.workloads.same_training import SettingChanges, departure, difference, trained_by

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun
    from tallystick.transcripts.rule import GroupRule
    from tallystick.workloads.program import StepProgram

Rules: TypeAlias = "tuple[GroupRule, ...] | None"
KEPT: Final = 8
"""How many graphs are held in memory: batches of one shape come again and again."""


class GraphKind(NamedTuple):
    """A graph other than that of the spec, the settings of its steps, and whether their masks are other ones."""

    root: Digest | None
    rules: Rules
    masks_differ: bool


class FurtherGraphs:
    """Finds the graph of a step by its record; `first` is the graph of the spec, `approved` are roots of others.

    Which graph a step names is the prover's word. One that is another program than `first`, for no reason that the
    verifier sees, is replayed, and leaves the audit inconclusive until the verifier approves it by its root.
    """

    def __init__(self, evidence: CheckedRun, first: Graph, approved: Collection[Digest]) -> None:
        self._evidence, self._first, self._approved = evidence, first, frozenset(approved)
        self._kept: dict[GraphKind, Further] = {}
        self._judged, self._followed = set[GraphKind](), Followed()

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
        root = None if record.graph == self._evidence.spec.graph else record.graph
        if root is None and record.optimizer is None:
            return None
        kind = GraphKind(root, record.optimizer, root is not None and self._masks_differ(index))
        known = self._kept.pop(kind, None) or self._read(record, kind)
        self._kept[kind] = known
        if kind.masks_differ and root is not None and root not in self._approved and known.graph is not None:
            self._judge_masks(index, root, known.graph)
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return known

    def _read(self, record: StepRecord, kind: GraphKind) -> Further:
        root, rules, _ = kind
        path, graph, constants = self._evidence.run.graph_path_of(record), self._first, None
        if root is not None:
            graph, constants = self._loaded(record, root)
            unlike = difference(self._first, graph, is_updated_alike=rules is None)
            require(not unlike, f"{path.name} is no step of the training that the spec names: {unlike}")
        if kind not in self._judged:
            self._judged.add(kind)
            self._judge(record.index, graph, kind)
        return Further(graph if root is not None else None, constants, rules)

    def _judge(self, index: int, graph: Graph, kind: GraphKind) -> None:
        """Say once of each graph and its settings whether they are the program of the first step."""
        root, rules, masks_differ = kind
        before = self._evidence.spec.optimizer or ()
        changes = SettingChanges.between(before, before if rules is None else rules)
        other = departure(self._first, graph, changes, masks_differ, self._followed)
        if other and root is None:
            self._evidence.findings.undecided.append(f"step {index} states settings that its graph has not: {other}")
        elif other and root not in self._approved:
            first, its = self._evidence.run.graph_path, self._evidence.run.graph_path_of(self._evidence.step(index))
            self._evidence.findings.undecided.append(
                f"step {index} has another program than the first step: {other}; "
                f"read `tally graph diff {quote(str(first))} {quote(str(its))}`, and approve it with --graph {root}"
            )
        if micro_batches(graph) != micro_batches(self._first):
            parts = f"{micro_batches(graph)} micro-batches, and the first {micro_batches(self._first)}"
            self._evidence.left_out.append(f"why step {index} has {parts}")
        if moved := sorted(trained_by(self._first) ^ trained_by(graph)):
            having = "no gradient" if moved[0] in trained_by(self._first) else "a gradient"
            more = f" and {len(moved) - 1} others" if moved[1:] else ""
            self._evidence.left_out.append(f"why {moved[0]}{more} has {having} in step {index}, unlike the first")

    def _judge_masks(self, index: int, root: Digest, graph: Graph) -> None:
        """Leave the audit open where attention in a step sees other places than the batch and the first step say."""
        kind, first = attention_kind(graph, self._evidence.batch(index)), attention_kind(self._first, self._first_batch)
        if kind is None or first not in (None, kind):
            line = f"attention in step {index} sees other places than its batch says; read {root}, and approve it with"
            self._evidence.findings.undecided.append(f"{line} --graph {root}")
        elif first is None:
            self._evidence.left_out.append(f"whether attention is {kind} in the first step, as in step {index}")

    @cached_property
    def _first_batch(self) -> State:
        """The batch of step 1; empty where it is not there, as in a segment."""
        try:
            return self._evidence.batch(1)
        except (MalformedError, ProofError, UnavailableError):
            return {}

    def _masks_differ(self, index: int) -> bool:
        """Whether the batch has other full masks than that of step 1, or that one is not there to be compared."""
        if not self._first_batch:
            return True
        return full_masks(self._evidence.batch(index)) != full_masks(self._first_batch)

    def _loaded(self, record: StepRecord, root: Digest) -> tuple[Graph, State]:
        path = self._evidence.run.graph_path_of(record)
        try:
            return read_claimed_graph(path, root, f"the record of step {record.index}")
        except MalformedError as error:
            raise UnavailableError(f"the step graph of step {record.index}: {error}") from None


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
