"""The step graphs that spec and records name: read, compared with the recipe's, and their averages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from tallystick.audits.policy import Policy
from tallystick.audits.same_training import Followed, SettingChanges, departure, difference, trained_by
from tallystick.core.digests import Digest, digest
from tallystick.core.documents import Document
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.files import read_document
from tallystick.core.tensors import State, Tensor
from tallystick.formats.data.step_program import StepOverride, StepProgram, recipe_program
from tallystick.formats.records import StepRecord
from tallystick.formats.spec import AverageRule
from tallystick.programs.encoding import file_root, graph_root
from tallystick.programs.files import load_constants, load_graph
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.paired_values import attention_kind, micro_batches
from tallystick.programs.step_names import AVERAGE, AVERAGED, WEIGHTS, full_masks
from tallystick.verdicts.exact import difference_norm, norm
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings, bound_by_digest, require

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun
    from tallystick.formats.optimizers import GroupRule


# Reads documents that a claim names by their digests, and compares the bytes of a graph with its root.

D = TypeVar("D", bound=Document)


def read_named(
    findings: Findings,
    source: Path | Callable[[], bytes],
    kind: type[D],
    noun: str,
    name: Digest | None,
    expected: str = "",
) -> D | None:
    """Read a document that has the digest `name`, if one is given; `None` where it cannot be read.

    The digest is compared before the form is judged: what is not `expected` is an objection. What is, and has no form
    that is known here, was written by another version, and nothing can be said about it.
    """
    document: D | None = None
    expected = expected or f"the {noun} that the claim names"
    with findings.check(noun):
        data = read_document(source) if isinstance(source, Path) else source()
        is_named = name in (None, digest(noun, data))
        try:
            document = kind.from_bytes(data, f"{noun}.json")
        except MalformedError as error:
            require(is_named, f"{error}; it is not {expected}")
            raise
        require(is_named, f"{noun}.json is not {expected}")
    return document


def check_graph_file(path: Path, root: Digest | None, named_by: str) -> None:
    """Compare the bytes of a graph with its root, without running it; raises `ProofError`."""
    with bound_by_digest():
        require(file_root(path) == root, other_graph(path, named_by))


def other_graph(path: Path, named_by: str) -> str:
    """The objection to a graph that has another root."""
    return f"{path.parent.name}/{path.name} is not the graph that {named_by} names"


# Reads a graph that a claim names by its root, with its constants.


def read_claimed_graph(path: Path, root: Digest | None, named_by: str) -> tuple[Graph, dict[str, Tensor]]:
    """The graph `root` and its constants.

    Raises `ProofError` where the files hold another one, `MalformedError` where they hold that one and no verifier
    would run it, `UnavailableError` where a file is missing.
    """
    try:
        graph = load_graph(path)
    except MalformedError:
        check_graph_file(path, root, named_by)
        raise
    require(graph_root(graph) == root, other_graph(path, named_by))
    with bound_by_digest():
        return graph, load_constants(path, graph)


# Compares the averages of a step graph with what the spec states of them, and averages with replayed ones.

UNIT: Final = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
ROUNDING: Final = 8
"""Units in the last place by which two stacks may round one update of an average apart: four operations each."""


def check_averages(graph: Graph, rule: AverageRule | None) -> None:
    """Raise `ProofError` unless the graph averages every weight after its update as `rule` says, or none without it."""
    outputs = {output.name: output.value for output in graph.outputs}
    wanted = {name.removeprefix(WEIGHTS) for name in outputs if name.startswith(WEIGHTS)} if rule is not None else set()
    averaged = {name.removeprefix(AVERAGE) for name in outputs if name.startswith(AVERAGE)}
    require(averaged == wanted, "the step graph averages other weights than the spec says")
    is_counted = rule is not None and rule.counts
    require((AVERAGED in outputs) == is_counted, "the step graph counts averages otherwise than the spec says")
    if rule is None:
        return
    reading = _AverageNodes({ref: node for node in graph.nodes for ref in node.outputs if ref is not None}, rule)
    if is_counted:
        require(reading.counts(outputs[AVERAGED]), f"the step graph does not count {AVERAGED} up by one")
    for name in sorted(averaged):
        is_average = reading.is_average(outputs[AVERAGE + name], AVERAGE + name, outputs[WEIGHTS + name])
        require(
            is_average, f"the step graph does not average {name} as the spec says ({rule.form}, decay {rule.decay})"
        )


def compare_averages(states: tuple[State, State, State], limit: float, steps: int) -> Finding:
    """Compare claimed averages with replayed ones; `states` are the start, the claimed one and the replayed one.

    An average is a mean of weights. So it is no further off than they are, by `limit` of their move, and by the
    rounding of each update.
    """
    averages = [[state[name] for name in sorted(state) if name.startswith(AVERAGE)] for state in states]
    weights = [[state[name] for name in sorted(state) if name.startswith(WEIGHTS)] for state in states]
    unit = max((UNIT[state.dtype] for state in averages[2]), default=0.0)
    allowed = limit * difference_norm(weights[0], weights[2]) + ROUNDING * steps * unit * norm(averages[2])
    return Finding(difference_norm(averages[1], averages[2]), allowed, "averages")


@dataclass(frozen=True)
class _AverageNodes:
    """Reads how values are made; `made` is the node of each."""

    made: dict[Ref, Node]
    rule: AverageRule

    def counts(self, ref: Ref) -> bool:
        """Whether a value is the count of averages after one more."""
        return self._is(ref, "aten.add.Scalar", {"self": AVERAGED}, {"alpha": 1, "other": 1})

    def is_average(self, ref: Ref, average: Ref, weight: Ref) -> bool:
        """Whether a value is the new average of `average` and `weight`."""
        if not self.rule.counts:
            return self._is_moved(ref, average, weight)
        node = self.made.get(ref)
        if node is None or node.operator != "aten.where.self" or node.operands["self"] != weight:
            return False
        first, moved = node.operands["condition"], node.operands["other"]
        is_first = isinstance(first, str) and self._is(first, "aten.eq.Scalar", {"self": AVERAGED}, {"other": 0})
        return is_first and isinstance(moved, str) and self._is_moved(moved, average, weight)

    def _is_moved(self, ref: Ref, average: Ref, weight: Ref) -> bool:
        decay, share = self.rule.decay, 1 - self.rule.decay
        if self.rule.form == "lerp":
            return self._is(ref, "aten.lerp.Scalar", {"self": average, "end": weight}, {"weight": share})
        node = self.made.get(ref)
        inner = None if node is None else node.operands.get("self" if self.rule.form == "sum" else "other")
        if not isinstance(inner, str):
            return False
        if self.rule.form == "sum":
            return self._is(ref, "aten.add.Tensor", {"self": inner, "other": weight}, {"alpha": share}) and self._is(
                inner, "aten.mul.Scalar", {"self": average}, {"other": decay}
            )
        apart = self.made[inner].operands.get("self") if inner in self.made else None
        return (
            isinstance(apart, str)
            and self._is(ref, "aten.sub.Tensor", {"self": average, "other": inner}, {"alpha": 1})
            and self._is(inner, "aten.mul.Scalar", {"self": apart}, {"other": share})
            and self._is(apart, "aten.sub.Tensor", {"self": average, "other": weight}, {"alpha": 1})
        )

    def _is(self, ref: Ref, operator: str, operands: dict[str, Ref], attributes: dict[str, float]) -> bool:
        node = self.made.get(ref)
        return node is not None and (node.operator, dict(node.operands), dict(node.attributes)) == (
            operator,
            operands,
            attributes,
        )


# The step graphs that records name besides that of the spec; each is read when a step first needs it.

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
        self._kept: dict[GraphKind, StepOverride] = {}
        self._judged, self._followed = set[GraphKind](), Followed()

    def __call__(self, index: int) -> StepOverride | None:
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

    def _read(self, record: StepRecord, kind: GraphKind) -> StepOverride:
        root, rules, _ = kind
        path, graph, constants = self._evidence.run.graph_path_of(record), self._first, None
        if root is not None:
            graph, constants = self._loaded(record, root)
            unlike = difference(self._first, graph, is_updated_alike=rules is None)
            require(not unlike, f"{path.name} is no step of the training that the spec names: {unlike}")
        if kind not in self._judged:
            self._judged.add(kind)
            self._judge(record.index, graph, kind)
        return StepOverride(graph if root is not None else None, constants, rules)

    def _judge(self, index: int, graph: Graph, kind: GraphKind) -> None:
        """Say once of each graph and its settings whether they are the program of the first step."""
        root, rules, masks_differ = kind
        before = self._evidence.spec.optimizer or ()
        changes = SettingChanges.between(before, before if rules is None else rules)
        other = departure(self._first, graph, changes, masks_differ, self._followed)
        if other and root is None:
            self._evidence.findings.leave_open(f"step {index} states settings that its graph has not", other)
        elif other and root not in self._approved:
            first, its = self._evidence.run.graph_path, self._evidence.run.graph_path_of(self._evidence.step(index))
            read = f"read `tally graph diff {quote(str(first))} {quote(str(its))}`, and approve it with --graph {root}"
            self._evidence.findings.leave_open(
                f"step {index} has another program than the first step", f"{other}; {read}"
            )
        if micro_batches(graph) != micro_batches(self._first):
            parts = f"{micro_batches(graph)} micro-batches, and the first {micro_batches(self._first)}"
            self._evidence.findings.not_checked.append(f"why step {index} has {parts}")
        if moved := sorted(trained_by(self._first) ^ trained_by(graph)):
            having = "no gradient" if moved[0] in trained_by(self._first) else "a gradient"
            more = f" and {len(moved) - 1} others" if moved[1:] else ""
            self._evidence.findings.not_checked.append(
                f"why {moved[0]}{more} has {having} in step {index}, unlike the first"
            )

    def _judge_masks(self, index: int, root: Digest, graph: Graph) -> None:
        """Leave the audit open where attention in a step sees other places than the batch and the first step say."""
        kind, first = attention_kind(graph, self._evidence.batch(index)), attention_kind(self._first, self._first_batch)
        if kind is None or first not in (None, kind):
            line = f"attention in step {index} sees other places than its batch says; read {root}, and approve it with"
            self._evidence.findings.leave_open("", f"{line} --graph {root}")
        elif first is None:
            self._evidence.findings.not_checked.append(
                f"whether attention is {kind} in the first step, as in step {index}"
            )

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


def unrelated_graph(program: StepProgram, steps: Iterable[int]) -> tuple[int, str] | None:
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


# The step graph that a spec names: read, and compared with the one captured from the recipe.

CAPTURING = ("torch:", "transformers:")
"""The libraries whose version decides which graph a recipe gives."""


def open_step_graph(evidence: CheckedRun, policy: Policy) -> StepProgram | None:
    """The program of the step graph; `None` where the claim withdraws it, or the data was rejected.

    Raises `ProofError` for another graph than the spec names, `MalformedError` where no verifier would run that one.
    """
    spec = evidence.spec
    graph, constants = read_claimed_graph(evidence.run.graph_path, spec.graph, "the spec")
    if evidence.claim.no_graph is not None:
        return None
    if spec.average is not None or any(output.name.startswith(AVERAGE) for output in graph.outputs):
        check_averages(graph, spec.average)
    if spec.recipe is None:
        return StepProgram(
            graph,
            constants,
            spec.optimizer or (),
            evidence.batch,
            evidence.rates,
            spec.seed,
            _further(evidence, graph, policy),
            grows=True,
        )
    if evidence.dataset is None or evidence.plan is None:
        return None
    return recipe_program(spec.recipe, graph, constants, evidence.dataset, evidence.plan)


def _further(evidence: CheckedRun, first: Graph, policy: Policy) -> Callable[[int], StepOverride | None]:
    """The graphs that records name besides `first`."""
    graphs = FurtherGraphs(evidence, first, policy.graphs)
    return lambda index: graphs(index) if evidence.varies else None


def check_recipe_graph(evidence: CheckedRun, findings: Findings, stack: VerifierStack) -> None:
    """Capture the step of the recipe with the verifier's own libraries: naming both in the spec binds neither."""
    if stack.recipe_graph is None:
        raise UnavailableError("whether the step graph is that of the recipe: nothing here can capture it")
    captured = stack.recipe_graph(evidence.spec)
    others = [line for line in stack.environment.differences(evidence.environment) if line.startswith(CAPTURING)]
    if captured != evidence.spec.graph and others:
        raise UnavailableError(
            f"these libraries capture another graph from the recipe ({others[0]}); replay the recipe"
        )
    with findings.check("step graph of the recipe"):
        require(captured == evidence.spec.graph, f"the step of the recipe is the graph {captured}, not the one claimed")
