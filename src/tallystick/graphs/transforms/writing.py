"""Writes nodes that a whole text needs and one token does not: causal masks, ranges of places, larger constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tallystick.graphs.graph import Node, Operand, Ref
from tallystick.operators.definition import Attribute, Scalar
from tallystick.operators.registry import operator
from tallystick.operators.types import Types
from tallystick.tensors.spec import TensorSpec

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
        arguments = {each: self._specs_of(operand) for each, operand in operands.items()}
        results = operator(name).read(Types(), {**arguments, **attributes})
        node = Node(len(self.nodes), name, dict(operands), dict(attributes), results)
        self.nodes.append(node)
        self.specs |= {ref: spec for ref, spec in zip(node.outputs, results, strict=True) if ref is not None}
        self.made[key] = node.outputs
        return node.outputs

    def one(self, name: str, attributes: Mapping[str, Attribute], operands: Mapping[str, Operand] | None = None) -> Ref:
        """A shared node with one result."""
        return str(self.add(name, operands or {}, attributes, shared=True)[0])

    def _specs_of(self, operand: Operand) -> Any:
        if isinstance(operand, tuple):
            return tuple(None if ref is None else self.specs[ref] for ref in operand)
        return None if operand is None else self.specs[operand]


class Dialect(Protocol):
    """The nodes that a whole text needs, in one dialect."""

    def number(self, writer: GraphWriter, number: float, spec: TensorSpec) -> Ref:
        """`number` everywhere."""
        ...

    def places(self, writer: GraphWriter, axis: int, spec: TensorSpec) -> Ref:
        """The place of each token, counted from 0 along `axis`."""
        ...

    def causal(self, writer: GraphWriter, tokens: int, keys: int, spec: TensorSpec, seen: float, later: float) -> Ref:
        """`seen` where the key is no later than the token, else `later`; BOOL or floats."""
        ...

    def masked(self, writer: GraphWriter, x: Ref, tokens: int, keys: int, later: float) -> Ref:
        """`x` with `later` at keys that are later than the token."""
        ...


class Aten:
    """ATen, which broadcasts: axes along which nothing differs have one row."""

    def number(self, writer: GraphWriter, number: float, spec: TensorSpec) -> Ref:
        """As `Dialect.number`."""
        attributes = {"size": spec.shape, "fill_value": _scalar(number, spec.dtype), "dtype": spec.dtype}
        return writer.one("aten.full.default", attributes)

    def places(self, writer: GraphWriter, axis: int, spec: TensorSpec) -> Ref:
        """As `Dialect.places`."""
        counted = writer.one("aten.arange.default", {"end": spec.shape[axis], "dtype": spec.dtype})
        return self._shaped(writer, counted, {axis}, spec)

    def causal(self, writer: GraphWriter, tokens: int, keys: int, spec: TensorSpec, seen: float, later: float) -> Ref:
        """As `Dialect.causal`."""
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
        """As `Dialect.masked`."""
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


class StableHlo:
    """StableHLO, where operands have equal shapes."""

    def number(self, writer: GraphWriter, number: float, spec: TensorSpec) -> Ref:
        """As `Dialect.number`."""
        attributes = {"value": _scalar(number, spec.dtype), "shape": spec.shape, "dtype": spec.dtype}
        return writer.one("stablehlo.constant", attributes)

    def places(self, writer: GraphWriter, axis: int, spec: TensorSpec) -> Ref:
        """As `Dialect.places`."""
        return writer.one("stablehlo.iota", {"iota_dimension": axis, "shape": spec.shape, "dtype": spec.dtype})

    def causal(self, writer: GraphWriter, tokens: int, keys: int, spec: TensorSpec, seen: float, later: float) -> Ref:
        """As `Dialect.causal`."""
        counted = TensorSpec(INDEX, spec.shape)
        rows, columns = self.places(writer, tokens, counted), self.places(writer, keys, counted)
        how = {"comparison_direction": "LE" if spec.dtype != "BOOL" or seen else "GT"}
        mask = writer.one("stablehlo.compare", how, {"lhs": columns, "rhs": rows})
        if spec.dtype == "BOOL":
            return mask
        inside, outside = self.number(writer, seen, spec), self.number(writer, later, spec)
        return writer.one("stablehlo.select", {}, {"pred": mask, "on_true": inside, "on_false": outside})

    def masked(self, writer: GraphWriter, x: Ref, tokens: int, keys: int, later: float) -> Ref:
        """As `Dialect.masked`."""
        spec = writer.specs[x]
        mask = self.causal(writer, tokens, keys, TensorSpec("BOOL", spec.shape), 1.0, 0.0)
        other = self.number(writer, later, spec)
        return writer.one("stablehlo.select", {}, {"pred": mask, "on_true": x, "on_false": other})


DIALECTS: Final[Mapping[str, Dialect]] = {"aten": Aten(), "stablehlo": StableHlo()}


def _scalar(number: float, dtype: str) -> Scalar:
    if dtype == "BOOL":
        return bool(number)
    is_float = dtype in {"F16", "BF16", "F32", "F64"}
    return number if is_float or not math.isfinite(number) else int(number)
