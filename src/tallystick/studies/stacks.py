"""Numerical stacks: one training step computed by other kernels, on one machine.

Each stack takes a fresh process, because libraries read these switches once. They stand in for other hardware;
they are not GPUs, whose drift may be larger.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tallystick.errors import UnavailableError

SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
)
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass(frozen=True)
class Stack:
    """One way to compute a step: environment variables, settings of PyTorch, and the order of a sum.

    `micro_batches` and `reverses_rows` change only the order in which gradients are summed; batch norm sees other
    statistics in smaller batches, so stacks with `micro_batches` are not for the CNN. A `held_out` stack is
    never calibrated on.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    matmul: Literal["highest", "high", "medium"] = "highest"
    mkldnn: bool = True
    attention: Literal["eager", "sdpa"] = "eager"
    micro_batches: int = 1
    reverses_rows: bool = False
    held_out: bool = False


BASE = Stack("base")
STACKS = (
    BASE,
    Stack("2 threads", threads=2),
    Stack("AVX2 vector code", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Stack("portable vector code", {"ATEN_CPU_CAPABILITY": "default"}),
    Stack("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
    Stack("matmul medium", matmul="medium"),
    Stack("oneDNN off", mkldnn=False),
    Stack("oneDNN AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Stack("2 micro-batches", micro_batches=2),
    Stack("4 micro-batches", micro_batches=4),
    Stack("rows reversed", reverses_rows=True),
    Stack("all portable", PORTABLE, held_out=True),
    Stack("fused attention", attention="sdpa", held_out=True),
    Stack("portable, 2 threads, 2 micro-batches", PORTABLE, threads=2, micro_batches=2, held_out=True),
)


def stack_named(name: str) -> Stack:
    """The stack of that name."""
    return next(stack for stack in STACKS if stack.name == name)


def stacks_for(architecture: str) -> tuple[Stack, ...]:
    """The stacks that compute the same function for a model of `architecture`."""
    if architecture != "cnn":
        return STACKS
    return tuple(stack for stack in STACKS if stack.micro_batches == 1 and stack.attention == "eager")


def variables_of(stack: Stack) -> dict[str, str]:
    """The environment of a process on `stack`: this one's, its own switches taken out."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return kept | {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1"} | dict(stack.variables)


def start_on(stack: Stack, module: str, job: Path) -> subprocess.Popen[bytes]:
    """Start `module` with `job` as its argument in a fresh process on `stack`."""
    command = [sys.executable, "-m", module, stack.name, str(job)]
    return subprocess.Popen(command, env=variables_of(stack), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes], what: str) -> None:
    """Wait for a process; raises `UnavailableError` with its last words if it failed."""
    _, errors = process.communicate()
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise UnavailableError(f"{what}: {last[0]}")


def enter(stack: Stack) -> None:
    """Make the settings of PyTorch that are no environment variables; once, at the start of a process."""
    import torch

    torch.set_num_threads(stack.threads)
    torch.set_float32_matmul_precision(stack.matmul)
    torch.backends.mkldnn.enabled = stack.mkldnn  # type: ignore[attr-defined,assignment,unused-ignore]
