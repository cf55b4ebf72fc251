"""IREE as an engine: nodes compiled to its byte code, and run on the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from importlib import metadata
from typing import Any, Final

import iree.compiler
import iree.runtime
import numpy as np

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import State, Tensor, TensorSpec, numpy_dtype
from tallystick.engines.jax.emission import WRITERS, Signature, graph_function, module_text, node_function
from tallystick.engines.jax.engine import Key, bound, flat, key_of, lowered_function, signatures_of, spread
from tallystick.programs.execution import Arguments, execute
from tallystick.programs.graph import Graph, Node

# Programs for IREE: MLIR text compiled for a generic CPU, and run on the calling thread.

TARGET: Final = "llvm-cpu"
FLAGS: Final = ("--iree-llvmcpu-target-cpu=generic", "--iree-input-demote-f64-to-f32=false")
DRIVER: Final = "local-sync"
ELEMENTS: Final = {
    "BOOL": iree.runtime.HalElementType.BOOL_8,
    **{f"I{bits}": getattr(iree.runtime.HalElementType, f"SINT_{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": getattr(iree.runtime.HalElementType, f"UINT_{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": getattr(iree.runtime.HalElementType, f"FLOAT_{bits}") for bits in (16, 32, 64)},
    "BF16": iree.runtime.HalElementType.BFLOAT_16,
}

_compiled: Final[dict[bytes, bytes]] = {}
"""Compiled modules by the hash of text, flags and version, which determine the bytes."""


def compiled(text: str, what: str) -> bytes:
    """The byte code of a module, cached; raises `UnavailableError` naming `what` if IREE refuses it."""
    key = sha256("\0".join([text, TARGET, *FLAGS, version()]).encode()).digest()
    if key not in _compiled:
        try:
            _compiled[key] = iree.compiler.compile_str(
                text, target_backends=[TARGET], input_type="stablehlo", extra_args=list(FLAGS)
            )
        except iree.compiler.CompilerToolError as error:
            raise UnavailableError(f"IREE does not compile {what}: {_reason(error)}") from None
    return _compiled[key]


def version() -> str:
    """The version of IREE's compiler."""
    return metadata.version("iree-base-compiler")


def _reason(error: Exception) -> str:
    """The compiler's first error line, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    return (lines[0].partition("error:")[2].strip() if lines else str(error).partition("\n")[0])[:200]


# IREE as an engine: it compiles StableHLO nodes directly, and other operators from definitions traced by JAX.

BY_DEFINITION: Final = frozenset({"stablehlo.scatter", "stablehlo.select_and_scatter", "stablehlo.sort"})
"""Operators that IREE 3.13 gets wrong: it writes outside the tensor, takes the last of equal maxima, sorts unstably."""


@dataclass(frozen=True)
class Buffer:
    """A buffer on IREE's device, with its dtype and shape."""

    view: Any
    spec: TensorSpec


