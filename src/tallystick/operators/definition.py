"""An operator: its name, its parameters and its definition; and families of operators.

The parameters are written as in a schema of PyTorch: `Tensor self, Tensor other, *, Scalar alpha=1`. For each parameter
a node holds an operand (a value) or an attribute (a constant of the program).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra
from tallystick.tensors.dtypes import item_size

Scalar: TypeAlias = bool | int | float
Attribute: TypeAlias = "Scalar | str | tuple[Scalar, ...] | None"
Definition: TypeAlias = Callable[..., Any]
D = TypeVar("D", bound=Definition)

TENSOR_KINDS: Final = frozenset({"Tensor", "Tensor?", "Tensor[]", "Tensor?[]"})
ATTRIBUTE_KINDS: Final = frozenset({"int", "int[]", "float", "float[]", "bool", "bool[]", "Scalar", "str", "dtype"})
_PARAMETER: Final = re.compile(r"(?P<kind>[A-Za-z]+(\?\[\]|\[\]\?|\[\]|\?)?) (?P<name>\w+)(=(?P<default>.+))?")
INTEGER_MAX: Final = 2**53 - 1


class Exactness(StrEnum):
    """How the results of an honest evaluation may differ from the exact ones."""

    MOVES = "moves data"
    EXACT = "exact"
    ROUNDS = "rounds once"
    ACCUMULATES = "accumulates"
    LIBRARY = "library function"
    COMPOSITE = "composite"


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator; `kind` is one of `TENSOR_KINDS`, or of `ATTRIBUTE_KINDS` with `?` if optional."""

    name: str
    kind: str
    default: str | None = None

    @property
    def is_operand(self) -> bool:
        """Whether nodes hold a value for it, and not a constant of the program."""
        return self.kind in TENSOR_KINDS

    def check(self, attribute: Attribute) -> None:
        """Raise `MalformedError` unless `attribute` has this parameter's kind."""
        if not _has_kind(attribute, self.kind):
            raise MalformedError(f"{self.name} is {attribute!r:.60}, no {self.kind}")


@dataclass(frozen=True)
class Operator:
    """One operator of the allow-list.

    `meaning` describes it in one line. `define` is the definition: a function of an algebra and of the parameters by
    name that returns one value, or a tuple of values and `None`s.
    """

    name: str
    parameters: tuple[Parameter, ...]
    meaning: str
    exactness: Exactness
    define: Definition

    @property
    def dialect(self) -> str:
        """`aten`, `stablehlo` or `tally`."""
        return self.name.partition(".")[0]

    def read(self, algebra: Algebra[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results in one algebra; `arguments` gives every parameter its value or attribute.

        Raises `MalformedError` if operands or attributes do not fit together.
        """
        results = self.define(algebra, **arguments)
        return results if isinstance(results, tuple) else (results,)


@dataclass
class Family:
    """Operators that are defined in one file."""

    operators: dict[str, Operator] = field(default_factory=dict)

    def operator(self, name: str, parameters: str, meaning: str, exactness: Exactness) -> Callable[[D], D]:
        """A decorator that adds a definition under `name`; several of them give one definition several names."""

        def added(define: D) -> D:
            assert name not in self.operators, f"{name} is described twice"
            self.operators[name] = Operator(name, parse_parameters(parameters), meaning, exactness, define)
            return define

        return added


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    """The parameters in PyTorch's notation; `*` is skipped."""
    parts = [part.strip() for part in re.split(r",\s*(?![^\[]*\])", text)]
    return tuple(_parse_parameter(part) for part in parts if part not in {"", "*"})


def _parse_parameter(text: str) -> Parameter:
    found = _PARAMETER.fullmatch(text)
    assert found is not None, f"{text!r} is no parameter"
    return Parameter(found["name"], found["kind"], found["default"])


def _has_kind(attribute: Attribute, kind: str) -> bool:
    if kind.endswith("?"):
        return attribute is None or _has_kind(attribute, kind[:-1])
    if kind.endswith("[]"):
        return isinstance(attribute, tuple) and all(_has_kind(item, kind[:-2]) for item in attribute)
    return _SCALAR_CHECKS[kind](attribute)


def _is_dtype(attribute: Attribute) -> bool:
    try:
        return isinstance(attribute, str) and item_size(attribute) > 0
    except MalformedError:
        return False


def _is_int(attribute: Attribute) -> bool:
    return isinstance(attribute, int) and not isinstance(attribute, bool) and abs(attribute) <= INTEGER_MAX


_SCALAR_CHECKS: Final[Mapping[str, Callable[[Attribute], bool]]] = {
    "int": _is_int,
    "float": lambda attribute: isinstance(attribute, float),
    "bool": lambda attribute: isinstance(attribute, bool),
    "str": lambda attribute: isinstance(attribute, str),
    "Scalar": lambda attribute: isinstance(attribute, bool | float) or _is_int(attribute),
    "dtype": _is_dtype,
}
