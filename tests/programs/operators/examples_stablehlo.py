"""Example calls of the StableHLO operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.programs.operators.examples import Bf16, Call, call

Array = npt.NDArray[Any]

FLOAT_UNARY = (
    *("abs", "negate", "sign", "floor", "ceil", "round_nearest_even", "exponential", "exponential_minus_one"),
    *("sine", "cosine", "tanh", "logistic", "erf"),
)
POSITIVE_UNARY = ("sqrt", "rsqrt", "log", "log_plus_one")
ONCE = (1, 1, 1, 1)


def floats(*shape: int, seed: int = 0) -> Array:
    """Normally distributed F32, the same at every call."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def narrow(*shape: int, seed: int = 0) -> Bf16:
    """Normally distributed BF16."""
    return Bf16(floats(*shape, seed=seed))


def integers(*shape: int, low: int = -9, high: int = 9, dtype: str = "<i4", seed: int = 0) -> Array:
    """Uniform from `low` to below `high`."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def flags(*shape: int, seed: int = 0) -> Array:
    """BOOL, half of them true."""
    return np.random.default_rng([seed, *shape]).random(shape) < 0.5


def one(name: str, **given: Any) -> Call:
    """A call of `stablehlo.<name>`."""
    return call(f"stablehlo.{name}", **given)


# ---- one element at a time


def elementwise() -> Iterator[Call]:
    for name in FLOAT_UNARY:
        yield one(name, operand=floats(3, 4))
        yield one(name, operand=narrow(3, 4))
    for name in POSITIVE_UNARY:
        yield one(name, operand=np.abs(floats(3, 4)) + np.float32(0.1))
        yield one(name, operand=Bf16(np.abs(floats(3, 4)) + np.float32(0.1)))
    for name in ("abs", "negate", "sign"):
        yield one(name, operand=integers(3, 4))
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        yield one(name, lhs=floats(3, 4), rhs=floats(3, 4, seed=1))
        yield one(name, lhs=narrow(3, 4), rhs=narrow(3, 4, seed=1))
        yield one(name, lhs=integers(3, 4), rhs=integers(3, 4, low=1, seed=1))
    yield one("power", lhs=np.abs(floats(3, 4)), rhs=floats(3, 4, seed=1))
    yield one("add", lhs=flags(9), rhs=flags(9, seed=1))
    yield one("multiply", lhs=flags(9), rhs=flags(9, seed=1))
    yield one("divide", lhs=integers(9), rhs=integers(9, low=-4, high=0, seed=1))
    yield one("divide", lhs=integers(9, low=0, high=99, dtype="<u4"), rhs=integers(9, low=1, dtype="<u4", seed=1))
    yield one("remainder", lhs=integers(9), rhs=integers(9, low=-4, high=0, seed=1))
    yield one("remainder", lhs=integers(9), rhs=integers(9, low=1, high=5, seed=1))
    low, high = np.array(-0.5, np.float32), np.array(0.5, np.float32)
    yield one("clamp", min=low, operand=floats(3, 4), max=high)
    yield one("clamp", min=-np.abs(floats(9)), operand=floats(9, seed=1), max=np.abs(floats(9, seed=2)))


def choices() -> Iterator[Call]:
    for direction in ("EQ", "NE", "GE", "GT", "LE", "LT"):
        yield one("compare", lhs=integers(9), rhs=integers(9, seed=1), comparison_direction=direction)
        yield one("compare", lhs=floats(9), rhs=floats(9, seed=1), comparison_direction=direction)
    for name in ("and", "or", "xor"):
        yield one(name, lhs=flags(9), rhs=flags(9, seed=1))
        yield one(name, lhs=integers(9), rhs=integers(9, seed=1))
    yield one("not", operand=flags(9))
    yield one("not", operand=integers(9))
    places = integers(9, low=0, high=31, seed=1)
    yield one("shift_left", lhs=integers(9), rhs=places)
    yield one("shift_right_arithmetic", lhs=integers(9), rhs=places)
    yield one("shift_right_logical", lhs=integers(9, low=0, high=99, dtype="<u4"), rhs=places.astype("<u4"))
    yield one("select", pred=flags(3, 4), on_true=floats(3, 4), on_false=floats(3, 4, seed=1))
    yield one("select", pred=np.array(True), on_true=floats(3, 4), on_false=floats(3, 4, seed=1))
    yield one("is_finite", x=np.array([1, np.inf, -np.inf, np.nan], np.float32))
    for dtype in ("BF16", "F16", "F64", "I32", "I64", "BOOL"):
        yield one("convert", operand=floats(3, 4), dtype=dtype)
    yield one("convert", operand=integers(9), dtype="F32")
    yield one("convert", operand=flags(9), dtype="F32")
    yield one("convert", operand=narrow(9), dtype="F32")


# ---- moves


def moves() -> Iterator[Call]:
    for value, dtype in ((0.1, "F32"), (-np.inf, "BF16"), (0.1, "BF16"), (1e-7, "F16"), (0.1, "F64")):
        yield one("constant", value=float(value), shape=(2, 3), dtype=dtype)
    yield one("constant", value=-7, shape=(), dtype="I32")
    yield one("constant", value=True, shape=(4,), dtype="BOOL")
    yield one("constant", value=2**32 - 1, shape=(4,), dtype="U32")
    yield one("iota", iota_dimension=1, shape=(2, 3), dtype="I32")
    yield one("iota", iota_dimension=0, shape=(2, 3), dtype="F32")
    yield one("reshape", operand=floats(3, 4), shape=(2, 6))
    yield one("transpose", operand=floats(2, 3, 4), permutation=(2, 0, 1))
    yield one("broadcast_in_dim", operand=floats(3), broadcast_dimensions=(1,), shape=(2, 3, 4))
    yield one("broadcast_in_dim", operand=floats(3, 1), broadcast_dimensions=(2, 0), shape=(1, 2, 3))
    yield one("broadcast_in_dim", operand=np.array(2.0, np.float32), broadcast_dimensions=(), shape=(2, 3))
    yield one("slice", operand=floats(5, 6), start_indices=(1, 0), limit_indices=(4, 6), strides=(1, 2))
    yield one("concatenate", inputs=(floats(2, 3), floats(1, 3), floats(4, 3)), dimension=0)
    yield one("reverse", operand=floats(2, 3, 4), dimensions=(0, 2))
    shape = {"edge_padding_low": (1, -1), "edge_padding_high": (0, 2), "interior_padding": (0, 1)}
    yield one("pad", operand=floats(3, 4), padding_value=np.array(-2.5, np.float32), **shape)
    start = (np.array(1, np.int32), np.array(9, np.int32))
    yield one("dynamic_slice", operand=floats(5, 6), start_indices=start, slice_sizes=(2, 3))
    yield one("dynamic_slice", operand=floats(5, 6), start_indices=start, slice_sizes=(5, 3))
    yield one("dynamic_update_slice", operand=floats(5, 6), update=floats(2, 3), start_indices=start)
    yield one("dynamic_update_slice", operand=floats(5, 6), update=floats(5, 3), start_indices=start)


# ---- reductions


def reductions() -> Iterator[Call]:
    for reducer, init in (("add", 0.5), ("multiply", 1), ("maximum", -np.inf), ("minimum", np.inf)):
        start = (np.array(init, np.float32),)
        yield one("reduce", inputs=(floats(3, 4, 5),), init_values=start, dimensions=(2, 0), reducer=reducer)
        yield pooled(floats(1, 2, 6, 6), init, reducer, size=2, stride=2)
    zero = (np.array(0, np.int32),)
    yield one("reduce", inputs=(integers(3, 4),), init_values=zero, dimensions=(1,), reducer="add")
    yield one("reduce", inputs=(floats(3, 4),), init_values=(np.array(1, np.float32),), dimensions=(), reducer="add")
    yield one("reduce", inputs=(flags(3, 4),), init_values=(np.array(False),), dimensions=(1,), reducer="or")
    yield one("reduce", inputs=(flags(3, 4),), init_values=(np.array(True),), dimensions=(1,), reducer="and")
    tied = np.array([[1, 3, 3, 2], [np.nan, 1, 5, np.nan], [-np.inf] * 4], np.float32)
    places = np.broadcast_to(np.arange(4, dtype=np.int32), (3, 4)).copy()
    for reducer, init in (("argmax", -np.inf), ("argmin", np.inf)):
        inits = (np.array(init, np.float32), np.array(0, np.int32))
        yield one("reduce", inputs=(tied, places), init_values=inits, dimensions=(1,), reducer=reducer)
    yield pooled(floats(1, 2, 6, 6), -np.inf, "maximum", size=3, stride=2, padding=1)
    yield pooled(floats(1, 2, 6, 6), 0, "add", size=2, stride=1, padding=1, base=2, dilation=2)
    yield running(floats(3, 5))
    select = {"window_dimensions": (1, 1, 2, 2), "window_strides": (1, 1, 2, 2), "scatter": "add"}
    none = {"padding_low": (0, 0, 0, 0), "padding_high": (0, 0, 0, 0)}
    zeroed = np.array(0, np.float32)
    operand, source = floats(1, 2, 6, 6), floats(1, 2, 3, 3)
    yield one("select_and_scatter", operand=operand, source=source, init_value=zeroed, select="GE", **select, **none)
    flat = np.zeros((1, 2, 6, 6), np.float32)
    yield one("select_and_scatter", operand=flat, source=source, init_value=zeroed, select="LE", **select, **none)
    overlap = {"window_dimensions": (1, 1, 3, 3), "window_strides": (1, 1, 2, 2), "scatter": "add"}
    around = {"padding_low": (0, 0, 1, 1), "padding_high": (0, 0, 0, 0)}
    yield one("select_and_scatter", operand=operand, source=source, init_value=zeroed, select="GE", **overlap, **around)


def pooled(
    operand: Array,
    init: float,
    reducer: str,
    *,
    size: int,
    stride: int,
    padding: int = 0,
    base: int = 1,
    dilation: int = 1,
) -> Call:
    """Windows over the two last axes."""
    return one(
        "reduce_window",
        operand=operand,
        init_value=np.array(init, np.float32),
        window_dimensions=(1, 1, size, size),
        window_strides=(1, 1, stride, stride),
        base_dilations=(1, 1, base, base),
        window_dilations=(1, 1, dilation, dilation),
        padding_low=(0, 0, padding, padding),
        padding_high=(0, 0, padding, 0),
        reducer=reducer,
    )


def running(operand: Array) -> Call:
    """A cumulative sum along the last axis, as windows."""
    columns = operand.shape[1]
    return one(
        "reduce_window",
        operand=operand,
        init_value=np.array(0, np.float32),
        window_dimensions=(1, columns),
        window_strides=(1, 1),
        base_dilations=(1, 1),
        window_dilations=(1, 1),
        padding_low=(0, columns - 1),
        padding_high=(0, 0),
        reducer="add",
    )


# ---- products


def products() -> Iterator[Call]:
    yield dotted(floats(3, 5), floats(5, 4), (), (), (1,), (0,))
    yield dotted(floats(2, 3, 5), floats(5, 2, 4), (0,), (1,), (2,), (0,))
    yield dotted(narrow(3, 5), narrow(5, 4), (), (), (1,), (0,), dtype="F32")
    yield dotted(narrow(3, 5), narrow(5, 4), (), (), (1,), (0,), dtype="BF16")
    yield dotted(integers(3, 5), integers(5, 4), (), (), (1,), (0,), dtype="I32", precision="HIGHEST")
    yield convolved(floats(2, 3, 8, 7), floats(4, 3, 3, 3))
    yield convolved(floats(2, 3, 8, 7), floats(4, 3, 3, 3), strides=(2, 1), low=(1, 0), high=(0, 2), rhs=(2, 1))
    yield convolved(floats(2, 3, 8, 7), floats(4, 3, 3, 3), lhs=(2, 3), low=(2, 2), high=(1, -1), reversal=(0, 1))
    yield convolved(floats(2, 4, 8, 7), floats(6, 2, 3, 3), feature_groups=2)
    yield convolved(floats(4, 3, 8, 7), floats(6, 3, 3, 3), batch_groups=2)
    nhwc = {"lhs_layout": (0, 3, 1, 2), "rhs_layout": (2, 3, 0, 1), "output_layout": (0, 3, 1, 2)}
    yield convolved(floats(2, 8, 7, 3), floats(3, 3, 3, 4), **nhwc)
    yield convolved(floats(2, 3, 8, 7), floats(4, 3, 1, 1))


def dotted(
    lhs: Any,
    rhs: Any,
    left_batch: tuple[int, ...],
    right_batch: tuple[int, ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: str = "F32",
    precision: str = "DEFAULT",
) -> Call:
    """Batching axes, then contracting axes."""
    return one(
        "dot_general",
        lhs=lhs,
        rhs=rhs,
        lhs_batching_dimensions=left_batch,
        rhs_batching_dimensions=right_batch,
        lhs_contracting_dimensions=left,
        rhs_contracting_dimensions=right,
        precision=precision,
        dtype=dtype,
    )


def convolved(
    x: Array,
    kernel: Array,
    *,
    strides: tuple[int, ...] = (1, 1),
    low: tuple[int, ...] = (0, 0),
    high: tuple[int, ...] = (0, 0),
    lhs: tuple[int, ...] = (1, 1),
    rhs: tuple[int, ...] = (1, 1),
    reversal: tuple[int, ...] = (),
    feature_groups: int = 1,
    batch_groups: int = 1,
    **layouts: Any,
) -> Call:
    """Batch and features first, unless layouts are given."""
    usual = {"lhs_layout": (0, 1, 2, 3), "rhs_layout": (1, 0, 2, 3), "output_layout": (0, 1, 2, 3)}
    return one(
        "convolution",
        lhs=x,
        rhs=kernel,
        window_strides=strides,
        padding_low=low,
        padding_high=high,
        lhs_dilation=lhs,
        rhs_dilation=rhs,
        window_reversal=reversal,
        feature_group_count=feature_groups,
        batch_group_count=batch_groups,
        precision="DEFAULT",
        dtype="F32",
        **(usual | layouts),
    )


# ---- places that are computed


def indexed() -> Iterator[Call]:
    ids = np.array([[0, 5], [9, -3], [2, 2]], np.int32)
    rows = {"collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 2}
    yield gathered(floats(6, 4), ids, offset_dims=(2,), slice_sizes=(1, 4), **rows)
    yield gathered(floats(6, 4), ids, offset_dims=(0,), slice_sizes=(1, 4), **rows)
    yield gathered(floats(6, 4), ids, offset_dims=(2,), slice_sizes=(1, 2), **rows)
    pairs = {"start_index_map": (1, 0), "index_vector_dim": 1}
    yield gathered(floats(6, 4), ids, offset_dims=(1, 2), slice_sizes=(2, 3), **pairs)
    yield gathered(floats(6, 4), ids, offset_dims=(1,), slice_sizes=(2, 1), collapsed_slice_dims=(1,), **pairs)
    along = {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,), "start_index_map": (1,)}
    yield gathered(
        floats(3, 4), ids, offset_dims=(), collapsed_slice_dims=(1,), slice_sizes=(1, 1), index_vector_dim=2, **along
    )
    yield gathered(floats(3, 4), ids[..., None], offset_dims=(2,), slice_sizes=(1, 2), index_vector_dim=2, **along)
    inserted = {"inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 2}
    for reducer in ("add", "assign"):
        distinct = ids if reducer == "add" else np.array([[0, 5], [9, -3], [2, 3]], np.int32)
        yield scattered(floats(6, 4), distinct, floats(3, 2, 4), reducer, update_window_dims=(2,), **inserted)
        yield scattered(floats(6, 4), distinct, floats(4, 3, 2), reducer, update_window_dims=(0,), **inserted)
    apart = np.array([[0, 0], [1, 4], [9, 9]], np.int32)
    blocks = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0, 1)}
    yield scattered(floats(6, 4), apart, floats(3, 1), "assign", index_vector_dim=1, **blocks)
    along = {"input_batching_dims": (0,), "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,)}
    yield scattered(
        floats(3, 4), ids[..., None], floats(3, 2), "add", inserted_window_dims=(1,), index_vector_dim=2, **along
    )
    for comparator in ("LT", "GT"):
        yield one("sort", inputs=(floats(3, 9),), dimension=1, is_stable=True, comparator=comparator)
        tied, carried = integers(9, 3, low=0, high=4), floats(9, 3)
        yield one("sort", inputs=(tied, carried), dimension=0, is_stable=True, comparator=comparator)
    odd = np.array([np.nan, 1, -0.0, 0.0, -np.inf, np.nan, np.inf], np.float32)
    yield one("sort", inputs=(odd, np.arange(7, dtype=np.int32)), dimension=0, is_stable=True, comparator="LT")


def gathered(operand: Array, indices: Array, **given: Any) -> Call:
    """A gather without what is not given."""
    lists = ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims")
    usual = dict.fromkeys(lists, ()) | {"indices_are_sorted": False}
    return one("gather", operand=operand, start_indices=indices, **(usual | given))


def scattered(x: Array, indices: Array, updates: Array, reducer: str, **given: Any) -> Call:
    """A scatter without what is not given."""
    lists = ("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims")
    usual = dict.fromkeys(lists, ()) | {"indices_are_sorted": False, "unique_indices": False}
    return one("scatter", input=x, scatter_indices=indices, updates=updates, reducer=reducer, **(usual | given))


def table(*calls: Iterator[Call]) -> dict[str, list[Call]]:
    """Calls by operator."""
    found: dict[str, list[Call]] = {}
    for each in (each for several in calls for each in several):
        found.setdefault(each.operator, []).append(each)
    return found


def malformed() -> Iterator[Call]:
    both = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder")
    for name in (*both, "and", "or", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"):
        yield one(name, lhs=integers(2, 3), rhs=integers(3))
    for name in (*FLOAT_UNARY, *POSITIVE_UNARY):
        yield one(name, operand=flags(3))
    for name in ("remainder", "and", "or", "xor", "shift_left", "shift_right_arithmetic"):
        yield one(name, lhs=floats(3), rhs=floats(3))
    yield one("shift_right_logical", lhs=integers(3), rhs=integers(3))
    yield one("clamp", min=floats(2), operand=floats(3), max=floats(3))
    yield one("compare", lhs=floats(3), rhs=floats(3), comparison_direction="SIDEWAYS")
    yield one("not", operand=floats(3))
    yield one("select", pred=flags(2), on_true=floats(3), on_false=floats(3))
    yield one("is_finite", x=integers(3))
    yield one("convert", operand=floats(3), dtype="F8_E5M2")
    yield one("constant", value=2**40, shape=(2,), dtype="I32")
    yield one("constant", value=0, shape=(-1,), dtype="I32")
    yield one("iota", iota_dimension=2, shape=(2, 3), dtype="I32")
    yield one("reshape", operand=floats(3, 4), shape=(5, 2))
    yield one("transpose", operand=floats(3, 4), permutation=(0, 0))
    yield one("broadcast_in_dim", operand=floats(3), broadcast_dimensions=(0,), shape=(2, 3))
    yield one("slice", operand=floats(5), start_indices=(1,), limit_indices=(6,), strides=(1,))
    yield one("slice", operand=floats(5), start_indices=(1,), limit_indices=(4,), strides=(0,))
    yield one("concatenate", inputs=(), dimension=0)
    yield one("concatenate", inputs=(floats(2, 3), floats(2, 4)), dimension=0)
    yield one("reverse", operand=floats(2, 3), dimensions=(2,))
    single = {"edge_padding_low": (-2,), "edge_padding_high": (0,), "interior_padding": (0,)}
    yield one("pad", operand=floats(1), padding_value=np.array(0, np.float32), **single)
    start = (np.array(1, np.int32),)
    yield one("dynamic_slice", operand=floats(5), start_indices=start, slice_sizes=(6,))
    yield one("dynamic_update_slice", operand=floats(5), update=floats(6), start_indices=start)
    zero = (np.array(0, np.float32),)
    yield one("reduce", inputs=(floats(3),), init_values=zero, dimensions=(0,), reducer="subtract")
    yield one("reduce", inputs=(floats(3),), init_values=zero, dimensions=(1,), reducer="add")
    yield one("reduce", inputs=(floats(3),), init_values=zero, dimensions=(0,), reducer="argmax")
    yield pooled(floats(1, 2, 6, 6), 0, "subtract", size=2, stride=2)
    yield pooled(floats(1, 2, 6, 6), 0, "add", size=9, stride=2)
    select = {"window_dimensions": (2,), "window_strides": (2,), "padding_low": (0,), "padding_high": (0,)}
    given = {"operand": floats(6), "init_value": zero[0], **select}
    yield one("select_and_scatter", source=floats(3), select="NE", scatter="add", **given)
    yield one("select_and_scatter", source=floats(4), select="GE", scatter="add", **given)
    yield dotted(floats(3, 5), floats(4, 4), (), (), (1,), (0,))
    yield dotted(floats(3, 5), floats(5, 4), (), (), (1,), (0,), precision="SLOPPY")
    yield convolved(floats(2, 3, 8, 7), floats(4, 2, 3, 3))
    yield convolved(floats(2, 3, 8, 7), floats(4, 3, 9, 3))
    ids = np.array([[0], [1]], np.int32)
    rows = {"collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
    yield gathered(floats(6, 4), ids, offset_dims=(1,), slice_sizes=(2, 4), **rows)
    yield gathered(floats(6, 4), ids, offset_dims=(1,), slice_sizes=(1, 5), **rows)
    yield gathered(floats(6, 4), floats(2, 1), offset_dims=(1,), slice_sizes=(1, 4), **rows)
    inserted = {"inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1}
    yield scattered(floats(6, 4), ids, floats(3, 4), "add", update_window_dims=(1,), **inserted)
    yield scattered(floats(6, 4), ids, floats(2, 4), "subtract", update_window_dims=(1,), **inserted)
    yield one("sort", inputs=(floats(3, 9),), dimension=2, is_stable=True, comparator="LT")
    yield one("sort", inputs=(floats(3, 9),), dimension=1, is_stable=True, comparator="NE")


EXAMPLES = table(elementwise(), choices(), moves(), reductions(), products(), indexed())
MALFORMED = table(malformed())
