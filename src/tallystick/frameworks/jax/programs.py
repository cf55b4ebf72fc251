"""Programs for XLA: MLIR text compiled for one device, and definitions of operators traced by JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import jax
from jax.interpreters.mlir import make_ir_context
from jaxlib import xla_client
from jaxlib.mlir import ir

from tallystick.errors import UnavailableError
from tallystick.frameworks.jax.arrays import JAX
from tallystick.frameworks.jax.emission import Signature
from tallystick.frameworks.jax.signatures import unflat
from tallystick.operators.registry import operator
from tallystick.operators.values import Value, Values

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


def _inline(main: Any, functions: Any) -> None:
    """Replace every call in `main` by the called body, and every composite by its decomposition."""
    block = main.regions[0].blocks[0]
    while calls := [each.operation for each in block.operations if each.operation.name in CALLS]:
        for call in calls:
            name = ir.FlatSymbolRefAttr(call.attributes[CALLS[call.name]]).value
            _inline_one(call, functions[name].regions[0].blocks[0])


CALLS: Final = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def _inline_one(call: Any, body: Any) -> None:
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
