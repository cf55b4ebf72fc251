"""Reads one node for one step, for all steps, and at the wanted length; refuses it unless the primitives are the same.

Attributes that hold sides, such as the shape of a view, are found by trial: an entry that can be a number of tokens,
keys or sequences is replaced by the mark. A trial is accepted only if the definition then calls the same primitives as
for one token, and if `Steps` shows that the results are those of all steps. Of several accepted trials, the one is used
whose results have the fewest axes that count more than one thing; then the one with the fewest changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.admission import PRIMITIVES_MAX
from tallystick.programs.graph import Node
from tallystick.programs.operators.definition import Attribute, operator
from tallystick.programs.operators.types import Types
from tallystick.programs.transforms.known import SIDES, StepSizes, parameters_of
from tallystick.programs.transforms.steps import Mixed, Stacked, Steps

CHANGES_MAX: Final = 3
PLACES_MAX: Final = 12
TRIED_MAX: Final = 100_000
"""The limit of readings for one graph; a model of a hundred different layers needs a tenth of it."""
ENDS: Final = frozenset({"end", "length"})
"""Attributes that hold the end or the length of a part."""
WHOLE: Final = frozenset({"int", "int?", "int[]", "int[]?"})
Attributes = Mapping[str, Attribute]


@dataclass(frozen=True)
class Scale:
    """The sizes of the captured step, the marks for them, and the wanted sizes.

    A single sequence may have no mark: its side then cannot be distinguished from any other side of 1.
    """

    step: StepSizes
    marks: StepSizes
    whole: StepSizes
    marks_sequences: bool = True

    def at(self, value: Any, sizes: StepSizes) -> Any:
        """A spec, attribute or list of sides with each mark replaced by the size in `sizes`."""
        if isinstance(value, TensorSpec):
            return TensorSpec(value.dtype, self.at(value.shape, sizes))
        if isinstance(value, Stacked):
            return self.at(value.spec, sizes)
        if isinstance(value, tuple):
            return tuple(self.at(each, sizes) for each in value)
        return self.marks.translate(value, sizes) if type(value) is int else value


@dataclass(frozen=True)
class Reading:
    """A node for all steps: its attributes with marks and at the wanted length, and its results."""

    attributes: Attributes
    whole: Attributes
    results: tuple[Stacked | None, ...]
    specs: tuple[TensorSpec | None, ...]
    cost: tuple[int, int, int]


class NodeReader:
    """Reads nodes; equal nodes over equal values are read once."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._left = TRIED_MAX
        self._known: dict[tuple[object, ...], tuple[list[Reading], MalformedError | None]] = {}

    def best(self, node: Node, arguments: Mapping[str, Any]) -> Reading:
        """The reading with the least crowded results and the fewest changes.

        `arguments` are `Stacked`, `None`, or tuples of them. Raises `Mixed` if no attributes make it the node of all
        steps, `MalformedError` if no attributes fit.
        """
        readings, error = self._readings(node, arguments, is_first=True)
        if error is not None:
            raise error
        return readings[0]

    def all(self, node: Node, arguments: Mapping[str, Any]) -> list[Reading]:
        """All readings with different results, the best first; none if no attributes fit."""
        return self._readings(node, arguments, is_first=False)[0]

    def _readings(
        self, node: Node, arguments: Mapping[str, Any], is_first: bool
    ) -> tuple[list[Reading], MalformedError | None]:
        key = (is_first, node.operator, *arguments.items(), repr(sorted(node.attributes.items())))
        if key not in self._known:
            self._known[key] = self._tried(node, arguments, is_first)
        return self._known[key]

    def _tried(
        self, node: Node, arguments: Mapping[str, Any], is_first: bool
    ) -> tuple[list[Reading], MalformedError | None]:
        once, readings, reasons = _Recorder(Types()), dict[object, Reading](), list[MalformedError]()
        _read(node, once, {**_at(arguments, self.scale, self.scale.step), **node.attributes})
        for changes, attributes in _candidates(node, self.scale):
            if is_first and any(each.cost <= (0, 0, changes) for each in readings.values()):
                break
            self._left -= 1
            if self._left < 0:
                raise UnavailableError(f"the graph takes more than {TRIED_MAX} readings of its nodes")
            try:
                reading = _reading(node, arguments, attributes, changes, self.scale, once.notes)
            except MalformedError as error:
                reasons.append(error)
                continue
            if reading.results not in readings or reading.cost < readings[reading.results].cost:
                readings[reading.results] = reading
        if not readings:
            return [], next((each for each in reasons if isinstance(each, Mixed)), reasons[0])
        return sorted(readings.values(), key=lambda each: each.cost), None


