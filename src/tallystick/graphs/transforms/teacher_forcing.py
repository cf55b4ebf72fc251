"""A step of generation with a cache becomes one pass over a whole text: teacher forcing, on the typed graph.

The step is a function of a token, its place and the keys and values of the tokens before. Given all tokens at once, the
cache of step t is what the steps before t put behind it, so that caches need not be given, and every key is seen by the
tokens that are not before it. Nothing is matched by form: each node is read in `Steps`, which follows what the node
makes of one step to what it makes of all, and a node for which no rule shows that is refused, with the reason.

What is assumed of the graph, because one step cannot show it: constants and weights do not depend on the place in the
text. A number that does would have been captured from the number of keys, so any that equals it is refused; capture
steps at a number of keys that is no other number of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import Final, TypeAlias

from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.graphs.admission import check_constants, read_graph
from tallystick.graphs.decode_interface import PLACES
from tallystick.graphs.encoding import graph_bytes
from tallystick.graphs.graph import Graph, Input, Node, Output, Ref
from tallystick.graphs.transforms.axes import StepSizes, choose_marks
from tallystick.graphs.transforms.decode_step import WRITTEN, DecodeStep
from tallystick.graphs.transforms.known import KnownValues, is_checked, numbers_of, parameters_of, place_of
from tallystick.graphs.transforms.options import Options, StackedValue, source, stacked_of, written_of
from tallystick.graphs.transforms.reading import NodeReader, Reading, Scale
from tallystick.graphs.transforms.steps import Mixed, ReadsLater, Stacked, Steps
from tallystick.graphs.transforms.writing import DIALECTS, GraphWriter
from tallystick.tensors.tensor import Tensor

CHOICES_MAX: Final = 512
MASK: Final = "attn_mask"
NUMBERS: Final = frozenset({"Scalar", "Scalar?", "Scalar[]", "float", "float?", "float[]"})
NEUTRAL: Final = (float("-inf"), 0.0)
Chosen: TypeAlias = tuple[Reading, Mapping[Ref, StackedValue]]


def to_teacher_forcing(graph: Graph, length: int, constants: Mapping[Ref, Tensor] | None = None) -> Graph:
    """The graph that gives for `length` tokens what the decode graph gives for one after the other.

    Its inputs are `inputs.input_ids` [B, length], `inputs.position_ids` [B, length] where the step reads a place for
    each token, and the weights. Its outputs are those of the step for all tokens: logits [B, length, V], caches of
    `length` places. Row t is the step's result for token t with the tokens before in the cache. `length` is at most the
    number of keys of the captured step, beyond which a window or another mask would not have shown. `constants` are
    those of the graph: one that is read has to be given, because it could hold a place in the text.

    Raises:
        UsageError: `length` is none.
        MalformedError: a constant has not the digest that the graph states.
        UnavailableError: the graph is no such step, or it cannot be shown that the result would be the same; the line
            names the node and the reason.
    """
    step = DecodeStep.of(graph)
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


def _forced(graph: Graph, step: DecodeStep, scale: Scale, constants: Mapping[Ref, Tensor]) -> Graph:
    forcing = _Forcing(graph, step, scale)
    forcing.hold(constants)
    for node in graph.nodes:
        try:
            forcing.follow(node)
        except MalformedError as error:
            raise UnavailableError(f"node {node.number}: {node.operator}: {str(error)[:300]}") from None
    return forcing.finished()


class _Forcing:
    """A step graph followed so far, and the graph of all steps as far as it is written."""

    def __init__(self, graph: Graph, step: DecodeStep, scale: Scale) -> None:
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
        """Know constants of the graph."""
        self.program.hold(constants)
        self.opaque -= constants.keys()
        for ref in constants:
            known = self.program.values[ref]
            copies = [source(ref, self.values[ref])] if known.is_plain else []
            self.options.forms[ref] = self.options.known_forms(known, copies)

    # ---- one node

    def follow(self, node: Node) -> None:
        """Write what gives for all steps what `node` gives for one; raises `MalformedError` with the reason."""
        if self.program.follow(node):
            known = {ref: self.program.values[ref] for ref in node.outputs if ref is not None}
            self.options.define(node, self.values, known)
            return
        for ref in node.refs:
            if ref in self.opaque:
                raise Mixed(f"reads {ref}, a constant that is not given")
        of_step = any(ref in self.values and self._is_of_step(self.values[ref]) for ref in node.refs)
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
            attended = node.operands if MASK not in picked else {**node.operands, MASK: MASK}
            operands = {name: written_of(each, picked) for name, each in attended.items()}
            refs = self.writer.add(node.operator, operands, reading.whole)
        for old, new, value in zip(node.outputs, refs, reading.results, strict=True):
            if old is not None and value is not None:
                self.values[old] = replace(value, grown=None)
            if old is not None and new is not None:
                self.written[old] = new

    def _is_slot_written(self, node: Node) -> bool:
        """A cache whose slot of the place holds the row of the token: for all tokens, the rows of all.

        What its later slots hold no token reads: the step's own masks have to show that.
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
        """A cache with the row of a token behind it is, for all tokens, the rows of all: the same for all readers."""
        new = {self.written[ref] for ref in node.refs if self.values.get(ref) == result.grown}
        if len(new) != 1 or len(node.outputs) != 1:
            raise Mixed(f"what is put behind {result.cache} is no one value of the token")
        row = new.pop()
        if self.rows.setdefault(str(result.cache), row) != row:
            raise Mixed(f"puts a second, other row behind {result.cache}")

    def _check_numbers(self, node: Node, of_step: bool) -> None:
        """A number of a node that may be the number of keys: as a factor of data, or as a place in a table."""
        for name, kind in parameters_of(node).items():
            if is_checked(name) or (kind not in NUMBERS and of_step):
                continue
            number = self.program.ambiguous([node.attributes[name]])
            if number is not None:
                raise Mixed(f"{name} is {number}, which may be the number of keys or of places in the cache")

    def _is_of_step(self, x: Stacked) -> bool:
        return x.counts(self.marks.tokens) or x.counts(self.marks.keys) or x.counts(self.marks.past)

    # ---- its operands

    def _chosen(self, node: Node) -> Chosen | None:
        """The first forms of operands with which the node can be read; `None` where that reads later keys."""
        refs = list(dict.fromkeys(node.refs))
        shapes = {self.values[ref].shape for ref in refs if ref in self.values}
        choices = [sorted(self._forms(ref), key=lambda each: each.stacked.shape not in shapes) for ref in refs]
        reasons: list[MalformedError] = []
        for chosen in islice(product(*choices), CHOICES_MAX):
            picked = dict(zip(refs, chosen, strict=True))
            try:
                arguments = {name: stacked_of(each, picked) for name, each in node.operands.items()}
                return self.reader.best(node, arguments), picked
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
        """Masking later keys changes nothing of what the steps give: where that lets the node be read, they are.

        Of slots, steps themselves have later ones.
        """
        if self.step.place is not None:
            raise Mixed("reads slots of the cache that are yet to be written")
        for found in (*self._with_later(node), *self._attending(node)):
            return found
        raise Mixed("reads the keys of later tokens, and no mask shuts them out")

    def _with_later(self, node: Node) -> Iterator[Chosen]:
        for ref, later in product(dict.fromkeys(node.refs), NEUTRAL):
            held = self.values.get(ref)
            axes = (-1, -1) if held is None else (held.axis_of(self.marks.tokens), held.axis_of(self.marks.keys))
            if held is None or not held.spec.is_float or min(axes) < 0:
                continue
            self.values[ref] = replace(held, later=later)
            found = self._attempt(node)
            if found is not None:
                self.written[ref] = self.dialect.masked(self.writer, self.written[ref], *axes, later)
                yield found
                return
            self.values[ref] = held

    def _attending(self, node: Node) -> Iterator[Chosen]:
        """Attention without a mask is attention with one that forbids nothing."""
        if node.operands.get(MASK, "") is not None:
            return
        dtypes = {self.values[ref].dtype for ref in node.refs if ref in self.values}
        for forms in self.options.open_masks(sorted(dtypes)):
            self.options.forms[MASK] = forms
            found = self._attempt(replace(node, operands={**node.operands, MASK: MASK}))
            if found is not None:
                yield found
                return

    def _attempt(self, node: Node) -> Chosen | None:
        try:
            return self._chosen(node)
        except MalformedError:
            return None

    # ---- the whole

    def finished(self) -> Graph:
        """The graph of all steps, through the door for any graph."""
        outputs = tuple(Output(each.name, self._given(each)) for each in self.graph.outputs)
        needed, nodes = {each.value for each in outputs}, list[Node]()
        for node in reversed(self.writer.nodes):
            if needed.intersection(filter(None, node.outputs)):
                needed.update(node.refs)
                nodes.append(node)
        opaque = self.step.places is None or any(each.name in needed for each in self.graph.constants)
        if opaque and not self.options.counted_places and self.step.places not in needed:
            raise UnavailableError("no place in the text enters the graph: it may have become a constant of it")
        found = replace(
            self.graph,
            inputs=tuple(self._input(each) for each in self.graph.inputs if each.name in needed),
            constants=tuple(each for each in self.graph.constants if each.name in needed),
            nodes=tuple(reversed(nodes)),
            outputs=outputs,
        )
        return read_graph(graph_bytes(found))

    def _input(self, value: Input) -> Input:
        return replace(value, spec=self.writer.specs[value.name])

    def _given(self, output: Output) -> Ref:
        """The value of all steps that an output of one becomes."""
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
        """An output that every step gives alike."""
        if output.value in self.program.values and not self.program.values[output.value].is_plain:
            raise UnavailableError(f"{output.name} was computed from the number of keys")
        return self._forms(output.value)[0].write()
