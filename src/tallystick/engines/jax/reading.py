"""Reads StableHLO operators through MLIR's Python bindings: types, attributes, and the bodies of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec, numpy_dtype, round_to_bfloat16
from tallystick.engines.jax.emission import ELEMENTS
from tallystick.programs.operators.definition import Attribute

Attributes: TypeAlias = "dict[str, Attribute]"
Sides: TypeAlias = "tuple[int, ...]"

DTYPES: Final = {element: dtype for dtype, element in ELEMENTS.items()}
REDUCERS: Final = frozenset({"add", "multiply", "maximum", "minimum", "and", "or"})
FIRST: Final = "or(compare {word}(0,2),compare NE(0,0))"
TIE: Final = "and(compare EQ(0,2),compare LT(1,3))"
CHOICES: Final = {
    f"select({first},0,2);select(or({first},{TIE}),1,3)": name
    for name, word in (("argmax", "GT"), ("argmin", "LT"))
    for first in [FIRST.format(word=word)]
}
NORMAL: Final = "select(compare NE({place},{place}),nan,select(compare EQ({place},0.0),0.0,{place}))"
ORDERS: Final = {
    text: word
    for word in ("LT", "GT")
    for text in (
        f"compare {word}(0,1)",
        f"compare {word}({NORMAL.format(place=0)},{NORMAL.format(place=1)})",
    )
}


def spec_of(value: ir.Value) -> TensorSpec:
    """Dtype and shape; raises `UnavailableError` for a type that no tensor of a graph can have."""
    kind = value.type
    if not isinstance(kind, ir.RankedTensorType):
        raise UnavailableError(f"{str(kind)[:40]} is no tensor")
    element = str(kind.element_type)
    if element not in DTYPES:
        raise UnavailableError(f"{element[:40]} has no place in a graph")
    if not kind.has_static_shape:
        raise UnavailableError("a size depends on data")
    return TensorSpec(DTYPES[element], tuple(kind.shape))


def number_of(operation: Any) -> bool | int | float | None:
    """The number of a constant, `None` if it has several or one that an attribute cannot hold."""
    attribute, spec = operation.attributes["value"], spec_of(operation.results[0])
    if spec.size == 0:
        return False if spec.dtype == "BOOL" else 0.0 if spec.is_float else 0
    if spec.size != 1 and not attribute.is_splat:
        return None
    value = attribute.get_splat_value().value if attribute.is_splat else _elements(attribute, spec).reshape(-1)[0]
    if spec.is_float:
        return float(value)
    if spec.dtype == "BOOL":
        return bool(value)
    number = int(value) % 2 ** (8 * numpy_dtype(spec.dtype).itemsize) if spec.dtype[0] == "U" else int(value)
    return number if abs(number) < 2**53 else None


def tensor_of(operation: Any) -> Tensor:
    """The elements of a constant."""
    attribute, spec = operation.attributes["value"], spec_of(operation.results[0])
    elements = _elements(attribute, spec)
    if spec.dtype == "BF16":
        return Tensor.of(round_to_bfloat16(elements), "BF16")
    return Tensor.of(np.broadcast_to(elements, spec.shape).astype(numpy_dtype(spec.dtype)), spec.dtype)


def _elements(attribute: Any, spec: TensorSpec) -> Any:
    """The elements as a NumPy array; the bindings give bfloat16 values one by one."""
    if spec.dtype == "BF16":
        return np.array([float(value) for value in attribute], np.float32).reshape(spec.shape)
    return np.array(attribute)


def attributes_of(operation: Any) -> Attributes:
    """The attributes of an allowed operator; raises `UnavailableError` that names an unsupported one."""
    read = READERS.get(operation.name)
    return {} if read is None else read(operation)


# ---- attributes


def _integers(operation: Any, name: str, default: Iterable[int] = ()) -> Sides:
    if name not in operation.attributes:
        return tuple(default)
    return tuple(int(number) for number in operation.attributes[name])


def _integer(operation: Any, name: str, default: int) -> int:
    return int(operation.attributes[name].value) if name in operation.attributes else default


def _flag(operation: Any, name: str) -> bool:
    return bool(operation.attributes[name].value) if name in operation.attributes else False


def _optional(operation: Any, name: str) -> Iterable[Any]:
    if name not in operation.attributes:
        return ()
    listed: Iterable[Any] = operation.attributes[name]
    return listed


def _ranks(operation: Any) -> int:
    return len(spec_of(operation.operands[0]).shape)


def _result(operation: Any) -> TensorSpec:
    return spec_of(operation.results[0])


def _padding(operation: Any, count: int) -> tuple[Sides, Sides]:
    if "padding" not in operation.attributes:
        return (0,) * count, (0,) * count
    pairs = np.array(operation.attributes["padding"]).reshape(count, 2)
    return tuple(int(low) for low in pairs[:, 0]), tuple(int(high) for high in pairs[:, 1])


def _precision(operation: Any) -> str:
    if "algorithm" in operation.attributes:
        raise UnavailableError("asks for an algorithm of its own")
    config = _optional(operation, "precision_config")
    words = {stablehlo.PrecisionAttr(word).value for word in config} or {"DEFAULT"}
    if len(words) > 1:
        raise UnavailableError(f"its operands have different precisions: {sorted(words)}")
    return str(words.pop())


def _word(attribute: Any) -> str:
    return str(stablehlo.ComparisonDirectionAttr(attribute).value)


def _compare(operation: Any) -> Attributes:
    if "compare_type" in operation.attributes:
        kind = stablehlo.ComparisonTypeAttr(operation.attributes["compare_type"]).value
        if kind == "TOTALORDER":
            raise UnavailableError("compares by the total order of floats")
    return {"comparison_direction": _word(operation.attributes["comparison_direction"])}


def _lists(*names: str) -> Callable[[Any], Attributes]:
    return lambda operation: {name: _integers(operation, name) for name in names}


def _dot(operation: Any) -> Attributes:
    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    names = [f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs")]
    lists: Attributes = {name: tuple(getattr(numbers, name)) for name in names}
    return lists | {"precision": _precision(operation), "dtype": _result(operation).dtype}


def _convolution(operation: Any) -> Attributes:
    numbers = stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
    count = _ranks(operation) - 2
    once = (1,) * count
    low, high = _padding(operation, count)
    reversal = _optional(operation, "window_reversal")
    return {
        "window_strides": _integers(operation, "window_strides", once),
        "padding_low": low,
        "padding_high": high,
        "lhs_dilation": _integers(operation, "lhs_dilation", once),
        "rhs_dilation": _integers(operation, "rhs_dilation", once),
        "window_reversal": tuple(axis for axis, flag in enumerate(reversal) if flag),
        "lhs_layout": _layout(numbers, "input", "batch", "feature"),
        "rhs_layout": _layout(numbers, "kernel", "input_feature", "output_feature"),
        "output_layout": _layout(numbers, "output", "batch", "feature"),
        "feature_group_count": _integer(operation, "feature_group_count", 1),
        "batch_group_count": _integer(operation, "batch_group_count", 1),
        "precision": _precision(operation),
        "dtype": _result(operation).dtype,
    }


def _layout(numbers: Any, what: str, first: str, second: str) -> Sides:
    axes = [getattr(numbers, f"{what}_{name}_dimension") for name in (first, second)]
    return (*axes, *getattr(numbers, f"{what}_spatial_dimensions"))


def _gather(operation: Any) -> Attributes:
    numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    names = (
        *("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims"),
        "start_index_map",
    )
    lists: Attributes = {name: tuple(getattr(numbers, name)) for name in names}
    return lists | {
        "index_vector_dim": numbers.index_vector_dim,
        "slice_sizes": _integers(operation, "slice_sizes"),
        "indices_are_sorted": _flag(operation, "indices_are_sorted"),
    }


def _scatter(operation: Any) -> Attributes:
    numbers = stablehlo.ScatterDimensionNumbers(operation.attributes["scatter_dimension_numbers"])
    lists: Attributes = {
        "update_window_dims": tuple(numbers.update_window_dims),
        "inserted_window_dims": tuple(numbers.inserted_window_dims),
        "input_batching_dims": tuple(numbers.input_batching_dims),
        "scatter_indices_batching_dims": tuple(numbers.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
    }
    return lists | {
        "index_vector_dim": numbers.index_vector_dim,
        "indices_are_sorted": _flag(operation, "indices_are_sorted"),
        "unique_indices": _flag(operation, "unique_indices"),
        "reducer": reducer_of(operation.regions[0], {"add": "add", "1": "assign"}),
    }


def _reduce(operation: Any) -> Attributes:
    known = {name: name for name in REDUCERS}
    reducer = reducer_of(operation.regions[0], known | CHOICES)
    return {"dimensions": _integers(operation, "dimensions"), "reducer": reducer}


def _reduce_window(operation: Any) -> Attributes:
    if len(operation.results) != 1:
        raise UnavailableError("reduces several tensors together")
    count = _ranks(operation)
    low, high = _padding(operation, count)
    names = ("window_strides", "base_dilations", "window_dilations")
    lists: Attributes = {name: _integers(operation, name, (1,) * count) for name in names}
    return lists | {
        "window_dimensions": _integers(operation, "window_dimensions"),
        "padding_low": low,
        "padding_high": high,
        "reducer": reducer_of(operation.regions[0], {name: name for name in REDUCERS}),
    }


def _select_and_scatter(operation: Any) -> Attributes:
    count = _ranks(operation)
    low, high = _padding(operation, count)
    return {
        "window_dimensions": _integers(operation, "window_dimensions", (1,) * count),
        "window_strides": _integers(operation, "window_strides", (1,) * count),
        "padding_low": low,
        "padding_high": high,
        "select": reducer_of(operation.regions[0], {"compare GE(0,1)": "GE", "compare LE(0,1)": "LE"}),
        "scatter": reducer_of(operation.regions[1], {"add": "add"}),
    }


def _sort(operation: Any) -> Attributes:
    axis = _integer(operation, "dimension", -1) % max(_ranks(operation), 1)
    comparator = reducer_of(operation.regions[0], ORDERS)
    return {"dimension": axis, "is_stable": _flag(operation, "is_stable"), "comparator": comparator}


# ---- bodies


def reducer_of(region: Any, known: Mapping[str, str]) -> str:
    """The name of a body by its formula in `known`; raises `UnavailableError` for any other.

    In a formula, arguments are numbers; a bare operator such as `add` is applied to the two arguments.
    """
    block = region.blocks[0]
    formulas = {argument: str(place) for place, argument in enumerate(block.arguments)}
    returned = ""
    for operation in (each.operation for each in block.operations):
        inner = ",".join(_formula(value, formulas) for value in operation.operands)
        name = operation.name.removeprefix("stablehlo.")
        if name == "return":
            returned = ";".join(_formula(value, formulas) for value in operation.operands)
        elif name == "compare":
            word = _word(operation.attributes["comparison_direction"])
            formulas[operation.results[0]] = f"compare {word}({inner})"
        else:
            is_plain = inner in {"0,1", "1,0"} and len(block.arguments) == 2
            formulas[operation.results[0]] = name if is_plain else f"{name}({inner})"
    if returned not in known:
        raise UnavailableError(f"its body is none of {', '.join(sorted({*known.values()}))}")
    return known[returned]


def _formula(value: Any, formulas: Mapping[Any, str]) -> str:
    """The formula of a value; constants may be defined outside of the body; `?` for anything else."""
    if value in formulas:
        return formulas[value]
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return "?"
    return str(number_of(owner.operation))


READERS: Final[Mapping[str, Callable[[Any], Attributes]]] = {
    "stablehlo.compare": _compare,
    "stablehlo.broadcast_in_dim": lambda operation: {
        "broadcast_dimensions": _integers(operation, "broadcast_dimensions"),
        "shape": _result(operation).shape,
    },
    "stablehlo.reshape": lambda operation: {"shape": _result(operation).shape},
    "stablehlo.iota": lambda operation: {
        "iota_dimension": _integer(operation, "iota_dimension", 0),
        "shape": _result(operation).shape,
        "dtype": _result(operation).dtype,
    },
    "stablehlo.convert": lambda operation: {"dtype": _result(operation).dtype},
    "stablehlo.transpose": _lists("permutation"),
    "stablehlo.slice": _lists("start_indices", "limit_indices", "strides"),
    "stablehlo.concatenate": lambda operation: {"dimension": _integer(operation, "dimension", 0)},
    "stablehlo.reverse": _lists("dimensions"),
    "stablehlo.pad": _lists("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.dynamic_slice": _lists("slice_sizes"),
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
}
