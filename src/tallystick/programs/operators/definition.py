"""An operator: its name, parameters and definition; families of operators, and the allow-list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partialmethod
from importlib import import_module
from inspect import Parameter as Argument, signature
from typing import Any, Final, TypeAlias, TypeVar

from tallystick.core.canonical_json import INTEGER_MAX
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import item_size
from tallystick.programs.operators.algebra import Algebra

# The signature of a definition is the operator's schema: after the algebra stand the parameters of PyTorch's schema,
# in its order and with its defaults. For each of them a node holds an operand (a value) or an attribute (a constant
# of the program).

Scalar: TypeAlias = bool | int | float
Ints: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = str
"""A safetensors name."""
Attribute: TypeAlias = "Scalar | str | tuple[Scalar, ...] | None"
Definition: TypeAlias = Callable[..., Any]
D = TypeVar("D", bound=Definition)

TENSOR_KINDS: Final = frozenset({"Tensor", "Tensor?", "Tensor[]", "Tensor?[]"})
ATTRIBUTE_KINDS: Final = frozenset({"int", "int[]", "float", "float[]", "bool", "bool[]", "Scalar", "str", "dtype"})
ANNOTATIONS: Final[Mapping[str, str]] = {
    "V": "Tensor",
    "Sequence[V]": "Tensor[]",
    "Sequence[V | None]": "Tensor?[]",
    "int": "int",
    "Ints": "int[]",
    "float": "float",
    "tuple[float, ...]": "float[]",
    "bool": "bool",
    "tuple[bool, ...]": "bool[]",
    "Scalar": "Scalar",
    "str": "str",
    "Dtype": "dtype",
}
"""The kind of a parameter by its annotation in a definition; ` | None` after it makes it optional."""
REQUIRED: Final = Argument.empty
"""The default of a parameter that has none."""


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
    default: Any = REQUIRED

    @property
    def is_operand(self) -> bool:
        """Whether nodes hold a value for it, and not a constant of the program."""
        return self.kind in TENSOR_KINDS

    def check(self, attribute: Attribute, place: str = "") -> None:
        """Raise `MalformedError`, which begins with `place`, unless `attribute` has this parameter's kind."""
        if not _has_kind(attribute, self.kind):
            raise MalformedError(f"{place}{self.name} is {attribute!r:.60}, no {self.kind}")


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
    """The operators of a dialect that are defined in one file."""

    dialect: str
    operators: dict[str, Operator] = field(default_factory=dict)

    def operator(self, exactness: Exactness, names: str, meaning: str, /, **kinds: str) -> Callable[[D], D]:
        """A decorator that adds a definition under each of `names`, which are those of the dialect, by spaces apart.

        `kinds` states the kinds of parameters by name where the annotation leaves a choice, as `V | Scalar` does: one
        for all names, or one for each.
        """

        def added(define: D) -> D:
            for place, name in enumerate(f"{self.dialect}.{each}" for each in names.split()):
                assert name not in self.operators, f"{name} is described twice"
                own = {parameter: kind.split()[place if " " in kind else 0] for parameter, kind in kinds.items()}
                self.operators[name] = Operator(name, _parameters(define, own), meaning, exactness, define)
            return define

        return added

    moves = partialmethod(operator, Exactness.MOVES)
    exact = partialmethod(operator, Exactness.EXACT)
    rounds = partialmethod(operator, Exactness.ROUNDS)
    accumulates = partialmethod(operator, Exactness.ACCUMULATES)
    library = partialmethod(operator, Exactness.LIBRARY)
    composite = partialmethod(operator, Exactness.COMPOSITE)


def _parameters(define: Definition, kinds: Mapping[str, str]) -> tuple[Parameter, ...]:
    _, *arguments = signature(define).parameters.values()
    assert kinds.keys() <= {each.name for each in arguments}, f"{define} lacks some of {sorted(kinds)}"
    return tuple(Parameter(each.name, kinds.get(each.name) or _kind(each), each.default) for each in arguments)


def _kind(argument: Argument) -> str:
    plain = str(argument.annotation).removesuffix(" | None")
    assert plain in ANNOTATIONS, f"{argument} is of no known kind"
    return ANNOTATIONS[plain] + ("?" if plain != argument.annotation else "")


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


# The allow-list: every operator that a graph may hold. The families of a dialect are imported when one of its operators
# is first asked for, because each of them imports this module.

FAMILIES: Final = (
    "tallystick.programs.operators.aten.activation",
    "tallystick.programs.operators.aten.attention",
    "tallystick.programs.operators.aten.batch_norm",
    "tallystick.programs.operators.aten.comparison",
    "tallystick.programs.operators.aten.contraction",
    "tallystick.programs.operators.aten.convolution",
    "tallystick.programs.operators.aten.creation",
    "tallystick.programs.operators.aten.elementwise",
    "tallystick.programs.operators.aten.embedding",
    "tallystick.programs.operators.aten.indexing",
    "tallystick.programs.operators.aten.joining",
    "tallystick.programs.operators.aten.loss",
    "tallystick.programs.operators.aten.movement",
    "tallystick.programs.operators.aten.normalization",
    "tallystick.programs.operators.aten.pooling",
    "tallystick.programs.operators.aten.reduction",
    "tallystick.programs.operators.stablehlo.elementwise",
    "tallystick.programs.operators.stablehlo.indexing",
    "tallystick.programs.operators.stablehlo.movement",
    "tallystick.programs.operators.stablehlo.reduction",
    "tallystick.programs.operators.tally.generator",
    "tallystick.programs.operators.tally.optimizer",
    "tallystick.programs.operators.tally.sampling",
)
"""The modules that define operators; a graph may hold no others."""


DIALECTS: Final = ("aten", "stablehlo", "tally")


@cache
def _listed(dialect: str) -> Mapping[str, Operator]:
    operators: dict[str, Operator] = {}
    for module in FAMILIES:
        if module.split(".")[-2] == dialect:
            family: Family = import_module(module).FAMILY
            assert not operators.keys() & family.operators.keys(), f"{module} describes an operator once more"
            operators |= family.operators
    return dict(sorted(operators.items()))


class _AllowList(Mapping[str, Operator]):
    """All operators by sorted name."""

    def __getitem__(self, name: str) -> Operator:
        dialect = name.partition(".")[0]
        if dialect not in DIALECTS:
            raise KeyError(name)
        return _listed(dialect)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for dialect in DIALECTS for name in _listed(dialect))

    def __len__(self) -> int:
        return sum(len(_listed(dialect)) for dialect in DIALECTS)


OPERATORS: Final = _AllowList()


def operator(name: str) -> Operator:
    """The operator of this name; raises `MalformedError` if it is not on the allow-list."""
    listed = OPERATORS.get(name)
    if listed is None:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return listed
