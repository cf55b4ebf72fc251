"""Walks two graphs side by side, to see whether they compute alike, and which places their attention reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import State, Tensor
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.slicing import verification_slice
from tallystick.programs.step_names import BATCH, GENERATOR_MOVE, INTEGERS, WEIGHTS

# Which places attend to which, in the attention of a step graph.
#
# A library leaves the mask of attention out where every token counts. So the step of a padded or packed batch is
# another program than that of a full one, and the mask in it is the prover's. It is computed here from the step's own
# batch, and compared with what the batch itself says: a token sees no padding, no other text of its row, and, in a
# causal model, nothing behind it.

OPERAND: Final = "attn_mask"
HIDDEN: Final = -1e4
"""An additive mask at or below this hides a place: half-precision masks hold -65504, others -3e38 or -inf."""

Places: TypeAlias = "npt.NDArray[np.bool_]"


def attention_kind(graph: Graph, batch: State) -> str | None:
    """`"causal"` or `"bidirectional"` where all attention in a step sees what the batch allows; `""` without attention.

    `None` where some attention sees anything else, or its mask is made of more than the batch. `batch` holds the
    tensors of a step by the names of the graph's inputs.
    """
    masks, flags = dict[Ref, None](), set[bool]()
    for node in graph.nodes:
        if "is_causal" in node.attributes and "dropout_p" in node.attributes:
            mask = node.operands.get(OPERAND)
            if isinstance(mask, str):
                masks[mask] = None
            else:
                flags.add(bool(node.attributes["is_causal"]))
    kinds = {"causal" if flag else "bidirectional" for flag in flags} | {
        _kind_of_mask(graph, ref, batch) for ref in masks
    }
    if None in kinds or len(kinds) > 1:
        return None
    return next(iter(kinds), "")


def _kind_of_mask(graph: Graph, mask: Ref, batch: State) -> str | None:
    cone = verification_slice(graph, (), (mask,))
    from_batch = all(entry.name.startswith(BATCH) and entry.spec.dtype in INTEGERS for entry in cone.inputs)
    if not from_batch or cone.constants:
        return None
    try:
        values = execute(cone, batch, Reference())[mask].array()
    except MalformedError:
        return None
    seen = values if values.dtype == np.bool_ else values == 0
    if values.dtype != np.bool_ and not np.all(seen | (values <= HIDDEN)):
        return None
    if seen.ndim != 4 or seen.shape[-1] != seen.shape[-2]:
        return None
    tables = [each for each in batch.values() if _is_table(each, seen.shape[-1])]
    if len({table.shape[0] for table in tables} | {seen.shape[0]} - {1}) > 1:
        return None
    allowed, counted = _allowed(batch, seen.shape[-1])
    for kind, places in (("causal", np.tril(allowed)), ("bidirectional", allowed)):
        same = (seen == places[:, None]) | ~counted[:, None, :, None]  # what padding itself sees counts nowhere
        if bool(np.all(same)):
            return kind
    return None


def _is_table(tensor: Tensor, length: int) -> bool:
    """Whether a tensor of the batch says something of each place in each row."""
    return len(tensor.shape) == 2 and tensor.shape[1] == length and tensor.dtype in INTEGERS


def _allowed(batch: State, length: int) -> tuple[Places, Places]:
    """Which places see which by the batch alone, BOOL[rows, L, L], and which of them are no padding, BOOL[rows, L]."""
    counted = np.ones((1, length), np.bool_)
    texts = np.zeros((1, length), np.int64)
    for name, table in batch.items():
        is_table = _is_table(table, length)
        if is_table and name.endswith("mask"):
            counted = counted & (table.array() != 0)
        elif is_table and name.endswith("position_ids"):
            positions = table.array().astype(np.int64)
            texts = np.cumsum(np.diff(positions, axis=1, prepend=positions[:, :1] - 1) != 1, axis=1)
    return (texts[:, :, None] == texts[:, None, :]) & counted[:, None, :], counted


# Walks two graphs side by side, from their outputs down, to see whether they compute alike.
#
# Values are paired: both are made by the same operator with the same attributes from values that are paired. What may
# differ between the graphs of one training is said by whoever compares: sizes, masks, the parameters that train, the
# number of micro-batches.

MASKS: Final = frozenset({"attn_mask", "attn_bias", "is_causal"})
"""Parameters of attention that tell which places see which; a full mask is often left out."""
REPEATS: Final = (
    ("aten.view.default", "aten.expand.default", "aten.unsqueeze.default"),
    ("aten._unsafe_view.default", "aten.clone.default", "aten.expand.default", "aten.unsqueeze.default"),
)
"""How keys and values are repeated for each head, last operator first."""
TRAINED: Final = frozenset({"output_mask"})
"""Parameters that say which gradients an operator gives."""
GRADIENTS: Final = "gradients."
OF_ALL: Final = (GRADIENTS, "gradient_norm")
"""Outputs that are made of every micro-batch."""
SEED: Final = "seed of a backward pass"
ONES: Final = "aten.ones_like.default"
MEAN: Final = "aten.mean.default"
SUM: Final = "aten.sum.dim_IntList"
MOVE: Final = f"{BATCH}{GENERATOR_MOVE}"
SCHEDULE: Final = "schedule."
DECAY: Final = "schedule.decay"
NEW_GRADIENT: Final = f"new {GRADIENTS}"
Pair: TypeAlias = tuple[Ref, Ref]
Judge: TypeAlias = Callable[[Node, Node], str]
Skip: TypeAlias = "Callable[[GraphValues, Ref], Ref]"


@dataclass(frozen=True)
class GraphValues:
    """The values of a graph: what gives each, and the names of those where a comparison ends."""

    outputs: dict[str, Ref]
    made: dict[Ref, tuple[Node, int]]
    named: dict[Ref, object]
    parts: dict[Ref, int] = field(default_factory=dict)
    """Which micro-batches a value is made of, one bit for each, where two graphs have different numbers of them."""
    whole: int = 0
    rows: frozenset[int] = frozenset()
    """The first sides of the tensors of the batch."""

    @classmethod
    def of(cls, graph: Graph, ends: str | None = None, splits: bool = False) -> GraphValues:
        """The values of `graph`; a comparison also ends at outputs whose names begin with `ends`."""
        outputs = {output.name: output.value for output in graph.outputs}
        made = {ref: (node, place) for node in graph.nodes for place, ref in enumerate(node.outputs) if ref is not None}
        named: dict[Ref, object] = {entry.name: entry.name for entry in graph.inputs}
        named |= {entry.name: (entry.spec, entry.digest) for entry in graph.constants}
        if ends is not None:
            named |= {ref: f"new {name}" for name, ref in outputs.items() if name.startswith(ends)}
        batch = [entry.spec.shape for entry in graph.inputs if _is_batch(entry.name) and entry.name != MOVE]
        rows = frozenset(shape[0] for shape in batch if shape)
        if not splits:
            return cls(outputs, made, named, rows=rows)
        named |= {entry.name: plain_name(entry.name) for entry in graph.inputs}
        parts = {entry.name: 1 << (_micro_batch(entry.name) or 0) for entry in graph.inputs if _is_batch(entry.name)}
        for node in graph.nodes:
            made_of = reduce(or_, (parts.get(ref, 0) for ref in node.refs), 0)
            parts |= {ref: made_of for ref in node.outputs if ref is not None and made_of}
        values = cls(outputs, made, named, parts, (1 << micro_batches(graph)) - 1, rows)
        named |= dict.fromkeys(values._seeds(), SEED)
        return values

    @property
    def averages(self) -> bool:
        """Whether the loss is the mean over micro-batches, and not their sum."""
        loss = self.made.get(self.outputs.get("loss", ""))
        return self.whole.bit_count() > 1 and loss is not None and loss[0].operator == MEAN

    def _seeds(self) -> Iterator[Ref]:
        """The gradients of the loss by itself that backward passes begin with: 1, or 1 / k where k losses are averaged.

        Those of another share are none: they scale the gradients.
        """
        count = self.whole.bit_count()
        losses = set(self.terms(self.outputs.get("loss", "")))
        for ref, (node, _) in self.made.items():
            if not self.averages:
                if node.operator == ONES and node.operands["self"] in losses:
                    yield ref
            elif (ones := self._divided(ref, count)) in self.made:
                of = self.made[ones][0]
                if of.operator == ONES and self._divided(str(of.operands["self"]), count) in losses:
                    yield ref

    def _divided(self, ref: Ref, count: int) -> Ref:
        """What was divided by `count` to give this value; empty if nothing was."""
        node = self.made[ref][0] if ref in self.made else None
        is_share = node is not None and node.operator == "aten.div.Scalar" and node.attributes["other"] == count
        return str(node.operands["self"]) if node is not None and is_share else ""

    def terms(self, ref: Ref) -> list[Ref]:
        """The parts of a sum or mean over all micro-batches, one for each of them; otherwise the value itself."""
        terms, waiting = list[Ref](), [ref]
        while waiting:
            one = waiting.pop()
            inner = self._summed(one)
            if (
                inner
                and sum(self.parts.get(part, 0) for part in inner) == self.parts.get(one)
                and all(self.parts.get(part) for part in inner)
            ):
                waiting += inner[::-1]
            else:
                terms.append(one)
        is_split = self.parts.get(ref) == self.whole and len(terms) == self.whole.bit_count()
        return terms if is_split else [ref]

    def _summed(self, ref: Ref) -> list[Ref]:
        """The values that are added up to give this one."""
        node = self.made[ref][0] if ref in self.made else None
        if node is None:
            return []
        if node.operator == "aten.add.Tensor" and node.attributes["alpha"] == 1:
            return [str(node.operands["self"]), str(node.operands["other"])]
        if node.operator in ("aten.sum.default", "aten.mean.default"):
            stack = self.made.get(str(node.operands["self"]))
            if stack is not None and stack[0].operator == "aten.stack.default":
                return [str(part) for part in _listed(stack[0], "tensors")]
        return []

    def without_copies(self, ref: Ref) -> Ref:
        """What was copied: whether `contiguous()` copies depends on sizes, and a batch of one row may need no copy."""
        while ref in self.made and ref not in self.named and self.made[ref][0].operator == "aten.clone.default":
            ref = str(self.made[ref][0].operands["self"])
        return ref

    def without_sum(self, ref: Ref, other: GraphValues, counterpart: Ref) -> Ref:
        """What was added up over the rows of a batch, where the batch of the counterpart has one row.

        The gradient of what is broadcast over rows, such as the positions of an image, is a sum over them, and autograd
        takes none over one row.
        """
        if ref in self.named or ref not in self.made or counterpart in other.named or counterpart not in other.made:
            return ref
        node, (its, place) = self.made[ref][0], other.made[counterpart]
        source = str(node.operands.get("self"))
        if node.operator != SUM or its.operator == SUM or not node.attributes["keepdim"] or source not in self.made:
            return ref
        of_one, summed = its.results[place], self.made[source][0].results[self.made[source][1]]
        if node.attributes["dim"] != (0,) or of_one is None or summed is None:
            return ref
        is_row = other.rows == {1} and summed.shape[0] in self.rows and of_one.shape == (1, *summed.shape[1:])
        return source if is_row else ref

    def without_repeats(self, ref: Ref) -> Ref:
        """What keys or values were before they were repeated for each head, or their gradient before it was added up.

        unsqueeze(2) → expand [B, H, n, L, D] → view [B, H·n, L, D], and backward view → sum(2) → squeeze(2).
        """
        ref = self.without_copies(ref)
        for chain in REPEATS:
            if (last := self._chain(ref, chain)) is not None:
                view, *_, expand, unsqueeze = last
                sides = _integers(expand, "size")
                is_repeat = unsqueeze.attributes["dim"] == 2 and len(sides) == 5
                if is_repeat and _integers(view, "size") == (sides[0], sides[1] * sides[2], *sides[3:]):
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

    def group_of(self, parameter: str) -> int | None:
        """The group of a parameter: that of the numbers its update is fed with; `None` where they are of several."""
        groups, waiting, seen = set[int](), [self.outputs[WEIGHTS + parameter]], set[Ref]()
        while waiting:
            ref = waiting.pop()
            if ref.startswith(SCHEDULE):
                number = ref.rpartition(".")[2]
                groups.add(int(number) if number.isdecimal() else 0)
            elif ref not in seen and ref not in self.named:
                waiting += self.made[ref][0].refs
            seen.add(ref)
        return groups.pop() if len(groups) == 1 else None

    def without_decay(self, ref: Ref, decays: Set[float], group: int | None) -> Ref:
        """What a weight or a gradient was before decay: w of w·(1 − ηλ), and g of g + λ·w, with a λ of `decays`.

        The product ηλ is that of the weight's own group.
        """
        node = self.made[ref][0] if ref in self.made else None
        if node is None:
            return ref
        source, other = node.operands.get("self"), node.operands.get("other")
        if node.operator == "aten.mul.Tensor" and isinstance(source, str) and source.startswith(WEIGHTS):
            is_own = isinstance(other, str) and self._is_fed(other, {DECAY, f"{DECAY}.{group}"})
            return source if is_own else ref
        is_coupled = node.operator == "aten.add.Tensor" and node.attributes["alpha"] in decays
        return str(source) if is_coupled and self._is_gradient_of(str(source), other) else ref

    def _is_gradient_of(self, ref: Ref, weight: object) -> bool:
        """Whether a value is the gradient of this weight, or its negative where a step goes up."""
        node = self.made[ref][0] if ref in self.made and ref not in self.named else None
        source = str(node.operands["self"]) if node is not None and node.operator == "aten.neg.default" else ref
        name = str(self.named.get(source, ""))
        return name.startswith(NEW_GRADIENT) and weight == WEIGHTS + name.removeprefix(NEW_GRADIENT)

    def norms_of(self, parameters: Set[str]) -> frozenset[Ref]:
        """The norms of these parameters' gradients, which are scaled by the norm over all of them."""
        gradients = set[Ref]()
        for name in parameters:
            ref = self.outputs.get(GRADIENTS + name)
            while ref is not None and ref not in gradients:
                gradients.add(ref)
                node = self.made[ref][0] if ref in self.made else None
                ref = str(node.operands["self"]) if node is not None and node.operator == "aten.mul.Tensor" else None
        norms = (
            (ref, node) for ref, (node, _) in self.made.items() if node.operator == "aten.linalg_vector_norm.default"
        )
        return frozenset(ref for ref, node in norms if node.operands["self"] in gradients)

    def mixes(self, ref: Ref) -> bool:
        """Whether a value is made of several micro-batches out of values that are made of fewer."""
        made_of = self.parts.get(ref, 0)
        refs = self.made[ref][0].refs if made_of.bit_count() > 1 else ()
        return any(self.parts.get(each, made_of) != made_of for each in refs)

    def _is_fed(self, ref: Ref, names: Set[str]) -> bool:
        node = self.made[ref][0] if ref in self.made else None
        source = ref if node is None else str(node.operands.get("self"))
        return (node is None or node.operator == "aten._to_copy.default") and source in names

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
class ValuePairs:
    """Compares values of two graphs; what was compared once is not looked at again.

    `judge` compares two nodes, `free` are operands that are not compared. `missing` are values that a list of operands
    in one graph may have and the other not: the norm over all gradients is taken over fewer where fewer train.
    """

    first: GraphValues
    other: GraphValues
    judge: Judge
    free: Set[str] = frozenset()
    missing: tuple[frozenset[Ref], frozenset[Ref]] = (frozenset(), frozenset())
    skip: Skip | None = None
    """Leaves out operators that one of the graphs may have and the other not."""
    seen: set[Pair] = field(default_factory=set)
    nodes: list[tuple[Node, Node]] = field(default_factory=list)

    def unlike(self, output: str) -> str:
        """Where an output of both graphs is made otherwise; empty if it is made alike."""
        waiting = [(self.first.outputs[output], self.other.outputs[output])]
        (one, two), whole = waiting[0], (self.first.whole, self.other.whole)
        is_whole = self.first.parts.get(one, 0) == whole[0], self.other.parts.get(two, 0) == whole[1]
        if whole[0] != whole[1] and output.startswith(OF_ALL) and is_whole == (True, False):
            return "some micro-batches are left out"
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
        one, two = self.first.without_copies(one), self.other.without_copies(two)
        one, two = self.first.without_sum(one, self.other, two), self.other.without_sum(two, self.first, one)
        if self.skip is not None:
            one, two = self.skip(self.first, one), self.skip(self.other, two)
        counts = self.first.whole.bit_count(), self.other.whole.bit_count()
        if counts[0] != counts[1]:
            ours, terms = self.first.terms(one), self.other.terms(two)
            if (len(ours), len(terms)) == counts and counts != (1, 1):
                waiting += [(ours[0], term) for term in terms if (ours[0], term) != (one, two)]
                if (ours[0], terms[0]) != (one, two):
                    return ""
        if one in self.first.named or two in self.other.named:
            name = self.first.named.get(one)
            return "" if name == self.other.named.get(two) else f"{two} in the place of {one}"
        (mine, place), (theirs, its) = self.first.made[one], self.other.made[two]
        if counts[0] != counts[1] and self.other.mixes(two):
            return f"{theirs.operator} of several micro-batches"
        if place != its or _function(mine) != _function(theirs) or mine.operands.keys() != theirs.operands.keys():
            return f"{theirs.operator} in the place of {mine.operator}"
        if reason := self.judge(mine, theirs):
            return reason
        self.nodes.append((mine, theirs))
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
        left_out = self.missing[0 if swapped else 1]
        kept, rest = list[Ref | None](), list(long)
        for ref in short:
            while rest and not self._are_same(*((rest[0], ref) if swapped else (ref, rest[0]))):
                if rest.pop(0) not in left_out:
                    return [None], []
            if not rest:
                return [None], []
            kept.append(rest.pop(0))
        if not left_out.issuperset(rest):
            return [None], []
        return (kept, short) if swapped else (short, kept)

    def _are_same(self, one: Ref | None, two: Ref | None) -> bool:
        if one is None or two is None:
            return one is two
        trial = ValuePairs(self.first, self.other, self.judge, self.free, skip=self.skip, seen=set(self.seen))
        waiting = [(one, two)]
        while waiting:
            pair = waiting.pop()
            if pair not in trial.seen:
                trial.seen.add(pair)
                if trial._read(*pair, waiting):
                    return False
        return True


def micro_batches(graph: Graph) -> int:
    """How many micro-batches a step graph reads."""
    return max((_micro_batch(entry.name) or 0 for entry in graph.inputs if _is_batch(entry.name)), default=0) + 1


def _is_batch(name: str) -> bool:
    return name.startswith(BATCH)


def _micro_batch(name: str) -> int | None:
    """The number of the micro-batch that an input belongs to; `None` where the step has one batch."""
    number = name.removeprefix(BATCH).partition(".")[0]
    return int(number) if _is_batch(name) and number.isdecimal() and "." in name.removeprefix(BATCH) else None


def plain_name(name: str) -> str:
    """The name of an input without the number of its micro-batch."""
    return name if _micro_batch(name) is None else BATCH + name.removeprefix(BATCH).partition(".")[2]


def _function(node: Node) -> str:
    """The operator of a node; a view is one function whether or not its source may be written to."""
    return node.operator.replace("aten._unsafe_view.", "aten.view.")


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes[name]
    return tuple(side for side in value if isinstance(side, int)) if isinstance(value, tuple) else ()


def _listed(node: Node, name: str) -> list[Ref | None]:
    operand = node.operands[name]
    return list(operand) if isinstance(operand, tuple) else [operand]
