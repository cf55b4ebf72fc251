"""Where `Steps` shows what an operator gives for all tokens, each token alone gives its part of that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.graph import Node
from tallystick.programs.operators.definition import OPERATORS, Operator, operator
from tallystick.programs.operators.values import Value
from tallystick.programs.transforms.known import REFERENCE, StepSizes, choose_marks, regrouped
from tallystick.programs.transforms.reading import NodeReader, Reading, Scale
from tallystick.programs.transforms.steps import Mixed, Stacked, Steps, replace_later
from tests.programs.operators.examples import Call, collected

EXAMPLES = collected("EXAMPLES")
Place = tuple[int | None, int | None]
"""The axes of tokens and of keys in an operand."""
LATERS = (None, 0.0, -np.inf)


def places(array: npt.NDArray[Any]) -> Iterator[Place]:
    axes = [None, *range(array.ndim)]
    return ((t, k) for t, k in itertools.product(axes, axes) if t is None or t != k)


def arrangements(each: Call, most: int) -> Iterator[dict[str, Place]]:
    """Tokens and keys in one operand alone, along the same axes of all, and anywhere, chosen at random."""
    operands = {name: list(places(x)) for name, x in each.arguments.items() if isinstance(x, np.ndarray)}
    ranks = {name: each.arguments[name].ndim for name in operands}
    random = np.random.default_rng(5)
    alone = [{name: place} for name, found in operands.items() for place in found[1:]]
    yield from (alone[i] for i in random.permutation(len(alone))[:most])
    widest = max(operands, key=lambda name: ranks[name], default="")
    for place in random.permutation(np.array(operands.get(widest, [()])[1:], dtype=object))[:most]:
        yield {name: shifted(place, rank - ranks[widest]) for name, rank in ranks.items()}
    for _ in range(most if len(operands) > 1 else 0):
        yield {name: found[random.integers(len(found))] for name, found in operands.items()}


def shifted(place: Place, by: int) -> Place:
    """The same axes of a tensor with fewer, counted from the last."""
    tokens, keys = (None if axis is None or axis + by < 0 else axis + by for axis in place)
    return tokens, keys


class Case:
    """An example with tokens and keys along some axes of its operands, for as many tokens as it has keys."""

    def __init__(self, each: Call, where: Mapping[str, Place], later: float | None) -> None:
        self.described: Operator = operator(each.operator)
        sides = {each.arguments[name].shape[k] for name, (_, k) in where.items() if k is not None} or {4}
        if len(sides) > 1 or any(0 in each.arguments[name].shape for name in where):
            raise Mixed("keys of one number are needed, and tokens")
        self.length = sides.pop()
        self.where, self.later, self.random = where, later, np.random.default_rng(7)
        self.attributes = {p.name: each.arguments[p.name] for p in self.described.parameters if not p.is_operand}
        self.operands = {p.name: each.arguments[p.name] for p in self.described.parameters if p.is_operand}
        if any(not isinstance(value, np.ndarray | None) for value in self.operands.values()):
            raise Mixed("one tensor for each operand is needed")
        numbers = [side for value in self.operands.values() if value is not None for side in value.shape]
        self.marks = choose_marks([*numbers, *range(1, 64)])
        length = self.length
        self.scale = Scale(StepSizes(1, 1, length - 1, length), self.marks, StepSizes(1, length, 0, length), False)

    def stacked(self, name: str) -> Stacked | None:
        value = self.operands[name]
        if value is None:
            return None
        t, k = self.where.get(name, (None, None))
        sides = [self.marks.tokens if i == t else self.marks.keys if i == k else n for i, n in enumerate(value.shape)]
        found = Steps(self.marks).stacked(TensorSpec(Tensor.of(value).dtype, tuple(sides)))
        return replace_later(found, self.later if value.dtype.kind == "f" else None, self.marks)

    def reading(self) -> Reading:
        arguments = {name: self.stacked(name) for name in self.operands}
        node = Node(0, self.described.name, {name: name for name in self.operands}, self.attributes, ())
        return NodeReader(self.scale).best(node, arguments)

    def whole(self) -> dict[str, Any]:
        """Operands of all tokens: rows of the example in random order, and what is said of later keys."""
        found = {name: None if value is None else finite(value) for name, value in self.operands.items()}
        for name, (t, k) in self.where.items():
            value = found[name]
            assert value is not None
            if t is not None:
                value = np.take(value, self.random.integers(value.shape[t], size=self.length), t)
            if t is not None and k is not None and self.later is not None and value.dtype.kind == "f":
                rows, keys = (self.counted(axis, value.ndim) for axis in (t, k))
                value = np.where(keys > rows, np.asarray(self.later, value.dtype), value)
            found[name] = np.ascontiguousarray(value)
        return found

    def counted(self, axis: int, rank: int) -> npt.NDArray[Any]:
        return np.arange(self.length).reshape([-1 if i == axis else 1 for i in range(rank)])

    def step(self, whole: Mapping[str, Any], token: int) -> dict[str, Any]:
        found = dict(whole)
        for name, (t, k) in self.where.items():
            for axis, indices in ((t, [token]), (k, range(token + 1))):
                found[name] = found[name] if axis is None else np.take(found[name], indices, axis)
        return found

    def values(self, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[Value | None, ...]:
        loaded = {name: None if x is None else REFERENCE.load(Tensor.of(x)) for name, x in operands.items()}
        return tuple(self.described.read(REFERENCE, {**loaded, **attributes}))

    def check(self) -> None:
        """Raise `Mixed` where nothing is shown; fail where what is shown does not hold."""
        reading = self.reading()
        operands = self.whole()
        whole = self.values(operands, reading.whole)
        for token in range(self.length):
            sizes = StepSizes(1, 1, token, token + 1)
            attributes = {name: self.scale.at(value, sizes) for name, value in reading.attributes.items()}
            single = self.values(self.step(operands, token), attributes)
            for result, together, apart in zip(reading.results, whole, single, strict=True):
                if result is not None and together is not None and apart is not None:
                    self.check_part(result, np.asarray(together.array), np.asarray(apart.array), token)

    def check_part(self, result: Stacked, together: Any, apart: Any, token: int) -> None:
        marks = [mark for axis in result.axes for mark in axis]
        array = together.reshape([self.marks.translate(mark, self.scale.whole) for mark in marks])
        if self.marks.tokens in marks:
            array = np.take(array, [token], marks.index(self.marks.tokens))
        if self.marks.keys in marks:
            axis = marks.index(self.marks.keys)
            if result.later is not None and not np.isnan(result.later):
                np.testing.assert_allclose(np.take(array, range(token + 1, self.length), axis), result.later, 1e-6)
            array = np.take(array, range(token + 1), axis)
        if result.number is not None:
            np.testing.assert_allclose(array, result.number, rtol=1e-6)
        np.testing.assert_allclose(apart.reshape(array.shape), array, rtol=1e-9, atol=1e-9)


def finite(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What no infinity is taken for: activations and scores."""
    return np.nan_to_num(array, posinf=3, neginf=-3) if array.dtype.kind == "f" else array


