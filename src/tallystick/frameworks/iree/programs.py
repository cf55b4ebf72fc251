"""Programs for IREE: MLIR text compiled for a generic CPU, and run on the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from importlib import metadata
from typing import Any, Final

import iree.compiler
import iree.runtime
import numpy as np

from tallystick.errors import UnavailableError
from tallystick.tensors.dtypes import numpy_dtype
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

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


class Runtime:
    """IREE's device, and functions of modules loaded on it."""

    @cached_property
    def _config(self) -> Any:
        return iree.runtime.Config(DRIVER)

    def load(self, tensor: Tensor) -> Any:
        """A buffer on the device."""
        array = np.array(tensor.array(), order="C")
        held = array.view(np.uint8) if tensor.dtype == "BOOL" else array
        return self._config.device.allocator.allocate_buffer_copy(
            memory_type=iree.runtime.MemoryType.DEVICE_LOCAL,
            allowed_usage=iree.runtime.BufferUsage.DEFAULT | iree.runtime.BufferUsage.MAPPING,
            device=self._config.device,
            buffer=held,
            element_type=ELEMENTS[tensor.dtype],
        )

    def unload(self, view: Any, spec: TensorSpec) -> Tensor:
        """The bytes of a buffer."""
        if spec.size == 0:
            return Tensor(spec.dtype, spec.shape, b"")
        held = "U8" if spec.dtype == "BOOL" else spec.dtype
        array = np.array(view.map().asarray(list(spec.shape), numpy_dtype(held)))
        return Tensor.of(array.astype("|b1") if spec.dtype == "BOOL" else array, spec.dtype)

    def functions(self, vmfb: bytes, names: Sequence[str]) -> list[Any]:
        """The functions of a compiled module."""
        context = iree.runtime.SystemContext(config=self._config)
        module = iree.runtime.VmModule.copy_buffer(context.instance, vmfb)
        context.add_vm_module(module)
        return [_Function(context, module.lookup_function(name)) for name in names]


class _Function:
    """One function of a module in the context that keeps it alive."""

    def __init__(self, context: Any, function: Any) -> None:
        self._context = context
        self._function = function

    def __call__(self, views: Sequence[Any], count: int) -> list[Any]:
        """Its `count` results for these buffers; raises `UnavailableError` where the run fails."""
        given, found = iree.runtime.VmVariantList(len(views)), iree.runtime.VmVariantList(count)
        for view in views:
            given.push_ref(view)
        try:
            self._context.vm_context.invoke(self._function, given, found)
        except (RuntimeError, ValueError) as error:
            raise UnavailableError(f"IREE does not run it: {str(error)[:200]}") from None
        return [found.get_as_object(place, iree.runtime.HalBufferView) for place in range(count)]


def _reason(error: Exception) -> str:
    """The compiler's first error line, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    return (lines[0].partition("error:")[2].strip() if lines else str(error).partition("\n")[0])[:200]
