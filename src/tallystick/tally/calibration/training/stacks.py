"""Numerical stacks of one machine, the processes they run in, and how far their replays drift."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tallystick.audits.tolerant import find_undetermined, judge_share, part, settle, share_of_update, spacing_shares
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.formats.records import decode_sketch
from tallystick.verdicts.distances import Projection, Residual, ResidualLimits
from tallystick.verdicts.tolerance import ReplayedState

# Numerical stacks: ways to compute one training step by other kernels on one machine, in place of other hardware.
#
# Every stack computes float32 products in float32. Lower settings of `float32_matmul_precision` are left out: on
# processors and GPUs with such units they multiply in bfloat16 or TF32, which is one of the cheats.
#
# Each stack needs a fresh process, because libraries read these switches only once.

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


# Runs the parts of a study, each in a fresh process on its stack, as many at once as there are processors.


@dataclass(frozen=True)
class StackJob:
    """A module of a study by its full name, the stack it runs on, and its job as JSON values."""

    module: str
    stack: Stack
    name: str
    job: dict[str, Any]


def run_all(folder: Path, tasks: Iterable[StackJob]) -> list[list[dict[str, Any]]]:
    """The results of every task, in the order of the tasks; raises `UnavailableError` if one fails."""
    with ThreadPoolExecutor(workers()) as pool:
        return list(pool.map(lambda task: _run(folder, task), tasks))


def workers() -> int:
    """The number of processes to run at once: one for every processor."""
    return os.cpu_count() or 1


def deal(items: list[Any], shares: int) -> list[list[Any]]:
    """The items distributed in turn over at most `shares` lists, none of them empty."""
    return [share for share in (items[first::shares] for first in range(shares)) if share]


def _run(folder: Path, task: StackJob) -> list[dict[str, Any]]:
    job = folder / "jobs" / f"{task.name.replace(' ', '_').replace(',', '')}.json"
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(json.dumps(task.job))
    command = [sys.executable, "-m", task.module, task.stack.name, str(job)]
    done = subprocess.run(command, env=variables_of(task.stack), capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnavailableError(f"{task.module} on {task.stack.name}: {last[0]}")
    results: list[dict[str, Any]] = json.loads(job.with_suffix(".out.json").read_text())
    return results


# How far a claimed state lies from its replay, measured with the functions of a tolerant audit.

State = Mapping[str, Tensor]
NO_LIMITS = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=1e-6))
NO_MEMORY_LIMITS = Residual(ResidualLimits(math.inf, math.inf, math.inf, math.inf, update_floor=0.0))
METRICS = {
    "residual": "overall",
    "residual-tensor": "worst_tensor",
    "mismatches": "mismatch_share",
    "element": "element",
    "stretch": "stretch",
}


@dataclass(frozen=True)
class Distances:
    """The distances of weights, or of optimizer memory and buffers, in the units of `Limits`."""

    overall: float
    worst_tensor: float
    mismatch_share: float
    element: float
    stretch: float
    worst: str


@dataclass(frozen=True)
class Drift:
    """All distances of one segment; `loss` is in units of max(1, |loss|)."""

    weights: Distances
    memory: Distances
    projection: float
    loss: float
    floor: float
    undetermined: float

    def to_json(self) -> Json:
        """The distances as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, dict[str, float]]) -> Drift:
        """The inverse of `to_json`."""
        groups = {name: Distances(**value[name]) for name in ("weights", "memory")}  # type: ignore[arg-type]
        rest = {name: value[name] for name in ("projection", "loss", "floor", "undetermined")}
        return cls(**groups, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcome:
    """The end of a segment: its state, the loss of its last step, and the sketch for the record."""

    state: State
    loss: float
    sketch: str


def measure(
    start: State, claimed: Outcome, replayed: Outcome, rate: float, projection: Projection, dtype: str
) -> Drift:
    """The drift of `claimed` from `replayed`; both began at `start`, with learning rates of at most `rate`.

    An audit widens its limits in each case, for undetermined weights and for spacing. This allowance is subtracted.
    """
    masks = find_undetermined(replayed.state, dtype)
    settled = settle(claimed.state, replayed.state, masks)
    weights, floor = _distances(NO_LIMITS, start, settled, replayed.state, rate, "weights")
    memory, _ = _distances(NO_MEMORY_LIMITS, start, settled, replayed.state, rate, "memory")
    before, after = part(start, "weights"), part(replayed.state, "weights")
    moved = ReplayedState(before, after)
    sketched = projection.compare(decode_sketch(claimed.sketch), moved).distance
    room = share_of_update(start, replayed.state, masks)
    gap = abs(claimed.loss - replayed.loss) / max(1.0, abs(replayed.loss))
    overall, worst = spacing_shares(before, after)
    reduced = replace(
        weights, overall=max(0.0, weights.overall - overall), worst_tensor=max(0.0, weights.worst_tensor - worst)
    )
    share = judge_share(replayed.state, masks, dtype).distance
    return Drift(reduced, memory, max(0.0, sketched - room), gap, floor, share)


def _distances(
    residual: Residual, start: State, claimed: State, replayed: State, rate: float, group: str
) -> tuple[Distances, float]:
    moved = ReplayedState(part(start, group), part(replayed, group))
    findings = {finding.name: finding for finding in residual.compare(part(claimed, group), moved, rate)}
    distances = {field: findings[name].distance for name, field in METRICS.items()}
    return Distances(**distances, worst=findings["residual-tensor"].where), findings["update-floor"].distance
