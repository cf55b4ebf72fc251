"""Receipts made on one numerical stack and verified on every other, each in a fresh process.

Answers are generated with a cache, in batches, on every stack of PyTorch. They are verified by one pass each: on the
other stacks by PyTorch itself, and through the captured graph of the pass by JAX and IREE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tallystick.tally.calibration.stacks import PORTABLE, STACKS, Stack, StackJob, run_all

Engine = Literal["native", "inductor", "jax", "jax operators", "jax eager", "iree", "iree host", "iree vmvx"]
ACT: Final = "research.inference.on_stack:act_on"
FAST_MATH: Final = (
    "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false --xla_cpu_fast_math_honor_infs=false "
    "--xla_cpu_fast_math_honor_division=false --xla_cpu_fast_math_honor_functions=false"
)


@dataclass(frozen=True)
class Place:
    """Where receipts are made or verified: the switches of a process, and what runs the pass in it.

    Engines other than PyTorch's own run captured graphs and only verify; a pass is compiled for one length.
    """

    stack: Stack
    engine: Engine = "native"

    @property
    def name(self) -> str:
        """The name of its stack."""
        return self.stack.name

    @property
    def makes(self) -> bool:
        """Whether receipts are made there."""
        return self.engine == "native"


PLACES: Final = (
    *(Place(each) for each in STACKS if each.micro_batches == 1 and not each.reverses_rows),
    Place(Stack("portable and fused", PORTABLE, attention="sdpa")),
    Place(Stack("inductor"), "inductor"),
    Place(Stack("JAX, one program"), "jax"),
    Place(Stack("JAX, operator by operator"), "jax operators"),
    Place(Stack("JAX without jit"), "jax eager"),
    Place(Stack("JAX, SSE4.2", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}), "jax"),
    Place(Stack("JAX, fast math", {"XLA_FLAGS": FAST_MATH}), "jax"),
    Place(Stack("IREE, generic"), "iree"),
    Place(Stack("IREE, host"), "iree host"),
    Place(Stack("IREE, VMVX"), "iree vmvx"),
)


@dataclass(frozen=True)
class Subject:
    """A model directory in one dtype, what it is asked, and who verifies it by which engines.

    Every answer of `tokens` tokens follows a prompt of `prompt` tokens, once at each temperature.
    """

    model: Path
    dtype: Literal["F32", "BF16"]
    answers: int = 8
    prompt: int = 16
    tokens: int = 48
    temperatures: tuple[float, ...] = (0.8, 0.0)
    engines: Collection[Engine] = frozenset[Engine](("native",))

    @property
    def name(self) -> str:
        """Such as `served, F32`."""
        return f"{self.model.name}, {self.dtype}"


@dataclass(frozen=True)
class CrossStudy:
    """Everything that is made and verified; what the processes write goes below `folder`."""

    folder: Path
    subjects: tuple[Subject, ...]
    places: tuple[Place, ...] = field(default_factory=lambda: places_here())


def place_named(name: str) -> Place:
    """The place of that name."""
    return next(each for each in PLACES if each.name == name)


def places_here() -> tuple[Place, ...]:
    """The places that this machine has: no CUDA without a GPU, no inductor without a compiler of C++."""
    import shutil

    import torch

    found = [each for each in PLACES if each.stack.device == "cpu" or torch.cuda.is_available()]
    compilers = ("g++", "clang++", "c++")
    if not any(shutil.which(each) for each in compilers):
        found = [each for each in found if each.engine != "inductor"]
    return tuple(found)


def cross(study: CrossStudy) -> list[dict[str, Any]]:
    """One entry for every subject, maker and verifier.

    An entry has `subject`, `dtype`, `maker`, `verifier`, `receipts`, `accepted`, `inconclusive`, `rejected`, how many
    `objections` and `missing` there were by check, `fingerprint` (the largest distance over what is allowed, 0 where
    none was judged), `margin` (the largest in tie bands) and `beyond` (tokens beyond the band). Of the logits that
    maker and verifier had it has `drift` (the largest difference), `spread` (the largest difference of differences in
    one row) and `rows`; `bits` is the digest of the verifier's, alike for verifiers that computed alike. Where nothing
    could be computed there is `unavailable` with the reason instead.
    """
    makers = [each for each in study.places if each.makes]
    _run(study, [_task("make", place, _made(study, place)) for place in makers])
    tasks = []
    for place in study.places:
        jobs = [job for maker in makers if maker != place for job in _made(study, maker, place.engine)]
        tasks.append(_task("verify", place, jobs))
    return [entry for found in _run(study, tasks) for entry in found]


def largest_drift(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each dtype the furthest that honest logits lay apart, with the pairs of stacks and the rows it is of."""
    computed = [each for each in entries if "unavailable" not in each]
    for dtype in dict.fromkeys(each["dtype"] for each in computed):
        found = [each for each in computed if each["dtype"] == dtype]
        largest = {name: max(each[name] for each in found) for name in ("drift", "spread", "margin", "fingerprint")}
        yield {"dtype": dtype, "pairs": len(found), "rows": sum(each["rows"] for each in found), **largest}


def _made(study: CrossStudy, maker: Place, engine: Engine = "native") -> list[dict[str, Any]]:
    return [
        {
            "maker": maker.name,
            "subject": subject.name,
            "model": str(subject.model),
            "dtype": subject.dtype,
            "answers": subject.answers,
            "prompt": subject.prompt,
            "tokens": subject.tokens,
            "temperatures": list(subject.temperatures),
            "out": str(study.folder / f"{maker.name}-{subject.name}".replace(", ", "-").replace(" ", "_")),
        }
        for subject in study.subjects
        if engine in subject.engines
    ]


def _task(action: Literal["make", "verify"], place: Place, jobs: list[dict[str, Any]]) -> StackJob:
    return StackJob(ACT, place.stack, f"{action} {place.name}", {"action": action, "jobs": jobs})


def _run(study: CrossStudy, tasks: list[StackJob]) -> list[list[dict[str, Any]]]:
    """What every task found, those without jobs left out."""
    study.folder.mkdir(parents=True, exist_ok=True)
    return run_all(study.folder, [each for each in tasks if each.job["jobs"]])


__all__ = ["PLACES", "CrossStudy", "Place", "Subject", "cross", "largest_drift", "place_named", "places_here"]
