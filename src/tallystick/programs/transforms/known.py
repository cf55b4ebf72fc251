"""What is known of a value before a text is: what its axes count, the part without tokens, and later keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import read
from tallystick.programs.graph import Graph, Node, Ref, operands_of
from tallystick.programs.operators.algebra import Number
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import Attribute, operator
from tallystick.programs.operators.values import Value, Values

# What each axis counts: sequences, tokens, keys, or something that does not depend on the length of a text.
#
# A step of generation is read with *marks* in place of these sizes: primes that divide no other number of the graph.
# Every side is then a product of marks and of a plain number, so the side itself shows what the axis counts. This holds
# after a view has merged axes, and a side of 1 for one token differs from any other side of 1.

Factors: TypeAlias = tuple[int, ...]
"""What one axis counts, the slowest-varying factor first: marks, and plain numbers other than 1."""
FIRST_MARK: Final = 1009


@dataclass(frozen=True)
class StepSizes:
    """The numbers of sequences, of tokens fed, of places in the cache and of keys seen; or the marks for them."""

    batch: int
    tokens: int
    past: int
    keys: int

    @property
    def all(self) -> tuple[int, int, int, int]:
        """The four numbers."""
        return (self.batch, self.tokens, self.past, self.keys)

    def translate(self, number: int, into: StepSizes) -> int:
        """`number`, a product of these marks and of plain numbers, with each mark replaced by the size in `into`."""
        for mark, size in zip(self.all, into.all, strict=True):
            while number and number % mark == 0:
                number = number // mark * size
        return number

    def factors(self, side: int) -> Factors:
        """The marks that divide `side`, then the quotient."""
        factors: list[int] = []
        for mark in self.all:
            while side and side % mark == 0:
                side, factors = side // mark, [*factors, mark]
        return (*factors, *(() if side == 1 else (side,)))


def choose_marks(numbers: Iterable[int]) -> StepSizes:
    """Four primes that divide none of `numbers`."""
    taken = {abs(number) for number in numbers if number}
    marks: list[int] = []
    candidate = FIRST_MARK
    while len(marks) < 4:
        if _is_prime(candidate) and all(number % candidate for number in taken):
            marks.append(candidate)
        candidate += 2
    return StepSizes(*marks)


def regrouped(axes: Sequence[Factors], shape: Sequence[int], marks: StepSizes) -> tuple[Factors, ...] | None:
    """What the axes count after a row-major reshape to `shape`; `None` if it would split a mark or reorder marks."""
    left = _joined([factor for axis in axes for factor in axis], marks)
    regrouped_axes = []
    for side in shape:
        taken: list[int] = []
        while side != 1 and left:
            shared = math.gcd(left[0], side)
            if shared == 1:
                return None
            taken, side = [*taken, shared], side // shared
            left = ([left[0] // shared] if left[0] != shared else []) + left[1:]
        if side != 1:
            return None
        regrouped_axes.append(tuple(_joined(taken, marks)))
    return None if left else tuple(regrouped_axes)


def _joined(factors: Iterable[int], marks: StepSizes) -> list[int]:
    """The factors with neighbouring plain numbers multiplied together."""
    joined: list[int] = []
    for factor in factors:
        if joined and factor not in marks.all and joined[-1] not in marks.all:
            joined[-1] *= factor
        elif factor != 1:
            joined.append(factor)
    return joined


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


# The value at keys later than the token, when every token is paired with every key.
#
# No step has these pairs, so no result may depend on them. A mask writes a number there that a reduction over keys
# leaves out: e^−∞ is 0, and adding 0 changes nothing. A value at later keys is a number if it is known; `None` if it
# consists of finite numbers that no step has; and `ANYTHING` if it may contain infinities or what follows from them.
#
# Activations, keys and scores are assumed to be finite and far above `FORBIDS`: that number, added to a score, makes
# the weight of the key 0.

Later: TypeAlias = float | None
Compute: TypeAlias = Callable[[list[Any]], Value]
ANYTHING: Final = math.nan
FORBIDS: Final = -1e9
REFERENCE: Final = Values(NUMPY, "F64")
NEUTRAL: Final[Mapping[str, float]] = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
"""The neutral number of each reduction: an element that equals it changes nothing."""
IDEMPOTENT: Final = frozenset({"max", "min"})
UNBOUNDED: Final = frozenset({"exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "pow"})
"""Primitives that can turn finite numbers into infinities or NaN."""


def forbids(later: Later) -> bool:
    """Whether this number, added to a score, makes the weight of the key 0."""
    return later is not None and later <= FORBIDS


def is_neutral(reduction: str, later: Later, dtype: str) -> bool:
    """Whether a reduction over keys leaves out the later keys."""
    if dtype == "BOOL" and later is not None:
        return later == (reduction in {"min", "prod"})
    return forbids(later) if reduction == "max" else later == NEUTRAL[reduction]


def computed(operands: Sequence[tuple[str, Later]], compute: Compute) -> Later:
    """The result of one primitive on known numbers of these dtypes; the dtype of a Python number is ''."""
    values = [REFERENCE.full((), later or 0.0, dtype) if dtype else later for dtype, later in operands]
    try:
        number = float(compute(values).array)
    except MalformedError:
        return ANYTHING
    return ANYTHING if math.isnan(number) else number  # one NaN object, so that values that hold it are equal


def absorbed(primitive: str, operands: Sequence[Later], in_steps: Sequence[bool]) -> Later:
    """The result of a primitive if not all operands are known; `in_steps` says which operands occur in the steps.

    A product with a number that no step has is never taken as 0: that number may be infinite, and 0·∞ is NaN.
    """
    x, y = (*operands, None)[:2]
    if (primitive in UNBOUNDED and not all(in_steps)) or (primitive == "div" and not in_steps[1]):
        return ANYTHING
    if primitive in {"add", "sub"} and forbids(x) and y is None:
        return x
    if primitive == "add" and forbids(y) and x is None:
        return y
    if primitive in {"mul", "div"} and x == 0 and y is None and in_steps[1]:
        return 0.0
    if primitive == "mul" and y == 0 and x is None and in_steps[0]:
        return 0.0
    if primitive == "logical_and" and 0 in (x, y):
        return 0.0
    return spoiled(*operands)


def chosen(condition: Later, x: Later, y: Later) -> Later:
    """The value at later keys of a choice between two by a condition."""
    if condition is not None:
        return x if condition else y
    return x if x == y else spoiled(x, y)


def reduced(reduction: str, later: Later) -> Later:
    """The value at later keys of a reduction of equal numbers along an axis other than that of keys."""
    if later is None or reduction in IDEMPOTENT or later == NEUTRAL[reduction] or later == 0:
        return later
    return later if forbids(later) and reduction == "sum" else spoiled(later)


def product_sum(x: Later, y: Later) -> Later:
    """The value at later keys of a sum of products, along an axis other than that of keys.

    At most one of the operands pairs tokens with keys.
    """
    if x is None and y is None:
        return None
    return 0.0 if (x, y) in {(0.0, None), (None, 0.0), (0.0, 0.0)} else spoiled(x, y)


def spoiled(*operands: Later) -> Later:
    """Finite numbers if all operands are finite; `ANYTHING` if one is infinite, or too large to tell from infinite."""
    return ANYTHING if any(each is not None and not abs(each) < -FORBIDS for each in operands) else None


# The part of a decode step that reads neither tokens nor weights: masks, ranges and numbers, computed in advance.
#
# A step was captured with a certain number of keys. A value that depends on this number may be a mask, a place in the
# text, or the number itself. A value is `counted` if this number, or this number minus one, entered it other than as a
# side. If the place is an input of the step, values that depend on it are computed for every place of the text.

ELEMENTS_MAX: Final = 1 << 24
"""The limit of elements that are computed in advance."""
SIDES: Final = frozenset(
    {"size", "shape", "sizes", "split_size", "split_sizes", "slice_sizes", "normalized_shape", "limit_indices"}
)
AXES: Final = frozenset(
    {"dim", "dims", "dim0", "dim1", "axis", "axis0", "axis1", "start_dim", "end_dim", "source", "destination"}
    | {"permutation", "broadcast_dimensions", "dimension", "dimensions", "iota_dimension", "index_vector_dim"}
)
"""Attributes that name axes or sides: they are checked by reading the definition at other sizes."""


@dataclass(frozen=True, eq=False)
class Known:
    """A value that the program alone determines, and whether it depends on the number of keys.

    If it depends on the place, `places` holds it for every place of the text, and `value` is the first of these.
    """

    value: Value
    counted: bool = False
    sized: bool = False
    places: tuple[Value, ...] = ()

    @property
    def spec(self) -> TensorSpec:
        """The dtype and shape."""
        return TensorSpec(self.value.dtype, self.value.shape)

    @property
    def number(self) -> float | None:
        """The number that all elements equal at every place; `None` if there is none."""
        return None if self.places else _number(self.value)

    @property
    def is_plain(self) -> bool:
        """Whether it depends neither on the number of keys nor on the place, and can be used as it is."""
        return not self.counted and not self.places

    @property
    def is_place(self) -> bool:
        """Whether it equals the place."""
        return bool(self.places) and all(_number(value) == place for place, value in enumerate(self.places))

    def causal(self, axis: int) -> tuple[float, float] | None:
        """The numbers at keys along `axis` up to the place and at later keys; `None` if it is not such a mask."""
        seen, later = set[float | None](), set[float | None]()
        for place, value in enumerate(self.places):
            array = np.moveaxis(np.asarray(value.array), axis, 0)
            seen.add(_number_of(array[: place + 1]))
            later |= {_number_of(array[place + 1 :])} if place + 1 < len(array) else set()
        first, second = (each.pop() if len(each) == 1 else None for each in (seen, later))
        return None if first is None or second is None else (first, second)

    @property
    def is_mask(self) -> bool:
        """Whether it can be a mask with the same number at all keys."""
        number = self.number
        return self.value.dtype == "BOOL" or (number is not None and (number == 0 or forbids(number)))


@dataclass
class KnownValues:
    """Everything that a graph computes from numbers alone, found node by node.

    `suspects` are the numbers of places in the cache and of keys, if they differ from step to step; `length` is the
    length of the text.
    """

    suspects: frozenset[int]
    length: int
    values: dict[Ref, Known] = field(default_factory=dict)
    elements_left: int = ELEMENTS_MAX

    def hold(self, constants: Mapping[Ref, Tensor]) -> None:
        """Add constants of the program; one that contains the number of keys may have been computed from it."""
        for ref, tensor in constants.items():
            value = REFERENCE.load(tensor)
            counted = bool(np.isin(np.asarray(value.array), sorted(self.suspects)).any())
            self.values[ref] = Known(value, counted)

    def follow(self, node: Node) -> bool:
        """Compute the node if it reads only known values; returns whether it does."""
        elements = sum(spec.size for spec in node.results if spec is not None)
        if not all(ref in self.values for ref in node.refs) or elements > self.elements_left // self.length:
            return False
        count = max((len(self.values[ref].places) for ref in node.refs), default=0)
        self.elements_left -= elements * max(count, 1)
        try:
            results = [self._computed(node, place) for place in range(count or 1)]
        except (MalformedError, UnavailableError):
            return False
        self._keep(node, results if count else [], results[0], [self.values[ref] for ref in node.refs])
        return True

    def _computed(self, node: Node, place: int) -> tuple[Any, ...]:
        held = {ref: self.values[ref] for ref in node.refs}
        values = {ref: each.places[place] if each.places else each.value for ref, each in held.items()}
        return read(node, REFERENCE, operands_of(node, values) | dict(node.attributes))

    def ambiguous(self, attributes: Iterable[Attribute]) -> Number | None:
        """The first number that may be the number of keys, or of places in the cache; `None` if there is none."""
        for attribute in attributes:
            for entry in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(entry, int | float) and not isinstance(entry, bool) and entry in self.suspects:
                    return entry
        return None

    def _keep(
        self, node: Node, places: list[tuple[Any, ...]], results: tuple[Any, ...], read_here: list[Known]
    ) -> None:
        numbers = [each for name, each in node.attributes.items() if name not in SIDES | AXES]
        sides = [each for name, each in node.attributes.items() if name in SIDES]
        counted = any(each.counted for each in read_here) or self.ambiguous(numbers) is not None
        sized = any(each.sized for each in read_here) or self.ambiguous(sides) is not None
        elements = max([each.spec.size for each in read_here], default=0)
        for i, (ref, value) in enumerate(zip(node.outputs, results, strict=True)):
            if ref is None:
                continue
            number, size = _number(value), int(np.asarray(value.array).size)
            made = sized and (size < elements or number is None)
            is_counted = counted or made or number in self.suspects
            self.values[ref] = Known(value, is_counted, sized, tuple(each[i] for each in places))


def place_of(length: int, spec: TensorSpec) -> Known:
    """The input that holds the place of the token, with its value for every token of a text."""
    values = tuple(REFERENCE.full(spec.shape, place, spec.dtype) for place in range(length))
    return Known(values[0], places=values)


def _number(value: Value) -> float | None:
    return _number_of(np.asarray(value.array))


def _number_of(array: Any) -> float | None:
    flat = array.reshape(-1)
    return float(flat[0]) if flat.size and bool(np.all(flat == flat[0])) else None


def numbers_of(graph: Graph) -> Iterable[int]:
    """Every side and every whole number in a graph."""
    for spec in graph.specs().values():
        yield from spec.shape
    for node in graph.nodes:
        for attribute in node.attributes.values():
            entries = attribute if isinstance(attribute, tuple) else (attribute,)
            yield from (entry for entry in entries if type(entry) is int)


def is_checked(name: str) -> bool:
    """Whether an attribute of this name holds only axes and sides."""
    return name in SIDES | AXES or name.endswith(("_dimensions", "_dims"))


def parameters_of(node: Node) -> Mapping[str, str]:
    """The kind of every attribute of a node."""
    return {each.name: each.kind for each in operator(node.operator).parameters if not each.is_operand}
