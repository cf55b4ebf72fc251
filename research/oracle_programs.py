"""`tally` and the oracle's loops as forks of one process that has imported PyTorch: each of them starts in no time."""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from research.oracle_loops import LOOPS

LIBRARIES = (
    "torch torch._dynamo torch.export transformers.models.llama.modeling_llama transformers.models.gpt2.modeling_gpt2 "
    "tokenizers sqlalchemy pydantic typer safetensors.torch matplotlib.figure"
)
VARIABLES = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 NO_COLOR=1 COLUMNS=100 LC_ALL=C.UTF-8 TZ=UTC KINETO_LOG_LEVEL=99"


@dataclass(frozen=True)
class Printed:
    """What a program printed, and its exit code."""

    code: int
    out: str
    error: str


def prepare() -> None:
    """Set the variables of all programs, and import what most of them import: libraries and public names."""
    for each in VARIABLES.split():
        variable, _, value = each.partition("=")
        os.environ[variable] = value
    for name in LIBRARIES.split():
        importlib.import_module(name)
    for name in ("tallystick", "tallystick.torch", "tallystick.graphs"):
        public = importlib.import_module(name)
        for member in public.__all__:
            with suppress(ImportError):
                getattr(public, member)
    gc.freeze()  # or the first collection of each fork would copy all of it


def program_of(words: list[str]) -> Callable[[], object]:
    """What a line of the tables runs: `tally …`, `loop NAME`, or `python -m MODULE …`."""
    if words[0] == "loop":
        return LOOPS[words[1]]
    module = {"tally": "tallystick"}.get(words[0]) or words[2]
    words = ["tally", *words[1:]] if words[0] == "tally" else words[2:]

    def program() -> None:
        sys.argv = words
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return program


class Fork:
    """A running program, with `folder` as its working directory."""

    def __init__(self, program: Callable[[], object], folder: Path) -> None:
        self.streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        sys.stdout.flush()
        self.process = os.fork()
        if not self.process:
            os.chdir(folder)
            for number, stream in enumerate(self.streams, start=1):
                os.dup2(stream.fileno(), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _run(program)

    def end(self) -> Printed:
        """Wait for its end."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        texts = []
        for stream in self.streams:
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        return Printed(code, *texts)


def _run(program: Callable[[], object]) -> NoReturn:
    """Run it in the fork, which leaves by `os._exit`: nothing of the process that it came from is taken apart."""
    code: object = 0
    try:
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, closefd=False) for number, mode in enumerate(("r", "w", "w"))
        )
        program()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
        sys.excepthook(*sys.exc_info())
        code = 70
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def run_line(line: str, folder: Path) -> Printed:
    """Run a line of the tables; of programs joined by `&`, which run at once, what the last one printed."""
    return [each.end() for each in [Fork(program_of(shlex.split(part)), folder) for part in line.split(" & ")]][-1]