def _reading(
    node: Node, arguments: Mapping[str, Any], attributes: Attributes, changes: int, scale: Scale, notes: list[Any]
) -> Reading:
    stacked, whole = _Recorder(Steps(scale.marks)), _Recorder(Types())
    results = _read(node, stacked, {**arguments, **attributes})
    wanted = {name: scale.at(each, scale.whole) for name, each in attributes.items()}
    specs = _read(node, whole, {**_at(arguments, scale, scale.whole), **wanted})
    for sizes, other in ((scale.step, notes), (scale.whole, whole.notes)):
        if len(other) != len(stacked.notes) or any(
            scale.at(ours, sizes) != theirs for ours, theirs in zip(stacked.notes, other, strict=True)
        ):
            raise Mixed("does something else for a whole text than for one token, or counts its tokens or keys")
    cost = sum(_doubt(each, scale) for each in results if each is not None)
    return Reading(attributes, wanted, results, specs, (cost, _moves(arguments, results, scale.marks), changes))


def _doubt(x: Stacked, scale: Scale) -> int:
    """A score for axes that count more than one thing: two marks on one axis, or worse a mark and a plain number.

    A plain side that equals the number of keys or of sequences adds to it too, unless keys or sequences have an axis.
    """
    marks, step = scale.marks, scale.step
    crowded = sum(10 if set(axis) - set(marks.all) else 1 for axis in x.axes if len(axis) > 1)
    pairs = ((marks.keys, step.keys), (marks.batch, step.batch))
    unsure = sum(not x.counts(mark) and (size,) in x.axes for mark, size in pairs)
    return crowded + unsure + 10 * max(sum(marks.batch in axis for axis in x.axes) - 1, 0)


def _moves(arguments: Mapping[str, Any], results: Sequence[Stacked | None], marks: StepSizes) -> int:
    """How far the axis of tokens moves; the reading in which it stays is the likely one."""
    operands = (x for value in arguments.values() for x in (value if isinstance(value, tuple) else (value,)))
    places = [x.axis_of(marks.tokens) for x in operands if x is not None and x.counts(marks.tokens)]
    places_after = [x.axis_of(marks.tokens) for x in results if x is not None and x.counts(marks.tokens)]
    return sum(abs(axis - places[0]) for axis in places_after) if places else 0


def _read(node: Node, algebra: Any, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        return operator(node.operator).read(algebra, arguments)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise MalformedError(f"does not fit its attributes ({type(error).__name__})") from None


# ---- what a definition does


class _Recorder:
    """An algebra that records every primitive: its name, its operands and numbers, and its results."""

    def __init__(self, algebra: Any) -> None:
        self._algebra = algebra
        self.notes: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        primitive: Callable[..., Any] = getattr(self._algebra, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            if len(self.notes) >= PRIMITIVES_MAX:
                raise MalformedError(f"consists of more primitives than the {PRIMITIVES_MAX} allowed")
            result = primitive(*arguments, **named)
            self.notes.append((name, *map(_note, arguments), *map(_note, sorted(named.items())), _note(result)))
            return result

        return noted


def _note(value: Any) -> Any:
    """A comparable record of one argument: specs for values, tuples for sides or axes, the text of numbers."""
    if hasattr(value, "spec"):
        return value.spec
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(each if type(each) is int else _note(each) for each in value)
    return value if isinstance(value, TensorSpec) else repr(value)


def _at(arguments: Mapping[str, Any], scale: Scale, sizes: StepSizes) -> dict[str, Any]:
    return {name: scale.at(value, sizes) for name, value in arguments.items()}


# ---- attributes


def _candidates(node: Node, scale: Scale) -> Iterator[tuple[int, Attributes]]:
    places = list(_places(node, scale))[:PLACES_MAX]
    for count in range(min(CHANGES_MAX, len(places)) + 1):
        for chosen in combinations(places, count):
            for entries in product(*(options for _, _, options in chosen)):
                attributes = dict(node.attributes)
                for (name, i, _), entry in zip(chosen, entries, strict=True):
                    _set(attributes, name, i, entry)
                yield count, attributes


def _places(node: Node, scale: Scale) -> Iterator[tuple[str, int | None, list[int]]]:
    """The places of numbers that may count tokens, keys or sequences, each with the candidates for it."""
    for name, kind in parameters_of(node).items():
        attribute = node.attributes[name]
        entries = enumerate(attribute) if isinstance(attribute, tuple) else [(None, attribute)]
        for i, entry in entries if kind in WHOLE and name in SIDES | ENDS else ():
            options = marked(entry, scale) if type(entry) is int else []
            if options:
                yield name, i, options


def marked(side: int, scale: Scale) -> list[int]:
    """The products of marks and a plain number that equal this side in the captured step."""
    marks, step = scale.marks, scale.step
    units = [(marks.tokens, step.tokens), (marks.keys, step.keys)]
    if scale.marks_sequences:
        units += [(marks.batch, step.batch), *((a * marks.batch, b * step.batch) for a, b in units)]
    fitting = [(mark, size) for mark, size in units if side > 0 and side % size == 0]
    return [side // size * mark for mark, size in fitting if size > 1 or side == 1 or mark == marks.batch]


def _set(attributes: dict[str, Attribute], name: str, i: int | None, entry: int) -> None:
    held = attributes[name]
    attributes[name] = (*held[:i], entry, *held[i + 1 :]) if isinstance(held, tuple) and i is not None else entry
