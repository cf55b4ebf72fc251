"""Whether two step graphs of one run are one training, and one program.

A run may have several step graphs: for batches of several shapes, for parameters that begin to train later, for other
settings of the optimizer. Which graph a step has is the prover's word. So a graph is compared with that of the spec:

* `difference`: it carries the same state, leaves what has no gradient as it is, and makes of a gradient what the first
  one makes. A graph that does not contradicts the rules that its record states.
* `departure`: loss, gradients and all else that it gives are computed as in the first graph, but for what the verifier
  sees: the sizes of the batch, its masks, the parameters that train, and the numbers of the settings that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Final, TypeAlias

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.names import BATCH, WEIGHTS, parameter_of

GRADIENTS = "gradients."
SCHEDULE = "schedule."
AVERAGES = "ema."
COUNTERS = "position."
FACTORS_MAX: Final = 4
"""How many sides of a tensor are multiplied to explain an integer."""
SIZES: Final = frozenset(
    {"size", "sizes", "shape", "input_size", "input_sizes", "output_size", "split_size", "split_sizes"}
    | {"repeats", "length", "end", "N", "HxW"}
)
"""Parameters of operators that hold sizes: they may follow the sides of the batch."""
PLACES: Final = frozenset({"end", "index", "start"})
"""Parameters that hold places: they may be as far from the end of a side as in the first graph."""
DIVISORS: Final = frozenset({"aten.div.Scalar", "aten.mul.Scalar", "aten.div.Tensor"})
"""Operators whose number may be a count of elements: that is how a mean is taken, and its gradient."""
MASKS: Final = frozenset({"attn_mask", "attn_bias", "is_causal"})
"""Parameters of attention that tell which places see which; a full mask is often left out."""
TRAINED: Final = frozenset({"output_mask"})
"""Parameters that say which gradients an operator gives."""

Pair: TypeAlias = tuple[Ref, Ref]
Sides: TypeAlias = frozenset[tuple[int, int]]
Judge: TypeAlias = Callable[[Node, Node], str]
Skip: TypeAlias = "Callable[[_Values, Ref], Ref]"


def difference(first: Graph, other: Graph, is_updated_alike: bool = True) -> str:
    """Names the first tensor of the state that two step graphs of one training treat differently; empty if none.

    Updates are compared where the optimizer has the same settings in both (`is_updated_alike`).
    """
    moved = trained_by(first) ^ trained_by(other)
    return (
        _of_inputs(first, other, moved)
        or _of_outputs(first, other, moved)
        or _of_frozen(other)
        or (_of_updates(first, other, _same_attributes) if is_updated_alike else "")
    )


def departure(first: Graph, other: Graph, changes: SettingChanges, masks_differ: bool = False) -> str:
    """Names the first result that `other` computes by another program than `first`; empty if it is the same program.

    `changes` are those of the optimizer's settings between the two, and `masks_differ` says that the masks of their
    batches do: attention may then be given a mask in one of them alone.
    """
    if changes.of_structure:
        return f"{changes.of_structure}, which changes the program of the update"
    if changed := _of_updates(first, other, changes.judge, _Values.without_decay if changes.decay else None):
        return changed
    return _of_program(first, other, masks_differ)


def trained_by(graph: Graph) -> frozenset[str]:
    """The parameters that have a gradient in a step graph."""
    names = (output.name for output in graph.outputs)
    return frozenset(name.removeprefix(GRADIENTS) for name in names if name.startswith(GRADIENTS))


@dataclass(frozen=True)
class SettingChanges:
    """The numbers of an optimizer's settings that changed: (before, now), and as attributes of a graph hold them.

    `kept` are old numbers that some group of parameters still has. `decay` says that a weight decay was turned on or
    off. `of_structure` names a setting that changed in another way than from one number to another.
    """

    numbers: frozenset[tuple[float, float]] = frozenset()
    kept: frozenset[float] = frozenset()
    decay: bool = False
    of_structure: str = ""

    @classmethod
    def between(cls, before: Sequence[GroupRule], now: Sequence[GroupRule]) -> SettingChanges:
        """The changes from the rules of the spec to those of a step."""
        if [type(rule) for rule in before] != [type(rule) for rule in now]:
            return cls(of_structure="the groups of parameters or their optimizers are others")
        numbers, kept, decay = set[tuple[float, float]](), set[float](), False
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            for name in type(old).model_fields:
                was, is_now = getattr(old, name), getattr(new, name)
                pairs = list(zip(was, is_now, strict=True)) if isinstance(was, tuple) else [(was, is_now)]
                for one, two in pairs:
                    if one == two:
                        kept |= {one, 1 - one, -one} if _is_number(one) else set()
                    elif _is_number(one) and _is_number(two) and one and two:
                        numbers |= {(one, two), (1 - one, 1 - two), (-one, -two)}
                    elif name == "weight_decay":
                        decay = True
                    else:
                        return cls(of_structure=f"{name} of parameter group {number} is {is_now}, and {was} before")
        return cls(frozenset(numbers), frozenset(kept), decay)

    def judge(self, mine: Node, theirs: Node) -> str:
        """Why the attributes of two nodes of the update do not follow from the changed settings; empty if they do."""
        for name, was in mine.attributes.items():
            is_now = theirs.attributes[name]
            if was != is_now and (was, is_now) not in self.numbers:
                return f"{mine.operator} has {name} {is_now}, and {was} in the first graph"
            if was == is_now and was not in self.kept and any(was == old for old, _ in self.numbers if _is_number(was)):
                return f"{mine.operator} still has {name} {was}, a setting that the record says was changed"
        return "" if mine.results == theirs.results else f"{mine.operator} has other results"


UNCHANGED: Final = SettingChanges()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_inputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = (
        {entry.name: (entry.role, entry.spec) for entry in graph.inputs if not entry.name.startswith((BATCH, SCHEDULE))}
        for graph in (first, other)
    )
    wrong = (name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    strange = sorted(name for name in wrong if name in wanted.keys() & given.keys() or not _is_slot_of(name, moved))
    return f"{strange[0]} is another input" if strange else ""


def _of_outputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = ({output.name for output in graph.outputs} for graph in (first, other))
    wrong = (name for name in wanted ^ given if not name.startswith(GRADIENTS))
    strange = sorted(name for name in wrong if not _is_slot_of(name, moved))
    return f"{strange[0]} is an output of one of them" if strange else ""


def _is_slot_of(name: str, parameters: Set[str]) -> bool:
    return name.startswith("optimizer.") and parameter_of(name) in parameters


def _of_frozen(graph: Graph) -> str:
    """A weight or slot of a parameter without a gradient is what it was."""
    trained = trained_by(graph)
    for output in graph.outputs:
        parameter = parameter_of(output.name)
        if parameter and parameter not in trained and output.value != output.name:
            return f"{output.name} has no gradient, and is changed"
    return ""


def _of_updates(first: Graph, other: Graph, judge: Judge, skip: Skip | None = None) -> str:
    """Compares what is made of gradients: the nodes between `gradients.<parameter>` and the new weights and slots."""
    pairs = _Pairs(_Values.of(first, GRADIENTS), _Values.of(other, GRADIENTS), judge, skip=skip)
    averaging = _Pairs(_Values.of(first, WEIGHTS), _Values.of(other, WEIGHTS), judge)
    both = trained_by(first) & trained_by(other)
    for name in sorted(pairs.first.outputs.keys() & pairs.other.outputs.keys()):
        compared = averaging if name.startswith(AVERAGES) else pairs
        is_compared = name.startswith((COUNTERS, AVERAGES)) or parameter_of(name) in both
        if is_compared and (unlike := compared.unlike(name)):
            return f"{name} is updated otherwise ({unlike})"
    return ""


def _of_program(first: Graph, other: Graph, masks_differ: bool) -> str:
    """Compares what is made of batch and state, up to sizes: loss, gradients, buffers, all but the update."""
    moved = trained_by(first) ^ trained_by(other)
    free = (MASKS if masks_differ else frozenset()) | (TRAINED if moved else frozenset())
    skip = _Values.without_repeats if masks_differ else None
    pairs = _Pairs(_Values.of(first), _Values.of(other), _same_but_integers(free), free, len(moved), skip)
    for name in sorted(
        pairs.first.outputs.keys() & pairs.other.outputs.keys(), key=lambda name: (name != "loss", name)
    ):
        is_updated = parameter_of(name) or name.startswith((AVERAGES, COUNTERS))
        if not is_updated and name.removeprefix(GRADIENTS) not in moved and (unlike := pairs.unlike(name)):
            return f"{name} is computed otherwise ({unlike})"
    return _SizePairs(first, other).unexplained(pairs.nodes)


def _same_attributes(mine: Node, theirs: Node) -> str:
    is_same = (mine.attributes, mine.results) == (theirs.attributes, theirs.results)
    return "" if is_same else f"{mine.operator} with other attributes"


def _same_but_integers(free: Set[str]) -> Judge:
    """Compares attributes and types, and leaves open integers: whether these follow from sizes is asked afterwards."""

    def judge(mine: Node, theirs: Node) -> str:
        for name, value in mine.attributes.items():
            its = theirs.attributes[name]
            if name not in free and value != its and not _is_size_change(value, its):
                return f"{mine.operator} has {name} {its}, and {value} in the first graph"
        kinds = [[spec and (spec.dtype, len(spec.shape)) for spec in node.results] for node in (mine, theirs)]
        return "" if kinds[0] == kinds[1] or free >= TRAINED else f"{mine.operator} gives other types"

    return judge


def _is_size_change(value: object, its: object) -> bool:
    if isinstance(value, tuple) and isinstance(its, tuple):
        return len(value) == len(its) and all(map(_is_size_change, value, its))
    return value == its or (type(value) is int and type(its) is int)


@dataclass(frozen=True)
class _Values:
    """The values of a graph: what gives each, and the names of those where a comparison ends."""

    outputs: dict[str, Ref]
    made: dict[Ref, tuple[Node, int]]
    named: dict[Ref, object]

    @classmethod
    def of(cls, graph: Graph, ends: str | None = None) -> _Values:
        outputs = {output.name: output.value for output in graph.outputs}
        made = {ref: (node, place) for node in graph.nodes for place, ref in enumerate(node.outputs) if ref is not None}
        named: dict[Ref, object] = {entry.name: entry.name for entry in graph.inputs}
        named |= {entry.name: (entry.spec, entry.digest) for entry in graph.constants}
        if ends is not None:
            named |= {ref: f"new {name}" for name, ref in outputs.items() if name.startswith(ends)}
        return cls(outputs, made, named)

    def without_repeats(self, ref: Ref) -> Ref:
        """What keys or values were before they were repeated for each head, or their gradient before it was added up.

        unsqueeze(2) → expand [B, H, n, L, D] → view [B, H·n, L, D], and backward view → sum(2) → squeeze(2).
        """
        last = self._chain(ref, ("aten.view.default", "aten.expand.default", "aten.unsqueeze.default"))
        if last is not None:
            view, expand, unsqueeze = last
            sides = _integers(expand, "size")
            is_repeat = unsqueeze.attributes["dim"] == 2 and len(sides) == 5
            if is_repeat and view.attributes["size"] == (sides[0], sides[1] * sides[2], *sides[3:]):
                return str(unsqueeze.operands["self"])
        last = self._chain(ref, ("aten.squeeze.dim", "aten.sum.dim_IntList", "aten.view.default"))
        if last is not None:
            squeeze, total, view = last
            sides = _integers(view, "size")
            source = str(view.operands["self"])
            whole = self.made[source][0].results[self.made[source][1]] if source in self.made else None
            is_sum = squeeze.attributes["dim"] == 2 and total.attributes["dim"] == (2,) and len(sides) == 5
            if is_sum and whole is not None and whole.shape == (sides[0], sides[1] * sides[2], *sides[3:]):
                return source
        return ref

    def without_decay(self, ref: Ref) -> Ref:
        """What a weight or a gradient was before weight decay: w of w·(1 − ηλ), and g of g + λ·w."""
        node = self.made[ref][0] if ref in self.made else None
        if node is None:
            return ref
        source, other = node.operands.get("self"), node.operands.get("other")
        if node.operator == "aten.mul.Tensor" and isinstance(source, str) and source.startswith(WEIGHTS):
            return source if isinstance(other, str) and self._is_fed(other, "schedule.decay") else ref
        if node.operator == "aten.add.Tensor" and isinstance(other, str) and other.startswith(WEIGHTS):
            return str(source)
        return ref

    def _is_fed(self, ref: Ref, name: str) -> bool:
        node = self.made[ref][0] if ref in self.made else None
        source = ref if node is None else str(node.operands.get("self"))
        return (node is None or node.operator == "aten._to_copy.default") and source.startswith(name)

    def _chain(self, ref: Ref, operators: tuple[str, ...]) -> tuple[Node, ...] | None:
        """The nodes that made a value one after the other, last one first, where they are these operators."""
        nodes = list[Node]()
        for operator in operators:
            node = self.made[ref][0] if ref in self.made else None
            if node is None or node.operator != operator:
                return None
            nodes.append(node)
            ref = str(node.operands["self"])
        return tuple(nodes)


@dataclass
class _Pairs:
    """Compares values of two graphs; what was compared once is not looked at again.

    `judge` compares two nodes, `free` are operands that are not compared. `missing_max` is by how many a list of
    operands may be shorter in one graph: the norm over all gradients is taken over fewer where fewer train.
    """

    first: _Values
    other: _Values
    judge: Judge
    free: Set[str] = frozenset()
    missing_max: int = 0
    skip: Skip | None = None
    """Leaves out operators that one of the graphs may have and the other not."""
    seen: set[Pair] = field(default_factory=set)
    nodes: dict[int, tuple[Node, Node]] = field(default_factory=dict)

    def unlike(self, output: str) -> str:
        """Where an output of both graphs is made otherwise; empty if it is made alike."""
        waiting = [(self.first.outputs[output], self.other.outputs[output])]
        while waiting:
            pair = waiting.pop()
            if pair in self.seen:
                continue
            self.seen.add(pair)
            reason = self._read(*pair, waiting)
            if reason:
                return reason
        return ""

    def _read(self, one: Ref, two: Ref, waiting: list[Pair]) -> str:
        """Compare what gives two values, and add the values that these are made from."""
        if self.skip is not None:
            one, two = self.skip(self.first, one), self.skip(self.other, two)
        if one in self.first.named or two in self.other.named:
            name = self.first.named.get(one)
            return "" if name == self.other.named.get(two) else f"{two} in the place of {one}"
        (mine, place), (theirs, its) = self.first.made[one], self.other.made[two]
        if place != its or mine.operator != theirs.operator or mine.operands.keys() != theirs.operands.keys():
            return f"{theirs.operator} in the place of {mine.operator}"
        if reason := self.judge(mine, theirs):
            return reason
        self.nodes[mine.number] = mine, theirs
        for name in mine.operands.keys() - self.free:
            left, right = _listed(mine, name), _listed(theirs, name)
            if len(left) != len(right):
                left, right = self._matching(left, right)
            if [ref is None for ref in left] != [ref is None for ref in right]:
                return f"{mine.operator} with other operands"
            waiting += [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
        return ""

    def _matching(self, left: list[Ref | None], right: list[Ref | None]) -> tuple[list[Ref | None], list[Ref | None]]:
        """The members of two lists that are counterparts, where parameters train in one of the graphs alone."""
        swapped, short, long = len(left) > len(right), *sorted((left, right), key=len)
        if len(long) - len(short) > self.missing_max:
            return [None], []
        kept, rest = list[Ref | None](), iter(long)
        for ref in short:
            match = next((one for one in rest if self._are_same(*((one, ref) if swapped else (ref, one)))), None)
            if match is None:
                return [None], []
            kept.append(match)
        return (kept, short) if swapped else (short, kept)

    def _are_same(self, one: Ref | None, two: Ref | None) -> bool:
        if one is None or two is None:
            return one is two
        trial = _Pairs(self.first, self.other, self.judge, self.free, 0, self.skip, set(self.seen))
        waiting = [(one, two)]
        while waiting:
            pair = waiting.pop()
            if pair not in trial.seen:
                trial.seen.add(pair)
                if trial._read(*pair, waiting):
                    return False
        return True


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes[name]
    return tuple(side for side in value if isinstance(side, int)) if isinstance(value, tuple) else ()


def _listed(node: Node, name: str) -> list[Ref | None]:
    operand = node.operands[name]
    return list(operand) if isinstance(operand, tuple) else [operand]


class _SizePairs:
    """Explains the integers in which two graphs differ by the sides of their tensors, from the batch on.

    A side of a result follows from operands and attributes by the operator's types, which were checked when the graph
    was read. So only attributes have to be explained, in the order of execution.
    """

    def __init__(self, first: Graph, other: Graph) -> None:
        self._mine, self._theirs = first.specs(), other.specs()
        named = {entry.name: entry.spec for entry in other.inputs}
        batch = ((entry.spec, named[entry.name]) for entry in first.inputs if entry.name in named)
        self._batch = [side for one, two in batch if one != two for side in _sides(one, two)]
        self._results = set(self._batch)

    def unexplained(self, nodes: Mapping[int, tuple[Node, Node]]) -> str:
        """The first integer that does not follow from the sizes of the batch; empty if all do."""
        for _, (mine, theirs) in sorted(nodes.items()):
            for name, value in mine.attributes.items():
                for was, is_now in _unequal(value, theirs.attributes[name]):
                    if name not in MASKS | TRAINED and not self._follows(mine, theirs, name, (was, is_now)):
                        return (
                            f"{mine.operator} has {name} {is_now}, and {was} in the first graph: no size of the batch"
                        )
            for one, two in zip(mine.results, theirs.results, strict=True):
                if one is not None and two is not None:
                    self._results |= set(_sides(one, two))
        return ""

    def _follows(self, mine: Node, theirs: Node, name: str, change: tuple[int, int]) -> bool:
        operands = [(self._mine[one], self._theirs[two]) for one, two in zip(mine.refs, theirs.refs, strict=False)]
        sides = [side for one, two in operands for side in _sides(one, two)]
        if name in PLACES and any(_is_as_far_from_the_end(change, side) for side in (*sides, *self._batch)):
            return True
        if name in SIZES or mine.operator in DIVISORS or mine.operator.startswith("aten.arange."):
            made = self._results if not operands else ()
            known = [side for side in (*sides, *self._batch, *made) if side != (1, 1)]
            return any(change == _product(chosen) for chosen in _choices(known))
        return False


def _is_as_far_from_the_end(change: tuple[int, int], side: tuple[int, int]) -> bool:
    """Whether two places lie equally far before the ends of two sides; the beginning of a side is no such place."""
    left = side[0] - change[0]
    return change[0] != 0 and 0 <= left <= side[0] and left == side[1] - change[1]


def _choices(sides: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    return (chosen for count in range(1, FACTORS_MAX + 1) for chosen in combinations(sides, count))


def _product(sides: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return prod(one for one, _ in sides), prod(two for _, two in sides)


def _sides(one: TensorSpec, two: TensorSpec) -> Iterator[tuple[int, int]]:
    """The sides of two tensors in pairs; none where their numbers of dimensions differ."""
    return iter(zip(one.shape, two.shape, strict=True) if len(one.shape) == len(two.shape) else ())


def _unequal(value: object, its: object) -> Iterator[tuple[int, int]]:
    """The pairs of integers in which two attributes differ."""
    if isinstance(value, tuple) and isinstance(its, tuple):
        for one, two in zip(value, its, strict=True):
            yield from _unequal(one, two)
    elif isinstance(value, int) and isinstance(its, int) and value != its:
        yield value, its