class IreeEngine:
    """IREE on a CPU without special instructions, on the calling thread.

    Nodes are compiled when they first run; `compile` takes all distinct nodes of a graph into one module, which is
    several times faster. A StableHLO node that IREE does not compile runs by its definition.
    """

    name: Final = "iree"

    def __init__(self) -> None:
        self._functions: dict[Key, Any] = {}

    @cached_property
    def _config(self) -> Any:
        return iree.runtime.Config(DRIVER)

    def load(self, tensor: Tensor) -> Buffer:
        """A buffer on the device."""
        array = np.array(tensor.array(), order="C")
        view = self._config.device.allocator.allocate_buffer_copy(
            memory_type=iree.runtime.MemoryType.DEVICE_LOCAL,
            allowed_usage=iree.runtime.BufferUsage.DEFAULT | iree.runtime.BufferUsage.MAPPING,
            device=self._config.device,
            buffer=array.view(np.uint8) if tensor.dtype == "BOOL" else array,
            element_type=ELEMENTS[tensor.dtype],
        )
        return Buffer(view, TensorSpec.of(tensor))

    def unload(self, array: Buffer, dtype: str) -> Tensor:
        """The bytes of a buffer."""
        spec = TensorSpec(dtype, array.spec.shape)
        if spec.size == 0:
            return Tensor(spec.dtype, spec.shape, b"")
        elements = np.array(array.view.map().asarray(list(spec.shape), numpy_dtype("U8" if dtype == "BOOL" else dtype)))
        return Tensor.of(elements.astype("|b1") if dtype == "BOOL" else elements, dtype)

    def compile(self, graph: Graph) -> None:
        """Compile every distinct node of `graph` in one module.

        Raises `UnavailableError` naming the operator that IREE does not compile.
        """
        missing = [each for each in signatures_of(graph) if key_of(each) not in self._functions]
        if missing:
            self._add(missing)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function that runs the node; it compiles it first if operands like these are new."""

        def run(arguments: Arguments) -> tuple[Any, ...]:
            buffers = flat(arguments, node)
            signature = Signature(node, tuple(each.spec for each in buffers))
            key = key_of(signature)
            if key not in self._functions:
                self._add([signature])
            specs = signature.results
            views = self._functions[key]([each.view for each in buffers], len(specs))
            return spread(map(Buffer, views, specs), node.results)

        return run

    def run(self, graph: Graph, bindings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a StableHLO graph, compiled as one program; IREE may fuse operators."""
        [function] = self._loaded(compiled(_whole(graph), "the graph"), ["main"])
        views = function([self.load(each).view for each in bound(graph, bindings)], len(graph.outputs))
        specs = graph.specs()
        return {
            output.name: self.unload(Buffer(view, specs[output.value]), specs[output.value].dtype)
            for output, view in zip(graph.outputs, views, strict=True)
        }

    def _loaded(self, vmfb: bytes, names: Sequence[str]) -> list[Callable[[Sequence[Any], int], list[Any]]]:
        """The functions of a compiled module: from buffers to so many results."""
        context = iree.runtime.SystemContext(config=self._config)
        module = iree.runtime.VmModule.copy_buffer(context.instance, vmfb)
        context.add_vm_module(module)

        def call(function: Any, views: Sequence[Any], count: int) -> list[Any]:
            given, results = iree.runtime.VmVariantList(len(views)), iree.runtime.VmVariantList(count)
            for view in views:
                given.push_ref(view)
            try:
                context.vm_context.invoke(function, given, results)
            except (RuntimeError, ValueError) as error:
                raise UnavailableError(f"IREE does not run it: {str(error)[:200]}") from None
            return [results.get_as_object(place, iree.runtime.HalBufferView) for place in range(count)]

        return [partial(call, module.lookup_function(name)) for name in names]

    def _add(self, signatures: Sequence[Signature], by_definition: bool = False) -> None:
        """Compile in one module; if that fails, compile halves; a single node that fails runs by its definition."""
        names = [f"op{place}" for place in range(len(signatures))]
        written = WRITERS.keys() - BY_DEFINITION if not by_definition else ()
        try:
            texts = (
                (node_function if each.node.operator in written else _defined)(each, name)
                for each, name in zip(signatures, names, strict=True)
            )
            vmfb = compiled(module_text(texts), signatures[0].node.operator)
        except UnavailableError:
            if len(signatures) > 1:
                middle = len(signatures) // 2
                self._add(signatures[:middle])
                self._add(signatures[middle:])
            elif by_definition:
                raise
            else:
                self._add(signatures, by_definition=True)
            return
        functions = self._loaded(vmfb, names)
        self._functions |= zip(map(key_of, signatures), functions, strict=True)


def _whole(graph: Graph) -> str:
    """A graph as one module; nodes that run by their definitions are separate functions."""
    specs = graph.specs()
    apart = {node.number: node for node in graph.nodes if node.operator in BY_DEFINITION}
    called = {number: f"node{number}" for number in apart}
    signatures = [Signature(node, tuple(specs[ref] for ref in node.refs)) for node in apart.values()]
    return module_text([*map(_defined, signatures, called.values()), graph_function(graph, "main", called)])


def _defined(signature: Signature, name: str) -> str:
    text = lowered_function(signature, name)
    if "stablehlo.sort" in text:
        raise UnavailableError(f"IREE does not run {signature.node.operator}: its stablehlo.sort is not stable")
    return text


def run_compiled(graph: Graph, bindings: State, engine: IreeEngine) -> dict[str, Tensor]:
    """The outputs of `graph`; all nodes are compiled at once, which is several times faster than one by one."""
    engine.compile(graph)
    return execute(graph, bindings, engine)
