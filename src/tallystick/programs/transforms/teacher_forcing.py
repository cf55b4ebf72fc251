"""Turns a decode step with a cache into one pass over a whole text: teacher forcing, on the typed graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final, Self, TypeAlias

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import check_constants, read_graph
from tallystick.programs.decoding import CACHE, PLACES, TOKENS
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Constant, Graph, Input, Node, Output, Ref, Role
from tallystick.programs.transforms.known import (
    REFERENCE,
    Known,
    KnownValues,
    StepSizes,
    choose_marks,
    is_checked,
    numbers_of,
    parameters_of,
    place_of,
)
from tallystick.programs.transforms.options import (
    DIALECTS,
    GraphWriter,
    Options,
    StackedValue,
    source,
    stacked_operands,
    written_operands,
)
from tallystick.programs.transforms.reading import NodeReader, Reading, Scale
from tallystick.programs.transforms.steps import Mixed, ReadsLater, Stacked, Steps

# The inputs and outputs of a decode step: one token of every sequence, its place, and caches.
#
# A cache either grows by one row at its end, or has slots, and the step writes the slot of the place. With slots the
# place is one number, an input without axes.

SEEN: Final = "inputs.attention_mask"
WRITTEN: Final = "stablehlo.dynamic_update_slice"
INTEGERS: Final = frozenset({"I64", "I32"})
HELD: Final = frozenset({Role.WEIGHT, Role.BUFFER})


@dataclass(frozen=True)
class _DecodeStep:
    """The sizes of a step, and the roles of its values.

    `keys` is the number of keys that a token sees in the captured step, or the number of slots. `caches` names the
    cache that each output continues, `axes` the axis along which a cache grows, or the axis that seems to hold slots.
    """

    batch: int
    past: int
    keys: int
    places: Ref | None
    caches: Mapping[str, Ref]
    axes: Mapping[Ref, int]
    sources: tuple[Input | Constant, ...]
    known: Mapping[Ref, Known]
    place: TensorSpec | None

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Read from the names of a decode graph's interface; raises `UnavailableError` naming what does not fit it."""
        inputs = {each.name: each for each in graph.inputs}
        batch = _batch(inputs.get(TOKENS))
        caches = {name.replace("inputs.", "outputs.", 1): name for name in inputs if CACHE.fullmatch(name)}
        given, specs = {each.name: each.value for each in graph.outputs}, graph.specs()
        slots = _slots(graph, caches.values())
        axes = {}
        for output, name in caches.items():
            if output not in given:
                raise UnavailableError(f"{name} does not go on as {output}")
            axes[name] = slots[name] if slots else _growing(name, inputs[name].spec, specs[given[output]])
        past = {inputs[name].spec.shape[axis] for name, axis in axes.items()}
        if len(past) != 1 or 0 in past:
            raise UnavailableError("a step reads caches of one number of places, and of at least one")
        count = past.pop()
        place = inputs[PLACES].spec if PLACES in inputs and not inputs[PLACES].spec.shape else None
        if bool(slots) != (place is not None):
            raise UnavailableError(
                f"{PLACES}: a step has one place without axes where its caches have slots, else none"
            )
        if PLACES in inputs and place is None and not _is_of_tokens(inputs[PLACES].spec, batch):
            raise UnavailableError(f"{PLACES} is {inputs[PLACES].spec}, no place of one token of each sequence")
        known = {}
        if SEEN in inputs:  # the mask of the keys of a step in which nothing is padded
            ones = REFERENCE.full(inputs[SEEN].spec.shape, 1, inputs[SEEN].spec.dtype)
            known[SEEN] = Known(ones, counted=True, sized=True)
        for each in graph.inputs:
            if each.name not in {TOKENS, PLACES, SEEN, *axes} and each.role not in HELD:
                raise UnavailableError(f"{each.name} is neither token, place, cache nor weight")
        sources = tuple(
            each for each in graph.sources if each.name not in known and (place is None or each.name != PLACES)
        )
        places = PLACES if PLACES in inputs and place is None else None
        return cls(batch, count, count if slots else count + 1, places, caches, axes, sources, known, place)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The sizes of the step."""
        return (self.batch, self.past, self.keys)

    @property
    def suspects(self) -> frozenset[int]:
        """Numbers that differ from step to step; none if caches have slots, because all steps then share one graph."""
        return frozenset() if self.place is not None else frozenset({self.past, self.keys})

    def stacked(self, marks: StepSizes, marks_sequences: bool) -> dict[Ref, Stacked]:
        """The inputs and constants, as values of all steps."""
        batch = marks.batch if marks_sequences else self.batch
        return {each.name: self._source(each, marks, batch) for each in self.sources}

    def _source(self, source: Input | Constant, marks: StepSizes, batch: int) -> Stacked:
        steps, spec = Steps(marks), source.spec
        if source.name in {TOKENS, PLACES} and isinstance(source, Input):
            rows = (batch if spec.shape[0] == self.batch else 1, marks.tokens)
            return steps.stacked(TensorSpec(spec.dtype, rows))
        if source.name not in self.axes:
            return steps.stacked(spec)
        axis = self.axes[source.name]
        sides = list(spec.shape)
        sides[axis] = marks.past
        if axis > 0 and sides[0] == self.batch:
            sides[0] = batch
        axes = tuple(marks.factors(side) for side in sides)
        return Stacked(TensorSpec(spec.dtype, tuple(sides)), axes, cache=source.name)


def _batch(tokens: Input | None) -> int:
    if tokens is None or len(tokens.spec.shape) != 2 or tokens.spec.shape[1] != 1 or not tokens.spec.shape[0]:
        raise UnavailableError(f"{TOKENS}: a step reads one token of each sequence, [B, 1]")
    return tokens.spec.shape[0]


def _is_of_tokens(spec: TensorSpec, batch: int) -> bool:
    return spec.dtype in INTEGERS and spec.shape in {(batch, 1), (1, 1)}


def _slots(graph: Graph, caches: Collection[Ref]) -> dict[Ref, int]:
    """The axes of slots if no cache grows. That the slot of the place is written is checked when nodes are followed."""
    specs, slots = graph.specs(), dict[Ref, int]()
    for node in graph.nodes:
        old, new = (node.operands.get(name) for name in ("operand", "update"))
        if node.operator == WRITTEN and old in caches and isinstance(old, str) and isinstance(new, str):
            pairs = list(enumerate(zip(specs[old].shape, specs[new].shape, strict=True)))
            slots[old] = next((axis for axis, (before, after) in pairs if before != after), 0)
    return slots if slots.keys() == set(caches) else {}


def _growing(name: str, old: TensorSpec, new: TensorSpec) -> int:
    """The one axis along which the new cache is longer by one."""
    pairs = list(zip(old.shape, new.shape, strict=False))
    longer = [axis for axis, (before, after) in enumerate(pairs) if before != after]
    if len(old.shape) != len(new.shape) or len(longer) != 1 or pairs[longer[0]][1] != pairs[longer[0]][0] + 1:
        raise UnavailableError(f"{name} is {old} and goes on as {new}: it does not grow by one row")
    return longer[0]


# The step is a function of a token, its place, and the keys and values of the earlier tokens. If all tokens are given
# at once, the cache of step t consists of the rows that the steps before t appended. So the pass needs no cache, and
# each token sees the keys up to its own. No patterns of nodes are matched. Each node is read in the algebra `Steps`,
# which derives its results for all steps from those for one. A node for which no rule applies is refused with the
# reason.
#
# One step cannot show that constants and weights do not depend on the place in the text, so this is assumed. A number
# that does depend on it was captured from the number of keys, so any number equal to that is refused. Therefore capture
# steps at a number of keys that is no other number of the model.

CHOICES_MAX: Final = 512
MASK: Final = "attn_mask"
NUMBERS: Final = frozenset({"Scalar", "Scalar?", "Scalar[]", "float", "float?", "float[]"})
NEUTRAL: Final = (float("-inf"), 0.0)
Chosen: TypeAlias = tuple[Reading, Mapping[Ref, StackedValue]]


def to_teacher_forcing(graph: Graph, length: int, constants: Mapping[Ref, Tensor] | None = None) -> Graph:
    """The graph that gives in one pass over `length` tokens what the decode graph gives token by token.

    Its inputs are `inputs.input_ids` [B, length], `inputs.position_ids` [B, length] if the step reads a place for each
    token, and the weights. Its outputs are those of the step for all tokens: logits [B, length, V], and caches of
    `length` places. Row t is the step's result for token t with the earlier tokens in the cache. `length` is at most
    the number of keys of the captured step: a sliding window or another mask could show only beyond that. `constants`
    holds every constant that a node reads, because a constant could contain a place in the text.

    Raises:
        UsageError: `length` is out of range.
        MalformedError: a constant does not have the digest that the graph states.
        UnavailableError: the graph is not such a step, or it cannot be shown that the results would be the same; the
            message names the node and the reason.
    """
    step = _DecodeStep.of(graph)
    if not 1 <= length <= step.keys:
        raise UsageError(f"{length} tokens: a step that sees {step.keys} keys shows what 1 to {step.keys} give")
    held = {each.name: (constants or {})[each.name] for each in graph.constants if each.name in (constants or {})}
    check_constants([each for each in graph.constants if each.name in held], held)
    marks = choose_marks([*numbers_of(graph), *step.numbers])
    scale = Scale(StepSizes(step.batch, 1, step.past, step.keys), marks, StepSizes(step.batch, length, 0, length))
    try:
        return _forced(graph, step, scale, held)
    except UnavailableError:
        if step.batch > 1:
            raise
        with suppress(UnavailableError):
            return _forced(graph, step, replace(scale, marks_sequences=False), held)
        raise


def _forced(graph: Graph, step: _DecodeStep, scale: Scale, constants: Mapping[Ref, Tensor]) -> Graph:
    forcing = _Forcing(graph, step, scale)
    forcing.hold(constants)
    for node in graph.nodes:
        try:
            forcing.follow(node)
        except MalformedError as error:
            raise UnavailableError(f"node {node.number}: {node.operator}: {str(error)[:300]}") from None
    return forcing.finished()


class _Forcing:
    """The state of the transformation: values of the step graph so far, and the nodes written for all steps."""

    def __init__(self, graph: Graph, step: _DecodeStep, scale: Scale) -> None:
        self.graph, self.step, self.marks = graph, step, scale.marks
        self.opaque = {each.name for each in graph.constants if each.spec.size}
        self.length = scale.whole.tokens
        self.program = KnownValues(step.suspects, self.length, dict(step.known))
        self.values = step.stacked(scale.marks, scale.marks_sequences)
        self.written: dict[Ref, Ref] = {ref: ref for ref in self.values}
        self.rows: dict[str, Ref] = {}
        self.reader, self.dialect = NodeReader(scale), DIALECTS[graph.dialect]
        self.writer = GraphWriter({ref: scale.at(value.spec, scale.whole) for ref, value in self.values.items()})
        self.options = Options(self.reader, self.dialect, self.writer, step.places is None)
        if step.place is not None:
            self.program.values[PLACES] = place_of(self.length, step.place)
        self.options.forms |= {ref: self.options.known_forms(each, []) for ref, each in self.program.values.items()}

    def hold(self, constants: Mapping[Ref, Tensor]) -> None:
        """Add the tensors of the graph's constants."""
        self.program.hold(constants)
        self.opaque -= constants.keys()
        for ref in constants:
            known = self.program.values[ref]
            copies = [source(ref, self.values[ref])] if known.is_plain else []
            self.options.forms[ref] = self.options.known_forms(known, copies)

    # ---- one node

    def follow(self, node: Node) -> None:
        """Write the nodes that do for all steps what `node` does for one; raises `MalformedError` with the reason."""
        if self.program.follow(node):
            known = {ref: self.program.values[ref] for ref in node.outputs if ref is not None}
            self.options.define(node, self.values, known)
            return
        for ref in node.refs:
            if ref in self.opaque:
                raise Mixed(f"reads {ref}, a constant that is not given")
        counted = (self.marks.tokens, self.marks.keys, self.marks.past)
        of_step = any(ref in self.values and any(map(self.values[ref].counts, counted)) for ref in node.refs)
        self._check_numbers(node, of_step)
        if of_step:
            self._write(node)
        else:
            self.options.define(node, self.values, {})

    def _write(self, node: Node) -> None:
        if self._is_slot_written(node):
            return
        reading, picked = self._chosen(node) or self._masked(node)
        grown = next((each for each in reading.results if each is not None and each.grown is not None), None)
        refs: tuple[Ref | None, ...] = (None,) * len(node.outputs)
        if grown is not None:
            self._check_row(node, grown)
            refs = (self.rows[str(grown.cache)],)
        elif not any(each is not None and each.counts(self.marks.past) for each in reading.results):
            attended = node if MASK not in picked else replace(node, operands={**node.operands, MASK: MASK})
            refs = self.writer.add(node.operator, written_operands(attended, picked), reading.whole)
        for old, new, value in zip(node.outputs, refs, reading.results, strict=True):
            if old is not None and value is not None:
                self.values[old] = replace(value, grown=None)
            if old is not None and new is not None:
                self.written[old] = new

    def _is_slot_written(self, node: Node) -> bool:
        """Whether `node` writes the token's row into the slot of its place; for all tokens, this gives the rows of all.

        No token may read the later slots; the masks of the step itself have to show that.
        """
        held = self.values.get(str(node.operands.get("operand")))
        if node.operator != WRITTEN or held is None or held.cache is None or not held.counts(self.marks.past):
            return False
        axis, update, starts = held.axis_of(self.marks.past), node.operands["update"], node.operands["start_indices"]
        assert isinstance(update, str)
        assert isinstance(starts, tuple)
        known = [self.program.values.get(str(ref)) for ref in starts]
        is_there = [
            each is not None and (each.is_place if i == axis else each.number == 0) for i, each in enumerate(known)
        ]
        new = self.values.get(update)
        if new is None or not all(is_there):
            raise Mixed(f"writes into {held.cache} elsewhere than at the place of the token")
        result = Steps(self.marks).grown(held, new, axis)
        if self.rows.setdefault(held.cache, self.written[update]) != self.written[update]:
            raise Mixed(f"writes a second, other row into {held.cache}")
        ref = str(node.outputs[0])
        self.values[ref], self.written[ref] = replace(result, grown=None), self.written[update]
        return True

    def _check_row(self, node: Node, result: Stacked) -> None:
        """A cache with the token's row appended becomes the rows of all tokens; all readers append the same row."""
        new = {self.written[ref] for ref in node.refs if self.values.get(ref) == result.grown}
        if len(new) != 1 or len(node.outputs) != 1:
            raise Mixed(f"what is put behind {result.cache} is no one value of the token")
        row = new.pop()
        if self.rows.setdefault(str(result.cache), row) != row:
            raise Mixed(f"puts a second, other row behind {result.cache}")

    def _check_numbers(self, node: Node, of_step: bool) -> None:
        """Refuse a number that may be the number of keys, used as a factor of data or as a place in a table."""
        for name, kind in parameters_of(node).items():
            if is_checked(name) or (kind not in NUMBERS and of_step):
                continue
            number = self.program.ambiguous([node.attributes[name]])
            if number is not None:
                raise Mixed(f"{name} is {number}, which may be the number of keys or of places in the cache")

    # ---- its operands

    def _chosen(self, node: Node) -> Chosen | None:
        """The first forms of the operands with which the node can be read; `None` if it then reads later keys."""
        refs = list(dict.fromkeys(node.refs))
        shapes = {self.values[ref].shape for ref in refs if ref in self.values}
        choices = [sorted(self._forms(ref), key=lambda each: each.stacked.shape not in shapes) for ref in refs]
        reasons: list[MalformedError] = []
        for chosen in islice(product(*choices), CHOICES_MAX):
            picked = dict(zip(refs, chosen, strict=True))
            try:
                return self.reader.best(node, stacked_operands(node, picked)), picked
            except MalformedError as error:
                reasons.append(error)
        if any(isinstance(each, ReadsLater) for each in reasons):
            return None
        raise next((each for each in reasons if isinstance(each, Mixed)), reasons[0])

    def _forms(self, ref: Ref) -> list[StackedValue]:
        if ref in self.options.forms:
            return self.options.of(ref)
        return [StackedValue(self.values[ref], lambda: self.written[ref])]

    def _masked(self, node: Node) -> Chosen:
        """The operands with later keys masked, if the node can then be read: masking them does not change any step.

        This is not so for a cache with slots, because there a step itself has later keys.
        """
        if self.step.place is not None:
            raise Mixed("reads slots of the cache that are yet to be written")
        for choice in (*self._with_later(node), *self._attending(node)):
            return choice
        raise Mixed("reads the keys of later tokens, and no mask shuts them out")

    def _with_later(self, node: Node) -> Iterator[Chosen]:
        for ref, later in product(dict.fromkeys(node.refs), NEUTRAL):
            held = self.values.get(ref)
            axes = (-1, -1) if held is None else (held.axis_of(self.marks.tokens), held.axis_of(self.marks.keys))
            if held is None or not held.spec.is_float or min(axes) < 0:
                continue
            self.values[ref] = replace(held, later=later)
            choice = self._attempt(node)
            if choice is not None:
                self.written[ref] = self.dialect.masked(self.writer, self.written[ref], *axes, later)
                yield choice
                return
            self.values[ref] = held

    def _attending(self, node: Node) -> Iterator[Chosen]:
        """The operands with a mask that forbids no key, which is the same as attention without a mask."""
        if node.operands.get(MASK, "") is not None:
            return
        dtypes = {self.values[ref].dtype for ref in node.refs if ref in self.values}
        for forms in self.options.open_masks(sorted(dtypes)):
            self.options.forms[MASK] = forms
            choice = self._attempt(replace(node, operands={**node.operands, MASK: MASK}))
            if choice is not None:
                yield choice
                return

    def _attempt(self, node: Node) -> Chosen | None:
        try:
            return self._chosen(node)
        except MalformedError:
            return None

    # ---- the whole

    def finished(self) -> Graph:
        """The graph of all steps, with all checks that any graph has to pass."""
        outputs = tuple(Output(each.name, self._given(each)) for each in self.graph.outputs)
        needed, nodes = {each.value for each in outputs}, list[Node]()
        for node in reversed(self.writer.nodes):
            if needed.intersection(filter(None, node.outputs)):
                needed.update(node.refs)
                nodes.append(node)
        opaque = self.step.places is None or any(each.name in needed for each in self.graph.constants)
        if opaque and not self.options.counted_places and self.step.places not in needed:
            raise UnavailableError("no place in the text enters the graph: it may have become a constant of it")
        forced = replace(
            self.graph,
            inputs=tuple(
                replace(each, spec=self.writer.specs[each.name]) for each in self.graph.inputs if each.name in needed
            ),
            constants=tuple(each for each in self.graph.constants if each.name in needed),
            nodes=tuple(reversed(nodes)),
            outputs=outputs,
        )
        return read_graph(graph_bytes(forced))

    def _given(self, output: Output) -> Ref:
        """The reference to the value of all steps for an output of the step."""
        if output.value in self.options.forms:
            return self._same(output)
        x, cache = self.values[output.value], self.step.caches.get(output.name)
        if cache is not None and (x.cache != cache or x.counts(self.marks.past)):
            raise UnavailableError(f"{output.name} is not {cache} with the row of the token behind it")
        if cache is None and x.counts(self.marks.keys) and x.later is None:
            raise UnavailableError(f"{output.name} shows keys of the cache, and is no cache")
        if x.counts(self.marks.past) or (x.counts(self.marks.tokens) and x.axis_of(self.marks.tokens) < 0):
            raise UnavailableError(f"{output.name} has no axis of its own for tokens")
        return self.written[output.value]

    def _same(self, output: Output) -> Ref:
        """The reference to an output that is the same in every step."""
        if output.value in self.program.values and not self.program.values[output.value].is_plain:
            raise UnavailableError(f"{output.name} was computed from the number of keys")
        return self._forms(output.value)[0].write()
