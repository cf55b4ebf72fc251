"""The forms of a value that is the same in every step, and the nodes that a whole text needs in addition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Any, Final, TypeAlias

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import FLOATS, TensorSpec
from tallystick.programs.graph import Node, Operand, Ref, operand_of, operands_of
from tallystick.programs.operators.definition import Attribute, Scalar, operator
from tallystick.programs.operators.types import Types
from tallystick.programs.transforms.known import REFERENCE, Known
from tallystick.programs.transforms.reading import NodeReader, Reading, Scale, marked
from tallystick.programs.transforms.steps import Mixed, Stacked, Steps

INDEX: Final = "I32"


@dataclass
class GraphWriter:
    """The nodes of a new graph, in order, and the specs of all its values."""

    specs: dict[Ref, TensorSpec]
    nodes: list[Node] = field(default_factory=list)
    made: dict[tuple[object, ...], tuple[Ref | None, ...]] = field(default_factory=dict)

    def add(
        self, name: str, operands: Mapping[str, Operand], attributes: Mapping[str, Attribute], shared: bool = False
    ) -> tuple[Ref | None, ...]:
        """Append a node; a `shared` node is written once and reused by later calls."""
        key = (name, *operands.items(), repr(sorted(attributes.items())))
        if shared and key in self.made:
            return self.made[key]
        arguments = {each: operand_of(operand, self.specs) for each, operand in operands.items()}
        results = operator(name).read(Types(), {**arguments, **attributes})
        node = Node(len(self.nodes), name, dict(operands), dict(attributes), results)
        self.nodes.append(node)
        self.specs |= {ref: spec for ref, spec in zip(node.outputs, results, strict=True) if ref is not None}
        self.made[key] = node.outputs
        return node.outputs

    def one(self, name: str, attributes: Mapping[str, Attribute], operands: Mapping[str, Operand] | None = None) -> Ref:
        """A shared node with one result."""
        return str(self.add(name, operands or {}, attributes, shared=True)[0])


class _Aten:
    """ATen, which broadcasts: axes along which nothing differs have one row."""

    def number(self, writer: GraphWriter, number: float, spec: TensorSpec) -> Ref:
        """`number` everywhere."""
        attributes = {"size": spec.shape, "fill_value": _scalar(number, spec.dtype), "dtype": spec.dtype}
        return writer.one("aten.full.default", attributes)

    def places(self, writer: GraphWriter, axis: int, spec: TensorSpec) -> Ref:
        """The place of each token, counted from 0 along `axis`."""
        counted = writer.one("aten.arange.default", {"end": spec.shape[axis], "dtype": spec.dtype})
        return self._shaped(writer, counted, {axis}, spec)

    def causal(self, writer: GraphWriter, tokens: int, keys: int, spec: TensorSpec, seen: float, later: float) -> Ref:
        """`seen` where the key is no later than the token, else `later`; BOOL or floats."""
        length = spec.shape[tokens]
        places = writer.one("aten.arange.default", {"end": length, "dtype": "I64"})
        column = writer.one("aten.unsqueeze.default", {"dim": 1}, {"self": places})
        first, second = (places, column) if tokens < keys else (column, places)
        how = "aten.le.Tensor" if spec.dtype != "BOOL" or seen else "aten.gt.Tensor"
        mask = writer.one(how, {}, {"self": first, "other": second})
        shaped = self._shaped(writer, mask, {tokens, keys}, TensorSpec("BOOL", spec.shape))
        if spec.dtype == "BOOL":
            return shaped
        number = self.number(writer, seen, TensorSpec(spec.dtype))
        return writer.one("aten.where.ScalarOther", {"other": later}, {"condition": shaped, "self": number})

    def masked(self, writer: GraphWriter, x: Ref, tokens: int, keys: int, later: float) -> Ref:
        """`x` with `later` at keys that are later than the token."""
        sides = writer.specs[x].shape
        alone = tuple(side if axis in {tokens, keys} else 1 for axis, side in enumerate(sides))
        mask = self.causal(writer, tokens, keys, TensorSpec("BOOL", alone), 1.0, 0.0)
        return writer.one("aten.where.ScalarOther", {"other": later}, {"condition": mask, "self": x})

    def _shaped(self, writer: GraphWriter, x: Ref, axes: set[int], spec: TensorSpec) -> Ref:
        alone = tuple(side if axis in axes else 1 for axis, side in enumerate(spec.shape))
        if writer.specs[x].shape != alone:
            x = writer.one("aten.view.default", {"size": alone}, {"self": x})
        wide: dict[str, Attribute] = {"size": spec.shape, "implicit": False}
        return x if alone == spec.shape else writer.one("aten.expand.default", wide, {"self": x})


class _StableHlo:
    """The same in StableHLO, where operands have equal shapes."""

    def number(self, writer: GraphWriter, number: float, spec: TensorSpec) -> Ref:
        attributes = {"value": _scalar(number, spec.dtype), "shape": spec.shape, "dtype": spec.dtype}
        return writer.one("stablehlo.constant", attributes)

    def places(self, writer: GraphWriter, axis: int, spec: TensorSpec) -> Ref:
        return writer.one("stablehlo.iota", {"iota_dimension": axis, "shape": spec.shape, "dtype": spec.dtype})

    def causal(self, writer: GraphWriter, tokens: int, keys: int, spec: TensorSpec, seen: float, later: float) -> Ref:
        counted = TensorSpec(INDEX, spec.shape)
        rows, columns = self.places(writer, tokens, counted), self.places(writer, keys, counted)
        how = {"comparison_direction": "LE" if spec.dtype != "BOOL" or seen else "GT"}
        mask = writer.one("stablehlo.compare", how, {"lhs": columns, "rhs": rows})
        if spec.dtype == "BOOL":
            return mask
        inside, outside = self.number(writer, seen, spec), self.number(writer, later, spec)
        return writer.one("stablehlo.select", {}, {"pred": mask, "on_true": inside, "on_false": outside})

    def masked(self, writer: GraphWriter, x: Ref, tokens: int, keys: int, later: float) -> Ref:
        spec = writer.specs[x]
        mask = self.causal(writer, tokens, keys, TensorSpec("BOOL", spec.shape), 1.0, 0.0)
        other = self.number(writer, later, spec)
        return writer.one("stablehlo.select", {}, {"pred": mask, "on_true": x, "on_false": other})


Dialect: TypeAlias = _Aten | _StableHlo
DIALECTS: Final[Mapping[str, Dialect]] = {"aten": _Aten(), "stablehlo": _StableHlo()}


def _scalar(number: float, dtype: str) -> Scalar:
    if dtype == "BOOL":
        return bool(number)
    return number if dtype in FLOATS or not math.isfinite(number) else int(number)


# The forms of a value that is the same in every step, when it meets values of all steps in one node.
#
# The value can stay as it is in the step, or be spread along tokens and keys, as its readers need. A mask that lets the
# last token see every key becomes a causal mask for all tokens. Nodes are written only after a form is chosen.

OPTIONS_MAX: Final = 48
COMBINATIONS_MAX: Final = 64
DEPTH_MAX: Final = 200


@dataclass(frozen=True)
class StackedValue:
    """A value of all steps, a function that writes its nodes, and how many nodes deep it is."""

    stacked: Stacked
    write: Callable[[], Ref]
    depth: int = 0


@dataclass
class Options:
    """The forms of values by reference; `counts_places` is set if no input of the step holds the place of a token.

    `counted_places` says whether a known number was written as that place.
    """

    reader: NodeReader
    dialect: Dialect
    writer: GraphWriter
    counts_places: bool
    counted_places: bool = False
    forms: dict[Ref, list[StackedValue]] = field(default_factory=dict)

    @property
    def scale(self) -> Scale:
        """The sizes of the step, the marks, and the sizes of the whole text."""
        return self.reader.scale

    def define(self, node: Node, held: Mapping[Ref, Stacked], known: Mapping[Ref, Known]) -> None:
        """Find the forms of the results of `node`, if it reads only values that are the same in every step.

        `held` are weights and constants, `known` the results that are computed in advance. Raises `MalformedError` for
        a node that has no form and whose results are not known.
        """
        copies: list[list[StackedValue]] = [[] for _ in node.outputs]
        if not any(each.counted for each in known.values()):
            with suppress(MalformedError) if known else nullcontext():
                copies = self._copies(node, held)
        for ref, forms in zip(node.outputs, copies, strict=True):
            if ref is not None and ref in known:
                self.forms[ref] = self.known_forms(known[ref], forms)
            elif ref is not None and forms:
                self.forms[ref] = forms
            elif ref is not None:
                raise Mixed("has no form beside values of all steps")

    def of(self, ref: Ref) -> list[StackedValue]:
        """The forms of a value in the order in which they are tried; raises `Mixed` if it has none."""
        if not self.forms[ref]:
            raise Mixed(f"{ref} was computed from the number of keys or the place, and is no causal mask")
        return self.forms[ref]

    def open_masks(self, dtypes: Iterable[str]) -> Iterator[list[StackedValue]]:
        """The forms of masks that let a token see every key, in the dtypes that attention accepts."""
        keys = self.scale.step.keys
        yield self.known_forms(Known(REFERENCE.full((1, keys), 1, "BOOL")), [])
        for dtype in dtypes:
            yield self.known_forms(Known(REFERENCE.full((1, 1, 1, keys), 0, dtype)), [])

    def known_forms(self, known: Known, copies: list[StackedValue]) -> list[StackedValue]:
        """A known value as it is (`copies`), as a causal mask, spread out, or as the place of a token."""
        if known.places:
            return self._moving_forms(known) + copies
        if known.number is None:
            return copies
        spread = list(self._spread(known))[:OPTIONS_MAX]
        causal = [option for option in (self._causal(known, each) for each in spread) if option is not None]
        if copies:
            return [*copies[:1], *causal, *copies[1:]]
        if known.is_mask:
            over_keys = [each for each in spread if self.scale.marks.keys in each.shape]
            return causal + [self._uniform(known, each) for each in over_keys]
        if self.counts_places and known.number == self.scale.step.past:
            return [option for option in (self._places(each) for each in spread) if option is not None]
        return []

    def _moving_forms(self, known: Known) -> list[StackedValue]:
        """The forms of a value that depends on the place: the place itself, or a mask of later keys."""
        spread = list(self._spread(known))[:OPTIONS_MAX]
        if known.is_place:
            return [option for option in (self._places(each) for each in spread) if option is not None]
        masks = {axis: known.causal(axis) for axis, side in enumerate(known.spec.shape) if side == self.scale.step.keys}
        forms = []
        for each in spread:
            keys = Steps(self.scale.marks).stacked(each).axis_of(self.scale.marks.keys)
            numbers = masks.get(keys)
            forms += [self._masking(each, *numbers)] if numbers is not None else []
        return [option for option in forms if option is not None]

    # ---- the nodes of the step, copied

    def _copies(self, node: Node, held: Mapping[Ref, Stacked]) -> list[list[StackedValue]]:
        """The forms of each result, from the forms of the operands and the readings of the node."""
        refs = list(dict.fromkeys(node.refs))
        choices = [self.of(ref) if ref in self.forms else [source(ref, held[ref])] for ref in refs]
        copies: list[dict[Stacked, StackedValue]] = [{} for _ in node.outputs]
        for chosen in islice(product(*choices), COMBINATIONS_MAX):
            picked = dict(zip(refs, chosen, strict=True))
            for reading in self.reader.all(node, stacked_operands(node, picked)):
                self._add_copies(node, picked, reading, copies)
        return [list(each.values())[:OPTIONS_MAX] for each in copies]

    def _add_copies(
        self,
        node: Node,
        picked: Mapping[Ref, StackedValue],
        reading: Reading,
        copies: Sequence[dict[Stacked, StackedValue]],
    ) -> None:
        depth = 1 + max((each.depth for each in picked.values()), default=0)
        if depth > DEPTH_MAX:
            raise UnavailableError(f"node {node.number}: {node.operator}: stands behind {depth} nodes of constants")
        for i, stacked in enumerate(reading.results):
            if stacked is not None and stacked not in copies[i]:
                copies[i][stacked] = StackedValue(stacked, partial(self._copy, node, picked, reading, i), depth)

    def _copy(self, node: Node, picked: Mapping[Ref, StackedValue], reading: Reading, place: int) -> Ref:
        return str(self.writer.add(node.operator, written_operands(node, picked), reading.whole, shared=True)[place])

    # ---- what is known ahead

    def _spread(self, known: Known) -> list[TensorSpec]:
        """The specs with marks that become the value's spec for one step, the least changed first."""
        sides = [[side, *marked(side, self.scale)] for side in known.spec.shape]
        marks = self.scale.marks
        shapes = [
            shape
            for shape in product(*sides)
            if all(sum(side % mark == 0 for side in shape) <= 1 for mark in (marks.batch, marks.tokens, marks.keys))
        ]
        shapes.sort(key=lambda shape: sum(a != b for a, b in zip(shape, known.spec.shape, strict=True)))
        return [TensorSpec(known.spec.dtype, shape) for shape in shapes]

    def _uniform(self, known: Known, spec: TensorSpec) -> StackedValue:
        number = known.number
        assert number is not None
        stacked = replace(Steps(self.scale.marks).stacked(spec), number=number)
        return StackedValue(
            stacked, partial(self.dialect.number, self.writer, number, self.scale.at(spec, self.scale.whole))
        )

    def _causal(self, known: Known, spec: TensorSpec) -> StackedValue | None:
        """The causal mask of a mask that excludes no key in the last step."""
        number = known.number
        if number is None or not (spec.dtype == "BOOL" or (spec.is_float and number == 0)):
            return None
        return self._masking(spec, number, 1 - number if spec.dtype == "BOOL" else -math.inf)

    def _masking(self, spec: TensorSpec, seen: float, later: float) -> StackedValue | None:
        """The value with one number at the keys that a token sees, and another at later keys."""
        stacked = Steps(self.scale.marks).stacked(spec)
        tokens, keys = (stacked.axis_of(mark) for mark in (self.scale.marks.tokens, self.scale.marks.keys))
        if min(tokens, keys) < 0 or not (spec.dtype == "BOOL" or spec.is_float):
            return None
        whole = self.scale.at(spec, self.scale.whole)
        write = partial(self.dialect.causal, self.writer, tokens, keys, whole, seen, later)
        return StackedValue(replace(stacked, later=later), write)

    def _places(self, spec: TensorSpec) -> StackedValue | None:
        """The number of places in the cache, written as the place of each token."""
        stacked = Steps(self.scale.marks).stacked(spec)
        tokens = stacked.axis_of(self.scale.marks.tokens)
        if tokens < 0 or spec.dtype == "BOOL":
            return None

        def write() -> Ref:
            self.counted_places = True
            return self.dialect.places(self.writer, tokens, self.scale.at(spec, self.scale.whole))

        return StackedValue(stacked, write)


def stacked_operands(node: Node, picked: Mapping[Ref, StackedValue]) -> dict[str, Any]:
    """The operands of a node as values of all steps."""
    return operands_of(node, {ref: value.stacked for ref, value in picked.items()})


def written_operands(node: Node, picked: Mapping[Ref, StackedValue]) -> dict[str, Any]:
    """The operands of a node as references of the new graph; nodes that are still missing are written."""
    return operands_of(node, {ref: value.write() for ref, value in picked.items()})


def source(ref: Ref, stacked: Stacked) -> StackedValue:
    """The form of a weight or a constant, which needs no nodes."""
    return StackedValue(stacked, lambda: ref)
