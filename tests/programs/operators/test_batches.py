"""Where `Batches` says that examples stay apart, each one computed alone gives its part of the batch's result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.batches import Batched, Batches, Mixes
from tallystick.programs.operators.definition import OPERATORS, Exactness, Operator, Parameter, operator
from tallystick.programs.operators.types import Types
from tallystick.programs.operators.values import Value, Values
from tests.programs.operators.examples import Bf16, Call, call, collected, mapped, tensor_of
from tests.programs.operators.separated import Separated, alone, separated

EXAMPLES = collected("EXAMPLES")
REFERENCE = Values(NUMPY, "F64")
Place = tuple[int, int] | None
"""The axis of the batch in an operand and the rows of one example."""


# ---- one operator, alone and in a batch


def places(array: Any, size: int) -> list[Place]:
    """Where a batch of `size` can be in an operand."""
    shape = tensor_of(array).shape
    return [None, *((axis, side // size) for axis, side in enumerate(shape) if side and side % size == 0)]


def arrangements(each: Call, most: int) -> Iterator[tuple[int, dict[str, Place]]]:
    """Sizes of batches, and where the batch can be in each operand; at most so many, evenly chosen."""
    operands = {name: value for name, value in each.arguments.items() if isinstance(value, np.ndarray | Bf16)}
    sides = {side for value in operands.values() for side in tensor_of(value).shape if side > 1}
    usual = [(size, {name: _leading(value, size) for name, value in operands.items()}) for size in sorted(sides)]
    found = [
        (size, dict(zip(operands, chosen, strict=True)))
        for size in sorted(sides)
        for chosen in itertools.product(*(places(value, size) for value in operands.values()))
    ]
    chosen = usual + found[:: max(1, len(found) // most)]
    return ((size, where) for size, where in chosen if any(place is not None for place in where.values()))


def _leading(array: Any, size: int) -> Place:
    return (0, 1) if tensor_of(array).shape[:1] == (size,) else None


def batched(arguments: Mapping[str, Any], where: Mapping[str, Place]) -> dict[str, Any]:
    found = mapped(arguments, lambda tensor: Batched(TensorSpec.of(tensor)))
    for name, place in where.items():
        if place is not None:
            found[name] = Batched(found[name].spec, *place)
    return found


def part(array: npt.NDArray[Any], place: Place, i: int) -> npt.NDArray[Any]:
    """The rows of example `i`."""
    return array if place is None else np.take(array, range(i * place[1], (i + 1) * place[1]), place[0])


def example(arguments: Mapping[str, Any], where: Mapping[str, Place], i: int) -> dict[str, Any]:
    found = dict(arguments)
    for name, place in where.items():
        value = arguments[name]
        rows = part(value.array if isinstance(value, Bf16) else value, place, i)
        found[name] = Bf16(rows) if isinstance(value, Bf16) else rows
    return found


def referenced(described: Operator, arguments: Mapping[str, Any]) -> list[Value | None]:
    return list(described.read(REFERENCE, mapped(arguments, REFERENCE.load)))


def check_separated(described: Operator, arguments: Mapping[str, Any], where: Mapping[str, Place], size: int) -> None:
    """Raise `Mixes` where examples are not shown to stay apart, fail where they do not."""
    found = separated(described, batched(arguments, where), size)
    whole = referenced(described, arguments)
    for i in range(size):
        single = referenced(described, example(arguments, where, i) | dict(found.attributes))
        for result, together, apart in zip(found.results, whole, single, strict=True):
            if result is not None and together is not None and apart is not None:
                assert_part(result, together, apart, i, size)


def assert_part(result: Batched, together: Value, apart: Value, i: int, size: int) -> None:
    array = np.asarray(together.array)
    if result.axis is not None:
        array = part(array, (result.axis, result.block), i)
    for axis, side in enumerate(alone(result, size).shape):
        array = array if axis == result.axis else np.take(array, range(side), axis)
    np.testing.assert_allclose(np.asarray(apart.array), array, rtol=1e-9, atol=1e-9)


def separable(name: str, most: int) -> int:
    """How many arrangements of the examples of an operator are shown to stay apart; each is computed."""
    count = 0
    for each in EXAMPLES[name]:
        for size, where in arrangements(each, most):
            try:
                check_separated(operator(name), each.arguments, where, size)
                count += 1
            except Mixes:
                continue
    return count


@pytest.mark.parametrize("name", OPERATORS)
def test_an_example_alone_gives_its_part_of_the_batch(name: str) -> None:
    count = separable(name, 4)
    assert count or name not in SEPARABLE


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_an_example_alone_gives_its_part_wherever_the_batch_is(name: str) -> None:
    separable(name, 1000)


SEPARABLE = {
    f"aten.{name}"
    for name in (
        *("add.Tensor", "mul.Tensor", "where.self", "gelu.default", "_softmax.default", "native_layer_norm.default"),
        *("mm.default", "bmm.default", "addmm.default", "linear.default", "matmul.default", "embedding.default"),
        *("convolution.default", "conv2d.default", "max_pool2d_with_indices.default", "avg_pool2d.default"),
        *("native_group_norm.default", "_native_batch_norm_legit_no_training.default", "upsample_nearest2d.default"),
        *("scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention_for_cpu.default"),
        *("view.default", "reshape.default", "expand.default", "permute.default", "transpose.int", "slice.Tensor"),
        *(
            "gather.default",
            "index.Tensor",
            "tril.default",
            "zeros_like.default",
            "_to_copy.default",
            "sum.dim_IntList",
        ),
        *("select.int", "unsqueeze.default", "unbind.int", "split.Tensor", "cumsum.default", "topk.default"),
    )
}


# ---- which nodes a model may have


def read(name: str, examples: int, where: Mapping[str, Batched | None], **given: Any) -> Separated:
    arguments = {each.name: given.get(each.name, where.get(each.name)) for each in operator(name).parameters}
    return separated(operator(name), arguments, examples)


def spec(*shape: int, dtype: str = "F32") -> TensorSpec:
    return TensorSpec(dtype, shape)


def test_a_linear_layer_on_merged_rows_keeps_examples_in_blocks() -> None:
    x = Batched(spec(4, 5, 6), 0)
    rows = read("aten.view.default", 4, {"self": x}, size=(20, 6))
    assert rows == Separated((Batched(spec(20, 6), 0, 5),), {"size": (5, 6)})
    product = read("aten.mm.default", 4, {"self": rows.results[0], "mat2": Batched(spec(6, 7))}).results[0]
    assert product == Batched(spec(20, 7), 0, 5)
    back = read("aten.view.default", 4, {"self": product}, size=(4, 5, 7))
    assert back == Separated((Batched(spec(4, 5, 7), 0),), {"size": (1, 5, 7)})


def test_a_view_that_cuts_through_examples_is_refused() -> None:
    read("aten.view.default", 4, {"self": Batched(spec(4, 6))}, size=(3, 8))
    with pytest.raises(Mixes, match="do not stay apart"):
        read("aten.view.default", 4, {"self": Batched(spec(4, 6), 0)}, size=(3, 8))


@pytest.mark.parametrize("dim", [(0,), (0, 1), (-2,)])
def test_a_sum_over_the_batch_is_refused(dim: tuple[int, ...]) -> None:
    x = Batched(spec(4, 6), 0)
    with pytest.raises(Mixes):
        read("aten.sum.dim_IntList", 4, {"self": x}, dim=dim, keepdim=False)
    kept = read("aten.sum.dim_IntList", 4, {"self": x}, dim=(1,), keepdim=False)
    assert kept.results == (Batched(spec(4), 0),)


def test_a_factor_that_counts_the_batch_is_refused() -> None:
    """The gradient of a mean over the batch has examples apart, but divides by their number."""
    names = {"grad_output": Batched(spec()), "self": Batched(spec(4, 6), 0), "target": Batched(spec(4, 6), 0)}
    with pytest.raises(Mixes, match="does something else for one example"):
        read("aten.mse_loss_backward.default", 4, names, reduction=1)
    assert read("aten.mse_loss_backward.default", 4, names, reduction=2).results == (Batched(spec(4, 6), 0),)


def test_a_constant_per_row_is_no_input_of_every_example() -> None:
    with pytest.raises(Mixes, match="differs along the batch"):
        read("aten.mul.Tensor", 4, {"self": Batched(spec(4, 6), 0), "other": Batched(spec(4, 1))})
    with pytest.raises(Mixes, match="along different axes"):
        read("aten.mul.Tensor", 4, {"self": Batched(spec(4, 4), 0), "other": Batched(spec(4, 4), 1)})
    same = read("aten.mul.Tensor", 4, {"self": Batched(spec(4, 6), 0), "other": Batched(spec(1, 6))})
    assert same.results == (Batched(spec(4, 6), 0),)


def test_a_mask_of_zeros_fits_every_example() -> None:
    zeros = read("aten.zeros.default", 4, {}, size=(4, 6), dtype=None).results[0]
    assert zeros is not None
    assert zeros.axis is None
    assert alone(zeros, 4) == spec(1, 6)
    both = {"self": Batched(spec(4, 6), 0), "other": zeros}
    assert read("aten.add.Tensor", 4, both, alpha=1).results == (Batched(spec(4, 6), 0),)
    with pytest.raises(Mixes):
        read("aten.add.Tensor", 4, {**both, "other": Batched(zeros.spec)}, alpha=1)


def test_rows_of_the_batch_may_be_indexed_by_their_own_numbers() -> None:
    numbers = read("aten.arange.default", 4, {}, end=4, dtype=None).results[0]
    last = Batched(spec(4, dtype="I64"), 0)
    x = Batched(spec(4, 6, 5), 0)
    found = read("aten.index.Tensor", 4, {"self": x}, indices=(numbers, last))
    assert found.results == (Batched(spec(4, 5), 0),)
    with pytest.raises(Mixes):
        read("aten.index.Tensor", 4, {"self": x}, indices=(Batched(spec(4, dtype="I64")), last))


def test_what_is_the_same_for_all_is_not_asked_for_examples() -> None:
    weights = Batched(spec(4, 4))
    found = read("aten.sum.dim_IntList", 4, {"self": weights}, dim=(0,), keepdim=False)
    assert found.results == (Batched(spec(4)),)
    ones = read("aten.ones.default", 4, {}, size=(4, 6), dtype=None).results[0]
    assert ones is not None
    assert read("aten.sum.dim_IntList", 4, {"self": ones}, dim=(0,), keepdim=False).results == (Batched(spec(6)),)


# ---- definitions that nobody would write


SIZE = 3
OPERANDS = {"x": (3, 2), "y": (2, 3), "z": (3, 3), "u": (2,), "w": (3,)}
WHERE: dict[str, Place] = {"x": (0, 1), "y": (1, 1), "z": (0, 1), "u": None, "w": None}
Step = tuple[int, int, int, int]


def run(a: Any, steps: list[Step], pool: list[Any]) -> list[Any]:
    """Values that the steps make from those of `pool`, by shapes that they read off."""
    for step in steps:
        pool = [*pool, one_step(a, step, pool)]
    return pool


def one_step(a: Any, step: Step, pool: list[Any]) -> Any:
    kind, first, second, number = step
    x, y = pool[first % len(pool)], pool[second % len(pool)]
    if not x.shape or not y.shape:
        raise MalformedError("no axis")
    axis = number % len(x.shape)
    makers = [
        lambda: a.full(x.shape, 2.0, "F32"),
        lambda: a.full((*x.shape, *y.shape), 3.0, "F32"),
        lambda: a.cast(a.iota(x.shape, axis, "I64"), "F32"),
        lambda: a.add(x, y),
        lambda: a.mul(x, y),
        lambda: a.mul(x, float(x.shape[axis])),
        lambda: a.sum(x, (axis,), keep=number % 2 == 0),
        lambda: a.max(x, (axis,)),
        lambda: a.cumsum(x, axis),
        lambda: a.sort(x, axis, number % 2 == 0)[number % 2],
        lambda: a.flip(x, (axis,)),
        lambda: a.reshape(x, (math.prod(x.shape),)),
        lambda: a.reshape(x, (*x.shape[:axis], x.shape[axis], 1, *x.shape[axis + 1 :])),
        lambda: a.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis : axis + 2]), *x.shape[axis + 2 :])),
        lambda: a.reshape(x, y.shape),
        lambda: a.reshape(x, (*y.shape[:1], math.prod(x.shape) // max(y.shape[0], 1))),
        lambda: a.broadcast(x, y.shape),
        lambda: a.broadcast(x, (*y.shape, *x.shape)),
        lambda: a.transpose(x, range(len(x.shape))[::-1]),
        lambda: a.slice(x, (0,) * len(x.shape), [min(number, side) for side in x.shape], (1,) * len(x.shape)),
        lambda: a.slice(x, (0,) * len(x.shape), x.shape, [1 + (i == axis) for i in range(len(x.shape))]),
        lambda: a.pad(x, 1.0, [number % 2 * (i == axis) for i in range(len(x.shape))], *[(0,) * len(x.shape)] * 2),
        lambda: a.concat([x, y], axis),
        lambda: a.dot(x, y, ((axis,), (number // 2 % len(y.shape),))),
        lambda: a.dot(x, y, ((), ()), ((axis,), (number // 2 % len(y.shape),))),
        lambda: a.take(x, (a.iota(x.shape[axis : axis + 1], 0, "I64"),), axis),
        lambda: a.take(x, (a.iota(y.shape, number // 2 % len(y.shape), "I64"),), axis),
        lambda: a.take(x, (a.iota((1 + number % 2,), 0, "I64"), a.full((1,), 0, "I64")), axis),
        lambda: a.take_along(x, a.iota(x.shape, axis, "I64"), axis),
        lambda: a.scatter(x, (a.iota(x.shape[axis : axis + 1], 0, "I64"),), axis, y, number % 2 == 0),
        lambda: a.windows(x, (axis,), (1 + number % 2,), (1,), (1,)),
        lambda: a.where(a.compare(x, y, "lt"), x, y),
        lambda: a.compare(x, 0.0, "gt"),
        lambda: a.cast(x, "F32"),
    ]
    return makers[kind % len(makers)]()


def possible(steps: list[Step]) -> list[Step]:
    """The steps that fit together."""
    kept: list[Step] = []
    pool = [TensorSpec("F32", shape) for shape in OPERANDS.values()]
    for step in steps:
        try:
            pool = [*pool, one_step(Types(bytes_max=1 << 14), step, pool)]
        except MalformedError:
            continue
        kept.append(step)
    return kept


def program(steps: list[Step]) -> Operator:
    def define(a: Any, **operands: Any) -> Any:
        return run(a, steps, list(operands.values()))[-1]

    parameters = tuple(Parameter(name, "Tensor") for name in OPERANDS)
    return Operator("test.program", parameters, "any definition", Exactness.COMPOSITE, define)


def check_program(steps: list[Step]) -> bool:
    """Whether the last value is shown to have its examples apart; it is computed."""
    steps = possible(steps)
    numbers = np.random.default_rng(0)
    operands = {name: numbers.integers(-9, 10, shape).astype(np.float32) for name, shape in OPERANDS.items()}
    try:
        referenced(program(steps), operands)
    except MalformedError:  # an index outside of its side: known only with the values
        return False
    try:
        check_separated(program(steps), operands, WHERE, SIZE)
    except Mixes:
        return False
    return bool(steps)


STEPS = st.lists(st.tuples(st.integers(0, 33), st.integers(0, 15), st.integers(0, 15), st.integers(0, 5)), max_size=8)


@settings(max_examples=600, deadline=None)
@given(STEPS)
def test_no_definition_passes_whose_examples_mix(steps: list[Step]) -> None:
    check_program(steps)


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None)
@given(STEPS)
def test_no_definition_of_many_passes_whose_examples_mix(steps: list[Step]) -> None:
    check_program(steps)


def test_many_definitions_pass() -> None:
    numbers = np.random.default_rng(0)
    draws = [[tuple(map(int, numbers.integers(0, 34, 4))) for _ in range(5)] for _ in range(200)]
    passed = sum(check_program(steps) for steps in draws)  # type: ignore[arg-type]
    assert 20 < passed < 190


def test_a_batch_of_one_has_nothing_to_mix_with() -> None:
    algebra = Batches(1)
    x = Batched(spec(1, 6), 0)
    assert algebra.add(x, algebra.full((1, 6), 1, "F32")).axis == 0
    assert call("aten.relu.default", self=np.zeros(1, np.float32)).operator in OPERATORS
