"""Captures JAX functions as graphs, through `jax.export`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import numpy as np

from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.jax.arrays import JAX
from tallystick.frameworks.jax.lowering import lower
from tallystick.graphs.graph import Graph, GraphForm, Input, Role
from tallystick.tensors.dtypes import dtype_of
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

ROLES: Final = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "schedule": Role.SCHEDULE,
    "rng": Role.RNG,
}
"""The role of an input by the first word of its name; any other is `Role.INPUT`, given at each step."""


@dataclass(frozen=True)
class CapturedFunction:
    """A graph, the bytes of its constants by name, and the example arguments by name."""

    graph: Graph
    constants: Mapping[str, Tensor]
    arguments: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def bindings(self) -> dict[str, Tensor]:
        """Constants and example arguments: with these the graph can be executed."""
        return {**self.constants, **self.arguments}


def capture(
    function: Callable[..., Any],
    *arguments: Any,
    roles: Mapping[int, str] | None = None,
    results: Mapping[int, str] | None = None,
    form: GraphForm = GraphForm.LOGICAL,
) -> CapturedFunction:
    """The StableHLO graph of `function` for arguments with these shapes and dtypes.

    Every array of an argument is an input, named by its path in the pytree: `inputs.<argument>.<path>`, or, for an
    argument to which `roles` gives a prefix such as `weights` or `optimizer.momentum`, `<prefix>.<path>`. An array of
    the result is `outputs.<path>`; `results` gives prefixes to the parts of a tuple, so that a training step returns
    `weights.…` under the names of its inputs. The graph depends neither on the process nor on where the code lies.

    Raises:
        UnavailableError: the function cannot be captured; the line names the operator and the reason.
        UsageError: two inputs, or two outputs, have the same name.
    """
    named = _named_arguments(function, arguments, roles or {})
    exported = _exported(function, arguments)
    inputs = [_input(name, aval) for name, aval in zip(named, exported.in_avals, strict=True)]
    outputs = _output_names(exported, results or {})
    lowered = lower(exported.mlir_module(), inputs, outputs, form)
    examples = {each.name: to_tensor(value, each.spec) for each, value in zip(inputs, named.values(), strict=True)}
    return CapturedFunction(lowered.graph, lowered.constants, examples)


def to_tensor(value: Any, spec: TensorSpec) -> Tensor:
    """An array of JAX, or a number, as a tensor of `spec`."""
    array = np.asarray(jax.numpy.asarray(value, JAX.dtype(spec.dtype)))
    return Tensor.of(array.view("<u2"), "BF16") if spec.dtype == "BF16" else Tensor.of(array)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of JAX; raises `UnavailableError` for one that graphs do not have."""
    if str(dtype) == "bfloat16":
        return "BF16"
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise UnavailableError("a typed PRNG key has no place in a graph; pass jax.random.key_data of it")
    try:
        return dtype_of(np.dtype(dtype))
    except (TypeError, ValueError):
        raise UnavailableError(f"{dtype!s:.40} has no place in a graph") from None


def _exported(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return jax.export.export(jax.jit(function, keep_unused=True))(*arguments)
    except jax.errors.ConcretizationTypeError as error:
        reason = str(error).partition("\n")[0][:200]
        raise UnavailableError(f"cannot be captured: its control flow depends on data: {reason}") from None


def _input(name: str, aval: Any) -> Input:
    role = ROLES.get(name.partition(".")[0], Role.INPUT)
    return Input(name, role, TensorSpec(dtype_name(aval.dtype), tuple(aval.shape)))


def _named_arguments(
    function: Callable[..., Any], arguments: Sequence[Any], roles: Mapping[int, str]
) -> dict[str, Any]:
    """The arrays of the arguments by name, in the order in which JAX takes them."""
    words = _parameter_names(function, len(arguments))
    found: dict[str, Any] = {}
    for place, argument in enumerate(arguments):
        prefix = roles.get(place, f"inputs.{words[place]}")
        for name, value in _leaves(prefix, argument):
            _check_free(name, found)
            found[name] = value
    return found


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[place] if place < len(names) else str(place) for place in range(count)]


def _output_names(exported: Any, results: Mapping[int, str]) -> list[str]:
    tree = jax.tree_util.tree_unflatten(exported.out_tree, range(len(exported.out_avals)))
    if isinstance(tree, tuple):
        parts = [(results.get(place, f"outputs.{place}"), part) for place, part in enumerate(tree)]
    else:
        parts = [(results.get(0, "outputs"), tree)]
    found: dict[str, Any] = {}
    for prefix, part in parts:
        for name, value in _leaves(prefix, part):
            name = "outputs.0" if name == "outputs" else name
            _check_free(name, found)
            found[name] = value
    return list(found)


def _leaves(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield ".".join([prefix, *map(_key, path)]), value


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _check_free(name: str, found: Mapping[str, Any]) -> None:
    if name in found:
        raise UsageError(f"two values would be named {name}: name the arguments apart with roles or results")
