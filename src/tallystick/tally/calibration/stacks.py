"""Numerical stacks of one machine: ways to compute the same by other kernels, each in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tallystick.core.errors import UnavailableError

# Stacks stand in for other hardware. Every one computes float32 products in float32. Lower settings of
# `float32_matmul_precision` are left out: on processors and GPUs with such units they multiply in bfloat16 or TF32,
# which is one of the cheats. Each stack needs a fresh process, because libraries read these switches only once.

SWITCHES: Final = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "XLA_FLAGS",
)
QUIET: Final = {"HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Settings for many processes on few cores; they change no result of PyTorch."""
PORTABLE: Final = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass(frozen=True)
class Stack:
    """One way to compute: environment variables, settings of PyTorch, the order of a sum, and the engine.

    `micro_batches` and `reverses_rows` change only the order in which gradients are summed. Batch norm has other
    statistics in smaller batches, so stacks with `micro_batches` are not used for the CNN. No training is calibrated
    on a `held_out` stack. One that `takes_long` also replays the runs for long segments. JAX, IREE and NumPy run ATen
    operators by their definitions, so their formulas differ from those of fused kernels too.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    mkldnn: bool = True
    attention: Literal["eager", "sdpa"] = "eager"
    micro_batches: int = 1
    reverses_rows: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    engine: Literal["torch", "jax", "iree", "numpy", "loops"] = "torch"
    held_out: bool = False
    takes_long: bool = False


BASE: Final = Stack("base")
STACKS: Final = (
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
"""Stacks that train the same model."""
WIDE: Final = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
_NAMED: Final = {stack.name: stack for stack in STACKS}
OPERATOR_STACKS: Final = (
    *STACKS[:7],
    _NAMED["all portable"],
    Stack("JAX", engine="jax"),
    Stack("JAX SSE4.2", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}, engine="jax"),
    Stack("IREE", engine="iree"),
    Stack("NumPy", engine="numpy"),
    Stack("NumPy SSE", {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": WIDE}, engine="numpy"),
    Stack("plain loops", engine="loops"),
    _NAMED["CUDA"],
)
"""Stacks that run the same operator: those of the first table with kernels of their own, and other engines."""
ANSWER_STACKS: Final = (
    (8, Stack("batches of 8, sdpa, 1 thread", attention="sdpa")),
    (16, Stack("batches of 16, sdpa, 1 thread", attention="sdpa")),
    (8, Stack("batches of 8, eager, 1 thread")),
    (1, Stack("batches of 1, sdpa, 1 thread", attention="sdpa")),
    (8, Stack("batches of 8, sdpa, 2 threads", attention="sdpa", threads=2)),
)
"""Stacks that answer, with the most rows of a batch."""


def stack_named(name: str) -> Stack:
    """The stack of that name, of those that train or run operators."""
    return next(stack for stack in (*STACKS, *OPERATOR_STACKS) if stack.name == name)


def stacks_for(architecture: str) -> tuple[Stack, ...]:
    """The stacks that compute the same function for a model of `architecture`."""
    if architecture != "cnn":
        return STACKS
    return tuple(stack for stack in STACKS if stack.micro_batches == 1 and stack.attention == "eager")


def stacks_here(stacks: tuple[Stack, ...] = STACKS) -> tuple[Stack, ...]:
    """Those of `stacks` for which this machine has the libraries and the device."""
    return tuple(stack for stack in stacks if _is_here(stack))


def _is_here(stack: Stack) -> bool:
    if stack.device == "cuda":
        import torch

        return torch.cuda.is_available()
    library = {"iree": "iree.compiler", "loops": "numpy"}.get(stack.engine, stack.engine)
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def machine() -> str:
    """The processor, its architecture and its GPU, without the name of the host."""
    import torch

    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = match.group(1).strip() if match else platform.processor() or "unknown processor"
    graphics = [f"with {torch.cuda.get_device_name()}"] if torch.cuda.is_available() else []
    return ", ".join([model, platform.machine(), platform.system(), *graphics])


# Processes on a stack, as many at once as there are processors.

Tell: TypeAlias = Callable[[str], None]
"""Takes a line about what is done now."""


@dataclass(frozen=True)
class StackJob:
    """A function as `module:name`, the stack on which it runs, and its job as JSON values.

    The function takes the stack and the job, and gives an iterable of JSON values.
    """

    function: str
    stack: Stack
    name: str
    job: dict[str, Any]


def run_all(folder: Path, tasks: Iterable[StackJob]) -> list[list[dict[str, Any]]]:
    """The results of every task, in the order of the tasks; raises `UnavailableError` if one fails."""
    with ThreadPoolExecutor(workers()) as pool:
        return list(pool.map(lambda task: _run(folder, task), tasks))


def _run(folder: Path, task: StackJob) -> list[dict[str, Any]]:
    job = folder / "jobs" / f"{task.name.replace(' ', '_').replace(',', '')}.json"
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(json.dumps({"stack": asdict(task.stack), "job": task.job}))
    start = f"from {__name__} import work; work()"
    command = [sys.executable, "-c", start, task.function, str(job)]
    done = subprocess.run(command, env=variables_of(task.stack), capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnavailableError(f"{task.function.partition(':')[0]} on {task.stack.name}: {last[0]}")
    results: list[dict[str, Any]] = json.loads(job.with_suffix(".out.json").read_text())
    return results


def work() -> None:
    """Run the function and the job that the command line names, and write the results beside the job."""
    function, path = sys.argv[1], Path(sys.argv[2])
    given = json.loads(path.read_text())
    stack = Stack(**given["stack"])
    if stack.engine == "torch":
        enter(stack)
    module, _, name = function.partition(":")
    results = getattr(import_module(module), name)(stack, given["job"])
    path.with_suffix(".out.json").write_text(json.dumps(list(results)))


def variables_of(stack: Stack) -> dict[str, str]:
    """The environment for a process on `stack`: that of this process, with its switches replaced."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return kept | QUIET | dict(stack.variables)


def enter(stack: Stack) -> None:
    """Apply the settings of PyTorch that are not environment variables, once at the start of a process."""
    import torch

    torch.set_num_threads(stack.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.mkldnn.enabled = stack.mkldnn  # type: ignore[attr-defined,assignment,unused-ignore]


def workers() -> int:
    """The number of processes to run at once: one for every processor."""
    return os.cpu_count() or 1


def deal(items: list[Any], shares: int) -> list[list[Any]]:
    """The items distributed in turn over at most `shares` lists, none of them empty."""
    return [share for share in (items[first::shares] for first in range(shares)) if share]
