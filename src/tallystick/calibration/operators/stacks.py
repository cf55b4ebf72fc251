"""Stacks that compute the same operators by other kernels: other instruction sets, libraries, threads and engines.

JAX, IREE and NumPy run ATen operators by their definitions, so the formulas differ from those of fused kernels too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from tallystick.calibration.operators.definitions import BY_LIBRARY, IN_ORDER, Definitions
from tallystick.calibration.training.stacks import PORTABLE, Stack, enter
from tallystick.errors import UnavailableError
from tallystick.extras import require
from tallystick.graphs.engine import Engine
from tallystick.graphs.graph import Graph


@dataclass(frozen=True)
class OperatorStack(Stack):
    """A stack with the engine that runs each operator; the settings of PyTorch apply only to `torch`."""

    engine: Literal["torch", "jax", "iree", "numpy", "loops"] = "torch"


WIDE: Final = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
BASE: Final = OperatorStack("base")
STACKS: Final = (
    BASE,
    OperatorStack("2 threads", threads=2),
    OperatorStack("AVX2 vector code", {"ATEN_CPU_CAPABILITY": "avx2"}),
    OperatorStack("portable vector code", {"ATEN_CPU_CAPABILITY": "default"}),
    OperatorStack("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
    OperatorStack("oneDNN off", mkldnn=False),
    OperatorStack("oneDNN AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    OperatorStack("all portable", PORTABLE),
    OperatorStack("JAX", engine="jax"),
    OperatorStack("JAX SSE4.2", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}, engine="jax"),
    OperatorStack("IREE", engine="iree"),
    OperatorStack("NumPy", engine="numpy"),
    OperatorStack("NumPy SSE", {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": WIDE}, engine="numpy"),
    OperatorStack("plain loops", engine="loops"),
    OperatorStack("CUDA", device="cuda"),
)


def stack_named(name: str) -> OperatorStack:
    """The stack of that name."""
    return next(stack for stack in STACKS if stack.name == name)


def stacks_here() -> tuple[OperatorStack, ...]:
    """The stacks for which this machine has the libraries and the device."""
    return tuple(stack for stack in STACKS if _is_here(stack))


def engine_of(stack: OperatorStack, graph: Graph | None = None) -> Engine:
    """The engine of a stack; the process must have been started with its variables. IREE compiles `graph` if it can."""
    if stack.engine == "jax":
        from tallystick.frameworks.jax.engine import JaxEngine

        return JaxEngine()
    if stack.engine == "iree":
        return _iree(graph)
    if stack.engine in ("numpy", "loops"):
        return Definitions(BY_LIBRARY if stack.engine == "numpy" else IN_ORDER)
    from tallystick.frameworks.torch.engine import TorchEngine

    enter(stack)
    return TorchEngine(stack.device)


def _iree(graph: Graph | None) -> Engine:
    from tallystick.frameworks.iree.engine import IreeEngine

    engine = IreeEngine()
    with suppress(UnavailableError):  # an operator that does not compile raises again when it is prepared
        if graph is not None:
            engine.compile(graph)
    return engine


def base_engine() -> Engine:
    """PyTorch with its default settings; raises `UnavailableError` if it is not installed."""
    require("torch")
    return engine_of(BASE)


def _is_here(stack: OperatorStack) -> bool:
    if stack.device == "cuda":
        import torch

        return torch.cuda.is_available()
    return _has(
        {"torch": "torch", "jax": "jax", "iree": "iree.compiler", "numpy": "numpy", "loops": "numpy"}[stack.engine]
    )


def _has(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
