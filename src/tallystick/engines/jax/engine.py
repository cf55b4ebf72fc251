"""JAX as an engine: XLA runs StableHLO nodes; operators of other dialects run by their definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.mlir import make_ir_context
from jaxlib import xla_client
from jaxlib.mlir import ir

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec, dtype_of, numpy_dtype
from tallystick.engines.jax.emission import WRITERS, Signature, graph_function, module_text, node_function
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Graph, Node
from tallystick.programs.operators.arrays import Array, ArrayLibrary, Index, standard_name
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.values import Value, Values

# JAX as an array library that evaluates the definitions of operators.


@dataclass(frozen=True)
class _Jax:
    """JAX, inside or outside a trace; for 64-bit dtypes the caller must set `jax.enable_x64`."""

    xp: Any = jnp
    name = "jax"

    def dtype(self, name: str) -> Any:
        return self.xp.dtype(standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        return not isinstance(x, jax.core.Tracer)

    def asarray(self, elements: Any, dtype: str) -> Array:
        array = np.asarray(elements, numpy_dtype(dtype))
        return self.xp.asarray(array.view(self.dtype(dtype)))

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        array = np.asarray(x)
        return array.view("<u2") if x.dtype == self.xp.bfloat16 else array

    def convert(self, x: Array, dtype: str) -> Array:
        return x.astype(self.dtype(dtype))

    def erf(self, x: Array) -> Array:
        return jax.lax.erf(x)

    def rsqrt(self, x: Array) -> Array:
        return jax.lax.rsqrt(x)

    def sigmoid(self, x: Array) -> Array:
        return jax.lax.logistic(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return self.xp.matmul(x, y, precision="highest")

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        return x + factor * y

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        return x.at[index].add(updates) if add else x.at[index].set(updates)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        positions = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        places = stride * np.arange(positions)[:, None] + dilation * np.arange(size)
        return self.xp.moveaxis(self.xp.take(x, places, axis=axis), axis + 1, -1)


JAX: Final[ArrayLibrary] = _Jax()


# Signatures of nodes: nodes with equal operator, attributes and operand specs share one compiled program.

Key: TypeAlias = "tuple[Any, ...]"


def key_of(signature: Signature) -> Key:
    """A key that is equal for two signatures exactly if the same program computes both."""
    node = signature.node
    layout = tuple((name, _layout(operand)) for name, operand in node.operands.items())
    attributes = tuple((name, repr(attribute)) for name, attribute in node.attributes.items())
    return node.operator, layout, attributes, signature.operands


def signatures_of(graph: Graph) -> list[Signature]:
    """The distinct signatures of a graph, in the order of execution."""
    specs = graph.specs()
    distinct: dict[Key, Signature] = {}
    for node in graph.nodes:
        signature = Signature(node, tuple(specs[ref] for ref in node.refs))
        distinct.setdefault(key_of(signature), signature)
    return list(distinct.values())


def flat(arguments: Arguments, node: Node) -> list[Any]:
    """The arrays of a node's operands in the order of its parameters; absent operands are skipped."""
    arrays: list[Any] = []
    for name in node.operands:
        operand = arguments[name]
        arrays.extend(each for each in (operand if isinstance(operand, tuple) else (operand,)) if each is not None)
    return arrays


