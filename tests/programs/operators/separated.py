"""One operator read for a batch and for one example alone: whether each example gets its part of the batch's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.batching import agree, resized
from tallystick.programs.operators.batches import Batched, Batches, Mixes
from tallystick.programs.operators.definition import Operator
from tallystick.programs.operators.types import Types

SHAPES: Final = frozenset({"size", "shape", "input_size", "input_sizes", "limit_indices"})
"""Parameters that hold sides or ends of a result; along the batch axis, one example needs its own."""
COUNTS: Final = frozenset({"N"})
"""Parameters that hold the batch size."""


@dataclass(frozen=True)
class Separated:
    """The results with their batch axes, and the attributes for one example alone."""

    results: tuple[Batched | None, ...]
    attributes: Mapping[str, Any]


def separated(operator: Operator, arguments: Mapping[str, Any], size: int) -> Separated:
    """Read a node on operands that are `Batched`, for batches of `size`.

    The following holds for every example i. Replace each operand with a batch axis by its rows of example i, each
    operand with `live` axes by the one that `alone` describes, and the attributes by the returned ones. Then the
    results are the rows of example i of the original results. If no operand has a batch axis, nothing changes and no
    result has one.

    Raises `Mixes` if this cannot be shown, `MalformedError` if operands or attributes do not fit.
    """
    attributes = {each.name: arguments[each.name] for each in operator.parameters if not each.is_operand}
    if not any(each.axis is not None for each in _operands(operator, arguments)):
        return Separated(_shared(operator, arguments, size), attributes)
    whole, results = _read(operator, arguments, size)
    attributes = _for_one(attributes, results, size)
    one = {each.name: _mapped(arguments[each.name], size) for each in operator.parameters if each.is_operand}
    try:
        single, alone_results = _read(operator, one | attributes, 1)
    except MalformedError as error:
        raise Mixes(f"{operator.name} does not work for one example alone: {error}") from error
    if not agree(whole, results, single, alone_results):
        raise Mixes(f"{operator.name} does something else for one example alone")
    return Separated(results, attributes)


def alone(x: Batched, size: int) -> TensorSpec:
    """The spec that replaces `x` when one example is computed alone."""
    return resized(x, 1, size).spec


def _shared(operator: Operator, arguments: Mapping[str, Any], size: int) -> tuple[Batched | None, ...]:
    """Results that are the same for every example, with what is known of their rows."""
    try:
        results = _read(operator, arguments, size)[1]
        # Only rows that are equal or counted may be cut for one example; along other axes it reads the whole value.
        return tuple(
            None if each is None else replace(each, live=each.live & (each.uniform | {each.counted}))
            for each in results
        )
    except Mixes:
        specs = {name: _mapped(value, 0) for name, value in arguments.items()}
        plain = operator.read(Types(), {name: _spec(value) for name, value in specs.items()})
        return tuple(None if spec is None else Batched(spec) for spec in plain)


def _read(operator: Operator, arguments: Mapping[str, Any], size: int) -> tuple[Batches, tuple[Batched | None, ...]]:
    sides = {each.shape[each.axis] for each in _operands(operator, arguments) if each.axis is not None}
    algebra = Batches(size, sides)
    return algebra, operator.read(algebra, arguments)


def _operands(operator: Operator, arguments: Mapping[str, Any]) -> list[Batched]:
    found: list[Batched] = []
    for each in operator.parameters:
        value = arguments[each.name] if each.is_operand else None
        found += [item for item in (value if isinstance(value, tuple) else (value,)) if item is not None]
    return found


def _mapped(value: Any, size: int) -> Any:
    """Operands for one example of `size`; as they are for 0."""
    if isinstance(value, tuple):
        return tuple(_mapped(each, size) for each in value)
    if not isinstance(value, Batched) or not size:
        return value
    spec = alone(value, size)
    if value.axis is not None:
        return Batched(spec, value.axis, value.block)
    return Batched(spec, None, 1, value.uniform, value.counted)


def _spec(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_spec(each) for each in value)
    return value.spec if isinstance(value, Batched) else value


def _for_one(attributes: Mapping[str, Any], results: tuple[Batched | None, ...], size: int) -> dict[str, Any]:
    """The attributes, with the side of the batch replaced in those that state sides of the result."""
    found, first = dict(attributes), next((each for each in results if each is not None), None)
    for name in SHAPES & found.keys():
        if isinstance(found[name], tuple) and first is not None:
            pairs = zip(found[name], first.shape, alone(first, size).shape, strict=False)
            sides = [one if side == whole else side for side, whole, one in pairs]
            found[name] = (*sides, *found[name][len(sides) :])
    return found | {name: 1 for name in COUNTS & found.keys() if found[name] == size}
