"""Numerical stacks: ways to compute one training step by other kernels on one machine, in place of other hardware.

Every stack computes float32 products in float32. Lower settings of `float32_matmul_precision` are left out: on
processors and GPUs with such units they multiply in bfloat16 or TF32, which is one of the cheats.

Each stack needs a fresh process, because libraries read these switches only once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "XLA_FLAGS",
)
QUIET = {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Settings for many processes on few cores; they change no result of PyTorch."""
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass(frozen=True)
class Stack:
    """One way to compute a step: environment variables, settings of PyTorch, and the order of a sum.

    `micro_batches` and `reverses_rows` change only the order in which gradients are summed. Batch norm has other
    statistics in smaller batches, so stacks with `micro_batches` are not used for the CNN. A `held_out` stack is never
    calibrated on. One that `takes_long` also replays the runs for long segments.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    mkldnn: bool = True
    attention: Literal["eager", "sdpa"] = "eager"
    micro_batches: int = 1
    reverses_rows: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    held_out: bool = False
    takes_long: bool = False


BASE = Stack("base")
STACKS = (
    BASE,
    Stack("2 threads", threads=2),
    Stack("AVX2 vector code", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Stack("portable vector code", {"ATEN_CPU_CAPABILITY": "default"}, takes_long=True),
    Stack("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
    Stack("oneDNN off", mkldnn=False, takes_long=True),
    Stack("oneDNN AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Stack("fused attention", attention="sdpa", takes_long=True),
    Stack("2 micro-batches", micro_batches=2, takes_long=True),
    Stack("4 micro-batches", micro_batches=4),
    Stack("rows reversed", reverses_rows=True),
    Stack("CUDA", device="cuda", takes_long=True),
    Stack("all portable", PORTABLE, held_out=True),
    Stack("portable and fused, 2 micro-batches", PORTABLE, attention="sdpa", micro_batches=2, held_out=True),
    Stack("CUDA fused, rows reversed", attention="sdpa", reverses_rows=True, device="cuda", held_out=True),
)


def stack_named(name: str) -> Stack:
    """The stack of that name."""
    return next(stack for stack in STACKS if stack.name == name)


def stacks_for(architecture: str) -> tuple[Stack, ...]:
    """The stacks that compute the same function for a model of `architecture`."""
    if architecture != "cnn":
        return STACKS
    return tuple(stack for stack in STACKS if stack.micro_batches == 1 and stack.attention == "eager")


def stacks_here() -> tuple[Stack, ...]:
    """The stacks that this machine can run: those with CUDA need a GPU."""
    import torch

    return tuple(stack for stack in STACKS if stack.device == "cpu" or torch.cuda.is_available())


def variables_of(stack: Stack) -> dict[str, str]:
    """The environment for a process on `stack`: that of this process, with its switches replaced."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return kept | QUIET | dict(stack.variables)


def enter(stack: Stack) -> None:
    """Apply the settings of PyTorch that are no environment variables, once at the start of a process."""
    import torch

    torch.set_num_threads(stack.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.mkldnn.enabled = stack.mkldnn  # type: ignore[attr-defined,assignment,unused-ignore]