def unflat(arrays: Sequence[Any], node: Node) -> dict[str, Any]:
    """The operands by parameter, from their arrays in the order of `flat`."""
    left = iter(arrays)

    def take(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return tuple(None if ref is None else next(left) for ref in operand)
        return None if operand is None else next(left)

    return {name: take(operand) for name, operand in node.operands.items()}


def spread(arrays: Iterable[Any], results: Sequence[TensorSpec | None]) -> tuple[Any, ...]:
    """The results of a node, with `None` for results that it does not have."""
    left = iter(arrays)
    return tuple(None if spec is None else next(left) for spec in results)


def bound(graph: Graph, bindings: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of the inputs, then of the constants; raises `MalformedError` if one is missing or does not fit."""
    for source in graph.sources:
        tensor = bindings.get(source.name)
        if tensor is None:
            raise MalformedError(f"{source.name} is not bound")
        if TensorSpec.of(tensor) != source.spec:
            raise MalformedError(f"{source.name} is {source.spec}, and bound to {TensorSpec.of(tensor)}")
    return [bindings[source.name] for source in graph.sources]


def _layout(operand: Any) -> Any:
    """True for a tensor, False for an absent operand, a tuple of these for a list."""
    return tuple(ref is not None for ref in operand) if isinstance(operand, tuple) else operand is not None


# Programs for XLA: MLIR text compiled for one device, and definitions of operators traced by JAX.

Program: TypeAlias = Callable[[Sequence[Any]], list[Any]]
ALGEBRA: Final = Values(JAX)
FAILURES: Final = (RuntimeError, ValueError, TypeError, NotImplementedError)


def compiled(text: str, what: str, device: Any) -> Program:
    """A module as a function from arrays to arrays; raises `UnavailableError` naming `what` if XLA refuses it."""
    client = device.client
    try:
        with jax.enable_x64(True):
            executable = client.compile_and_load(text, xla_client.DeviceList((device,)), xla_client.CompileOptions())
    except FAILURES as error:
        raise UnavailableError(f"XLA does not compile {what}: {first_line(error)}") from None

    def run(arrays: Sequence[Any]) -> list[Any]:
        outputs = executable.execute_sharded(list(arrays)).disassemble_into_single_device_arrays()
        return [shards[0] for shards in outputs]

    return run


def defined(signature: Signature, device: Any) -> Program:
    """The definition of an operator on JAX arrays, in the stated dtypes, compiled by `jax.jit`."""
    jitted = jax.jit(computation(signature))

    def run(arrays: Sequence[Any]) -> list[Any]:
        try:
            with jax.enable_x64(True), jax.default_device(device):
                return list(jitted(*arrays))
        except FAILURES as error:
            raise UnavailableError(f"JAX does not run {signature.node.operator}: {first_line(error)}") from None

    return run


def lowered_function(signature: Signature, name: str) -> str:
    """The definition of an operator as one MLIR function, all calls inlined."""
    dtype = ALGEBRA.library.dtype
    arguments = [jax.ShapeDtypeStruct(spec.shape, dtype(spec.dtype)) for spec in signature.operands]
    with jax.enable_x64(True):
        try:
            exported = jax.export.export(jax.jit(computation(signature), keep_unused=True))(*arguments)
        except FAILURES as error:
            raise UnavailableError(f"JAX does not lower {signature.node.operator}: {first_line(error)}") from None
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(exported.mlir_module())
        functions = {each.name.value: each for each in module.body.operations}
        main = functions["main"]
        _inline(main, functions)
        main.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        for attribute in ("res_attrs", "arg_attrs"):
            if attribute in main.operation.attributes:
                del main.operation.attributes[attribute]
        return str(main.operation.get_asm(enable_debug_info=False, print_generic_op_form=False))


def computation(signature: Signature) -> Callable[..., tuple[Any, ...]]:
    """The definition as a function of arrays, which JAX can trace."""
    node, dtypes = signature.node, [spec.dtype for spec in signature.operands]
    known = operator(node.operator)

    def compute(*arrays: Any) -> tuple[Any, ...]:
        values = [Value(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        results = known.read(ALGEBRA, {**node.attributes, **unflat(values, node)})
        return tuple(each.array for each in results if each is not None)

    return compute


def first_line(error: Exception) -> str:
    """The first line of an error, at most 200 characters."""
    return str(error).strip().partition("\n")[0][:200]


CALLS: Final = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def _inline(main: Any, functions: Any) -> None:
    """Replace every call in `main` by the called body, and every composite by its decomposition."""
    block = main.regions[0].blocks[0]
    while calls := [each.operation for each in block.operations if each.operation.name in CALLS]:
        for call in calls:
            body = functions[ir.FlatSymbolRefAttr(call.attributes[CALLS[call.name]]).value].regions[0].blocks[0]
            values = dict(zip(body.arguments, call.operands, strict=True))
            for source in (each.operation for each in body.operations):
                if source.name == "func.return":
                    for result, returned in zip(call.results, source.operands, strict=True):
                        result.replace_all_uses_with(values[returned])
                    continue
                with ir.InsertionPoint(call):
                    clone = source.clone()
                _rewire(clone, values)
                values.update(zip(source.results, clone.results, strict=True))
            call.erase()


def _rewire(operation: Any, values: Any) -> None:
    """Replace operands by their new values, also in all operators of the regions."""
    for place, operand in enumerate(operation.operands):
        if operand in values:
            operation.operands[place] = values[operand]
    for region in operation.regions:
        for block in region:
            for inner in block:
                _rewire(inner.operation, values)


class JaxEngine:
    """XLA on one device. Each distinct node is compiled when it first runs."""

    name: Final = "jax"

    def __init__(self, platform: str = "cpu") -> None:
        try:
            self._device = jax.devices(platform)[0]
        except RuntimeError as error:
            raise UnavailableError(f"JAX has no device {platform[:40]!r}: {str(error)[:100]}") from None
        self._programs: dict[Key, Program] = {}

    def load(self, tensor: Tensor) -> Any:
        """An array on the device."""
        with jax.enable_x64(True), jax.default_device(self._device):
            return ALGEBRA.load(tensor).array

    def unload(self, array: Any, dtype: str) -> Tensor:
        """The bytes of an array."""
        return Tensor.of(ALGEBRA.library.storage(array), dtype)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function that runs the node; it compiles it first if operands like these are new."""

        def run(arguments: Arguments) -> tuple[Any, ...]:
            arrays = flat(arguments, node)
            signature = Signature(node, tuple(map(spec_of, arrays)))
            key = key_of(signature)
            if key not in self._programs:
                self._programs[key] = (
                    compiled(module_text([node_function(signature)]), node.operator, self._device)
                    if node.operator in WRITERS
                    else defined(signature, self._device)
                )
            return spread(self._programs[key](arrays), node.results)

        return run

    def run(self, graph: Graph, bindings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a StableHLO graph, compiled as one program; XLA may fuse operators."""
        arrays = [self.load(tensor) for tensor in bound(graph, bindings)]
        program = compiled(module_text([graph_function(graph)]), "the graph", self._device)
        results, specs = program(arrays), graph.specs()
        return {
            output.name: self.unload(array, specs[output.value].dtype)
            for output, array in zip(graph.outputs, results, strict=True)
        }


def spec_of(array: Any) -> TensorSpec:
    """Dtype and shape of an array of JAX."""
    is_bfloat16 = array.dtype == ALGEBRA.library.dtype("BF16")
    return TensorSpec("BF16" if is_bfloat16 else dtype_of(np.dtype(array.dtype)), tuple(array.shape))