def shown(name: str, most: int) -> int:
    """How many arrangements of an operator are shown to give parts of a whole; each is computed."""
    count = 0
    for each in EXAMPLES[name]:
        for where, later in itertools.product(arrangements(each, most), LATERS):
            try:
                Case(each, where, later).check()
                count += 1
            except MalformedError:
                continue
    return count


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_token_alone_gives_its_part_of_the_whole(name: str) -> None:
    count = shown(name, 2 if name in SHOWN else 1)
    assert count or name not in SHOWN


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_token_alone_gives_its_part_wherever_tokens_and_keys_are(name: str) -> None:
    shown(name, 600)


SHOWN = {
    f"aten.{name}"
    for name in (
        *("add.Tensor", "mul.Tensor", "where.self", "gelu.default", "_softmax.default", "native_layer_norm.default"),
        *("linear.default", "embedding.default", "permute.default", "slice.Tensor", "mean.dim", "topk.default"),
    )
} | {f"stablehlo.{name}" for name in ("add", "select", "compare", "transpose")}
"""Operators of transformers: of these, some arrangement of tokens and keys has to be shown."""


# ---- views, by what their sides count

MARKS = StepSizes(101, 103, 107, 109)
B, T, K = MARKS.batch, MARKS.tokens, MARKS.keys


@pytest.mark.parametrize(
    ("axes", "shape", "wanted"),
    [
        (((B,), (T,), (16,)), (B * T, 16), ((B, T), (16,))),
        (((B, T), (48,)), (B, T, 48), ((B,), (T,), (48,))),
        (((B,), (T,), (16,)), (B, T, 4, 4), ((B,), (T,), (4,), (4,))),
        (((B,), (2,), (2,), (K,), (8,)), (B, 4, K, 8), ((B,), (4,), (K,), (8,))),
        (((T,), (6,)), (1, T, 1, 6), ((), (T,), (), (6,))),
        (((T,), (6,)), (6, T), None),
        (((B,), (T,)), (T, B), None),
        (((T,), (6,)), (2 * T, 3), ((T, 2), (3,))),
        (((2,), (T,), (6,)), (4, T, 3), None),
        (((4,), (6,)), (3, 8), ((3,), (8,))),
    ],
)
def test_views_keep_what_is_counted_together_and_in_order(axes: Any, shape: Any, wanted: Any) -> None:
    assert regrouped(axes, shape, MARKS) == wanted


def test_marks_divide_no_number_and_are_translated_within_products() -> None:
    marks = choose_marks([1009, 2 * 1013, 0, -7])
    assert not {1009, 1013} & set(marks.all)
    assert len(set(marks.all)) == 4
    sizes = StepSizes(3, 1, 7, 8)
    assert marks.translate(marks.batch * marks.tokens * 4, sizes) == 12
    assert [marks.translate(number, sizes) for number in (0, -1, 5, marks.keys)] == [0, -1, 5, 8]
    assert marks.factors(marks.keys * 6) == (marks.keys, 6)
