"""A StableHLO graph as MLIR text, in MLIR's generic form.

Every word of the text comes from the tables of this file. Values get new numbers as names, and attributes are printed
as numbers. No text from a prover reaches the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import TensorSpec, round_to_bfloat16
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.operators.definition import Attribute

Attributes: TypeAlias = Mapping[str, Attribute]
Written: TypeAlias = "tuple[str, str, str]"
"""The operator's name in MLIR, its properties, its regions."""

ELEMENTS: Final = {
    "BOOL": "i1",
    **{f"I{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "BF16": "bf16",
}
FLOAT_FORMS: Final = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class Signature:
    """A node outside of a graph: operator, attributes and the specs of its operands."""

    node: Node
    operands: tuple[TensorSpec, ...]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The specs of the results."""
        return tuple(spec for spec in self.node.results if spec is not None)


def module_text(functions: Iterable[str]) -> str:
    """A module of functions."""
    return "module @program {\n" + "\n".join(functions) + "\n}\n"


def graph_function(graph: Graph, name: str = "main", called: Mapping[int, str] = MappingProxyType({})) -> str:
    """A whole graph as one function of its inputs and constants, in their order; the results are its outputs.

    A node whose number is in `called` becomes a call of that function, which the module must hold.
    Raises `UnavailableError` for an operator that is not StableHLO.
    """
    specs = graph.specs()
    sources = [*(value.name for value in graph.inputs), *(value.name for value in graph.constants)]
    names = _names(sources, graph.nodes)
    lines = [_line(node, names, specs, called.get(node.number)) for node in graph.nodes]
    outputs = [output.value for output in graph.outputs]
    return _function(name, sources, lines, outputs, names, specs)


def node_function(signature: Signature, name: str = "main") -> str:
    """One node as a function of its operands, in the order of its parameters; a repeated operand is repeated."""
    node, place = signature.node, 0
    specs: dict[Ref, TensorSpec] = {}
    operands: dict[str, Any] = {}
    for parameter, operand in node.operands.items():
        count = 1 if isinstance(operand, str) else len(operand or ())
        refs = tuple(f"operand {place + i}" for i in range(count))
        specs |= dict(zip(refs, signature.operands[place : place + count], strict=True))
        operands[parameter], place = (refs[0] if isinstance(operand, str) else refs), place + count
    sources = list(specs)
    alone = Node(0, node.operator, operands, node.attributes, node.results)
    outputs = [ref for ref in alone.outputs if ref is not None]
    specs |= dict(zip(outputs, signature.results, strict=True))
    names = _names(sources, [alone])
    return _function(name, sources, [_line(alone, names, specs)], outputs, names, specs)


def type_text(spec: TensorSpec) -> str:
    """The MLIR type of a tensor, such as `tensor<2x3xf32>`; raises `UnavailableError` for other dtypes."""
    if spec.dtype not in ELEMENTS:
        raise UnavailableError(f"StableHLO has no {spec.dtype}")
    return f"tensor<{''.join(f'{side}x' for side in spec.shape)}{ELEMENTS[spec.dtype]}>"


# ---- functions and lines


def _function(
    name: str,
    sources: Sequence[Ref],
    lines: Sequence[str],
    outputs: Sequence[Ref],
    names: Mapping[Ref, str],
    specs: Mapping[Ref, TensorSpec],
) -> str:
    arguments = ", ".join(f"{names[ref]}: {type_text(specs[ref])}" for ref in sources)
    types = _types(specs[ref] for ref in outputs)
    body = "".join(f"    {line}\n" for line in lines)
    returned = ", ".join(names[ref] for ref in outputs)
    end = f'    "func.return"({returned}) : ({types}) -> ()\n'
    return f"  func.func public @{name}({arguments}) -> ({types}) {{\n{body}{end}  }}"


def _names(sources: Sequence[Ref], nodes: Sequence[Node]) -> dict[Ref, str]:
    """The name of each value: `%v7`, or `%v7#1` for one of several results."""
    names = {ref: f"%v{place}" for place, ref in enumerate(sources)}
    for place, node in enumerate(nodes, len(sources)):
        results = [ref for ref in node.outputs if ref is not None]
        names |= {ref: f"%v{place}" + (f"#{i}" if len(results) > 1 else "") for i, ref in enumerate(results)}
    return names


def _line(node: Node, names: Mapping[Ref, str], specs: Mapping[Ref, TensorSpec], called: str | None = None) -> str:
    operands, results = node.refs, [ref for ref in node.outputs if ref is not None]
    if called is None:
        operator, properties, regions = _written(node, [specs[ref] for ref in operands])
    else:
        operator, properties, regions = "func.call", f" <{{callee = @{called}}}>", ""
    given = ", ".join(names[ref] for ref in operands)
    types = f"({_types(specs[ref] for ref in operands)}) -> ({_types(specs[ref] for ref in results)})"
    if len(results) == 1:
        return f'{names[results[0]]} = "{operator}"({given}){properties}{regions} : {types}'
    group = names[results[0]].partition("#")[0]
    return f'{group}:{len(results)} = "{operator}"({given}){properties}{regions} : {types}'


def _types(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(map(type_text, specs))


def _written(node: Node, operands: Sequence[TensorSpec]) -> Written:
    write = WRITERS.get(node.operator)
    if write is None:
        raise UnavailableError(f"{node.operator} has no form in StableHLO")
    try:
        properties, regions = write(node.attributes, operands)
    except KeyError as error:
        raise UnavailableError(f"{node.operator}: {str(error)[:60]} has no form in StableHLO") from None
    printed = ", ".join(f"{name} = {text}" for name, text in properties.items())
    inside = ", ".join(f"{{\n{region}}}" for region in regions)
    is_logical = bool(operands) and operands[0].dtype == "BOOL"
    name = (LOGICAL if is_logical else RENAMED).get(node.operator, node.operator)
    return name, f" <{{{printed}}}>" if printed else "", f" ({inside})" if inside else ""


# ---- attributes


def _array(numbers: Attribute, element: str = "i64") -> str:
    assert isinstance(numbers, tuple)
    shown = ", ".join(_bool(number) if isinstance(number, bool) else str(int(number)) for number in numbers)
    return f"array<{element}: {shown}>" if numbers else f"array<{element}>"


def _list(numbers: Attribute) -> str:
    assert isinstance(numbers, tuple)
    return "[" + ", ".join(str(int(number)) for number in numbers) + "]"


def _int(number: Attribute) -> str:
    assert isinstance(number, int)
    return f"{int(number)} : i64"


def _bool(value: Attribute) -> str:
    return "true" if value else "false"


def _padding(low: Attribute, high: Attribute) -> str:
    assert isinstance(low, tuple)
    assert isinstance(high, tuple)
    shown = ", ".join(f"[{int(before)}, {int(behind)}]" for before, behind in zip(low, high, strict=True))
    return f"dense<{f'[{shown}]' if low else ''}> : tensor<{len(low)}x2xi64>"


def _splat(value: Attribute, spec: TensorSpec) -> str:
    """A constant filled with one number; floats are printed as bits."""
    assert isinstance(value, bool | int | float)
    if spec.dtype == "BOOL":
        shown = _bool(value)
    elif spec.dtype == "BF16":
        shown = f"0x{int(round_to_bfloat16(np.array(value, np.float32))):04X}"
    elif spec.dtype in FLOAT_FORMS:
        bits = np.array(value, FLOAT_FORMS[spec.dtype]).tobytes()[::-1]
        shown = f"0x{bits.hex().upper()}"
    else:
        shown = str(int(value))
    return f"dense<{shown}> : {type_text(spec)}"


def _precision(precision: Attribute) -> str:
    word = {"DEFAULT": "DEFAULT", "HIGH": "HIGH", "HIGHEST": "HIGHEST"}[str(precision)]
    return f"[#stablehlo<precision {word}>, #stablehlo<precision {word}>]"


# ---- regions

BODIES: Final = {name: name for name in ("add", "multiply", "maximum", "minimum", "and", "or")}
LOGICAL_BODIES: Final = {"add": "or", "maximum": "or", "or": "or", "multiply": "and", "minimum": "and", "and": "and"}


def _combining(reducer: Attribute, spec: TensorSpec) -> str:
    """The body of a reduction: one operator on two elements; for `assign`, the second element."""
    element = type_text(TensorSpec(spec.dtype))
    if reducer == "assign":
        return f'    ^bb0(%x: {element}, %y: {element}):\n      "stablehlo.return"(%y) : ({element}) -> ()\n    '
    name = (LOGICAL_BODIES if spec.dtype == "BOOL" else BODIES)[str(reducer)]
    return (
        f"    ^bb0(%x: {element}, %y: {element}):\n"
        f'      %z = "stablehlo.{name}"(%x, %y) : ({element}, {element}) -> {element}\n'
        f'      "stablehlo.return"(%z) : ({element}) -> ()\n    '
    )


def _comparing(direction: Attribute, spec: TensorSpec) -> str:
    element = type_text(TensorSpec(spec.dtype))
    word = {"GE": "GE", "LE": "LE"}[str(direction)]
    return (
        f"    ^bb0(%x: {element}, %y: {element}):\n"
        f"      {_compare('%z', word, '%x', '%y', element)}\n"
        f'      "stablehlo.return"(%z) : (tensor<i1>) -> ()\n    '
    )


def _choosing(reducer: Attribute, values: TensorSpec, indices: TensorSpec) -> str:
    """The body of argmax and argmin: NaN wins, and among equal values the lowest index wins."""
    word = {"argmax": "GT", "argmin": "LT"}[str(reducer)]
    value, index = type_text(TensorSpec(values.dtype)), type_text(TensorSpec(indices.dtype))
    lines = [
        f"^bb0(%x: {value}, %i: {index}, %y: {value}, %j: {index}):",
        _compare("%beats", word, "%x", "%y", value),
        _compare("%nan", "NE", "%x", "%x", value),
        '%first = "stablehlo.or"(%beats, %nan) : (tensor<i1>, tensor<i1>) -> tensor<i1>',
        _compare("%ties", "EQ", "%x", "%y", value),
        _compare("%lower", "LT", "%i", "%j", index),
        '%tie = "stablehlo.and"(%ties, %lower) : (tensor<i1>, tensor<i1>) -> tensor<i1>',
        '%index = "stablehlo.or"(%first, %tie) : (tensor<i1>, tensor<i1>) -> tensor<i1>',
        f'%v = "stablehlo.select"(%first, %x, %y) : (tensor<i1>, {value}, {value}) -> {value}',
        f'%w = "stablehlo.select"(%index, %i, %j) : (tensor<i1>, {index}, {index}) -> {index}',
        f'"stablehlo.return"(%v, %w) : ({value}, {index}) -> ()',
    ]
    return "".join(f"    {line}\n" for line in lines) + "    "


def _ordering(comparator: Attribute, specs: Sequence[TensorSpec]) -> str:
    """The body of a sort by the first tensor: all zeros are equal; all NaN are equal and above every number."""
    word = {"LT": "LT", "GT": "GT"}[str(comparator)]
    elements = [type_text(TensorSpec(spec.dtype)) for spec in specs]
    arguments = ", ".join(f"%x{i}: {element}, %y{i}: {element}" for i, element in enumerate(elements))
    key = elements[0]
    if specs[0].dtype not in {"F16", "BF16", "F32", "F64"}:
        lines = [_compare("%z", word, "%x0", "%y0", key)]
    else:
        zero, nan = (_splat(value, TensorSpec(specs[0].dtype)) for value in (0.0, float("nan")))
        lines = [
            f'%zero = "stablehlo.constant"() <{{value = {zero}}}> : () -> {key}',
            f'%nan = "stablehlo.constant"() <{{value = {nan}}}> : () -> {key}',
            *_normalised("%x0", key),
            *_normalised("%y0", key),
            f'%z = "stablehlo.compare"(%x0n, %y0n) <{{comparison_direction = #stablehlo<comparison_direction {word}>, '
            f"compare_type = #stablehlo<comparison_type TOTALORDER>}}> : ({key}, {key}) -> tensor<i1>",
        ]
    lines = [f"^bb0({arguments}):", *lines, '"stablehlo.return"(%z) : (tensor<i1>) -> ()']
    return "".join(f"    {line}\n" for line in lines) + "    "


def _normalised(name: str, element: str) -> list[str]:
    choice = f"(tensor<i1>, {element}, {element}) -> {element}"
    return [
        _compare(f"{name}z", "EQ", name, "%zero", element),
        f'{name}s = "stablehlo.select"({name}z, %zero, {name}) : {choice}',
        _compare(f"{name}q", "NE", name, name, element),
        f'{name}n = "stablehlo.select"({name}q, %nan, {name}s) : {choice}',
    ]


def _compare(result: str, word: str, x: str, y: str, element: str) -> str:
    direction = f"<{{comparison_direction = #stablehlo<comparison_direction {word}>}}>"
    return f'{result} = "stablehlo.compare"({x}, {y}) {direction} : ({element}, {element}) -> tensor<i1>'


# ---- operators

Properties: TypeAlias = "tuple[dict[str, str], tuple[str, ...]]"
Writer: TypeAlias = Callable[[Attributes, Sequence[TensorSpec]], Properties]

_PLAIN: Final = (
    *("abs", "negate", "sign", "floor", "ceil", "round_nearest_even", "sqrt", "rsqrt", "exponential"),
    *("exponential_minus_one", "log", "log_plus_one", "sine", "cosine", "tanh", "logistic", "erf", "not"),
    *("add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "clamp", "select"),
    *("and", "or", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic", "is_finite", "convert"),
    *("reshape", "dynamic_update_slice"),
)
RENAMED: Final = {"stablehlo.erf": "chlo.erf"}
LOGICAL: Final = {"stablehlo.add": "stablehlo.or", "stablehlo.multiply": "stablehlo.and"}
"""Replacements for BOOL that mean the same: IREE 3.13 adds BOOL modulo 2."""


def _plain(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    return {}, ()


def _with(**printers: Callable[[Attribute], str]) -> Writer:
    def write(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
        return {name: printer(attributes[name]) for name, printer in printers.items()}, ()

    return write


def _compared(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    words = {word: word for word in ("EQ", "NE", "GE", "GT", "LE", "LT")}
    word = words[str(attributes["comparison_direction"])]
    return {"comparison_direction": f"#stablehlo<comparison_direction {word}>"}, ()


def _constant(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    shape, dtype = attributes["shape"], attributes["dtype"]
    assert isinstance(shape, tuple)
    return {"value": _splat(attributes["value"], TensorSpec(str(dtype), tuple(int(side) for side in shape)))}, ()


def _dot(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    names = [f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs")]
    numbers = ", ".join(f"{name} = {_list(attributes[name])}" for name in names if attributes[name])
    return {
        "dot_dimension_numbers": f"#stablehlo.dot<{numbers}>",
        "precision_config": _precision(attributes["precision"]),
    }, ()


def _convolution(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    reversed_axes = attributes["window_reversal"]
    assert isinstance(reversed_axes, tuple)
    layouts = [
        _layout(attributes[f"{side}_layout"], names)
        for side, names in (("lhs", ("b", "f")), ("rhs", ("i", "o")), ("output", ("b", "f")))
    ]
    return {
        "window_strides": _array(attributes["window_strides"]),
        "padding": _padding(attributes["padding_low"], attributes["padding_high"]),
        "lhs_dilation": _array(attributes["lhs_dilation"]),
        "rhs_dilation": _array(attributes["rhs_dilation"]),
        "window_reversal": _array(tuple(axis in reversed_axes for axis in range(len(operands[0].shape) - 2)), "i1"),
        "dimension_numbers": f"#stablehlo.conv<{layouts[0]}x{layouts[1]}->{layouts[2]}>",
        "feature_group_count": _int(attributes["feature_group_count"]),
        "batch_group_count": _int(attributes["batch_group_count"]),
        "precision_config": _precision(attributes["precision"]),
    }, ()


def _layout(axes: Attribute, names: tuple[str, str]) -> str:
    assert isinstance(axes, tuple)
    words = dict(zip(axes, (*names, *map(str, range(len(axes) - 2))), strict=True))
    return "[" + ", ".join(words[axis] for axis in range(len(axes))) + "]"


def _gather(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    lists = (
        *("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims"),
        "start_index_map",
    )
    return {
        "dimension_numbers": f"#stablehlo.gather<{_numbers(attributes, lists)}>",
        "slice_sizes": _array(attributes["slice_sizes"]),
        "indices_are_sorted": _bool(attributes["indices_are_sorted"]),
    }, ()


def _scatter(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    lists = (
        *("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims"),
        "scatter_dims_to_operand_dims",
    )
    return {
        "scatter_dimension_numbers": f"#stablehlo.scatter<{_numbers(attributes, lists)}>",
        "indices_are_sorted": _bool(attributes["indices_are_sorted"]),
        "unique_indices": _bool(attributes["unique_indices"]),
    }, (_combining(attributes["reducer"], operands[0]),)


def _numbers(attributes: Attributes, lists: Sequence[str]) -> str:
    shown = [f"{name} = {_list(attributes[name])}" for name in lists if attributes[name]]
    place = attributes["index_vector_dim"]
    assert isinstance(place, int)
    return ", ".join([*shown, f"index_vector_dim = {int(place)}"])


def _reduce(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    reducer, dimensions = attributes["reducer"], {"dimensions": _array(attributes["dimensions"])}
    if len(operands) == 4:
        return dimensions, (_choosing(reducer, operands[0], operands[1]),)
    return dimensions, (_combining(reducer, operands[0]),)


def _reduce_window(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    properties = {name: _array(attributes[name]) for name in names}
    padding = _padding(attributes["padding_low"], attributes["padding_high"])
    return properties | {"padding": padding}, (_combining(attributes["reducer"], operands[0]),)


def _select_and_scatter(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    properties = {name: _array(attributes[name]) for name in ("window_dimensions", "window_strides")}
    padding = _padding(attributes["padding_low"], attributes["padding_high"])
    regions = _comparing(attributes["select"], operands[0]), _combining(attributes["scatter"], operands[0])
    return properties | {"padding": padding}, regions


def _sort(attributes: Attributes, operands: Sequence[TensorSpec]) -> Properties:
    properties = {"dimension": _int(attributes["dimension"]), "is_stable": _bool(attributes["is_stable"])}
    return properties, (_ordering(attributes["comparator"], operands),)


WRITERS: Final[Mapping[str, Writer]] = {
    **{f"stablehlo.{name}": _plain for name in _PLAIN},
    "stablehlo.compare": _compared,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _with(iota_dimension=_int),
    "stablehlo.broadcast_in_dim": _with(broadcast_dimensions=_array),
    "stablehlo.transpose": _with(permutation=_array),
    "stablehlo.slice": _with(start_indices=_array, limit_indices=_array, strides=_array),
    "stablehlo.concatenate": _with(dimension=_int),
    "stablehlo.reverse": _with(dimensions=_array),
    "stablehlo.pad": _with(edge_padding_low=_array, edge_padding_high=_array, interior_padding=_array),
    "stablehlo.dynamic_slice": _with(slice_sizes=_array),
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
}
