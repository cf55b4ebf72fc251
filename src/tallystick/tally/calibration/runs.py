"""The training runs of the study, and the honest drift of every stack over their segments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tallystick.audits.limits import Family
from tallystick.core.files import write_atomically
from tallystick.formats.recipe import Recipe
from tallystick.recording.training import Config, train
from tallystick.tally.calibration.drift import Drift
from tallystick.tally.calibration.stacks import (
    BASE,
    Stack,
    StackJob,
    Tell,
    deal,
    run_all,
    stack_named,
    stacks_for,
    stacks_here,
    workers,
)

# The training runs of the study: two small models, two optimizers, two precisions, some seeds.

STEPS = 64
WINDOWS = (1, 8, 32)
CORPUS_FILE = "corpus.txt"
FIRST_LONG_SEED = 100
Model = Literal["llama", "cnn"]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
MODELS: dict[Model, dict[str, Any]] = {
    "llama": {
        "architecture": "llama",
        "config": {
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
    },
    "cnn": {"architecture": "cnn", "config": {"channels": 16}},
}
PARAMETERS: dict[Model, int] = {"llama": 227_808, "cnn": 10_026}
"""The number of weights of these models, on bytes and on digits."""
OPTIMIZERS: dict[Optimizer, dict[str, Any]] = {
    "adamw": {"kind": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01, "clip_norm": 1.0},
    "sgd": {"kind": "sgd", "learning_rate": 5e-2, "momentum": 0.9, "weight_decay": 1e-4, "clip_norm": 1.0},
}


@dataclass(frozen=True)
class Case:
    """One training run of the study."""

    model: Model
    optimizer: Optimizer
    dtype: Precision
    seed: int
    held_out: bool = False
    only_long: bool = False

    @property
    def family(self) -> Family:
        """The family of models for which the run is measured."""
        return "image" if self.model == "cnn" else "language"

    @property
    def parameters(self) -> int:
        """The number of weights of its model."""
        return PARAMETERS[self.model]

    @property
    def key(self) -> tuple[Family, Optimizer, Precision]:
        """What limits depend on."""
        return self.family, self.optimizer, self.dtype

    @property
    def name(self) -> str:
        """The name of its run directory."""
        return f"{self.model}-{self.optimizer}-{self.dtype}-{self.seed}"

    def recipe(self) -> Recipe:
        """The recipe: a warm-up from zero, then a cosine; every state is saved."""
        language = self.model == "llama"
        table: dict[str, Any] = {
            "data": {"kind": "text" if language else "digits", "validation": 64},
            "model": MODELS[self.model],
            "optimizer": OPTIMIZERS[self.optimizer],
            "schedule": {"kind": "cosine", "warmup_steps": 10, "final_share": 0.1},
            "training": {
                "steps": STEPS,
                "batch": 8 if language else 32,
                "sequence": 32 if language else 1,
                "dtype": self.dtype,
                "seed": self.seed,
            },
            "record": {"anchor_stride": 1, "loss_decimals": 6},
        }
        return Recipe.from_json(table, self.name)


def cases(seeds: int, long_seeds: int) -> list[Case]:
    """Every model, optimizer and precision with `seeds` seeds to calibrate on, and one more that is held out.

    How much a long segment amplifies rounding depends far more on the segment than on the stack. So `long_seeds` more
    runs are made for their long segments only.
    """
    kinds = [(model, optimizer, dtype) for model in MODELS for optimizer in OPTIMIZERS for dtype in PRECISIONS]
    usual = [Case(*kind, seed, held_out=seed == seeds) for kind in kinds for seed in range(seeds + 1)]
    return usual + [Case(*kind, FIRST_LONG_SEED + seed, only_long=True) for kind in kinds for seed in range(long_seeds)]


def corpus() -> str:
    """The text to train on: the language reference topics that come with CPython (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


# Honest drift: every stack replays the runs of the study, and its distance from the claims is measured.

LONG = ((0, (1, 8, 32)), (32, (33, 40, 64)))


@dataclass(frozen=True)
class Sample:
    """The drift of one stack over one segment of one run."""

    case: Case
    stack: Stack
    start: int
    end: int
    same_bits: bool
    drift: Drift

    @property
    def steps(self) -> int:
        """The length of the segment."""
        return self.end - self.start

    @property
    def is_held_out(self) -> bool:
        """Whether this sample is used to check limits and not to set them."""
        return self.stack.held_out or self.case.held_out


def stretches(stride: int) -> list[tuple[int, tuple[int, ...]]]:
    """Stretches of 32 and 8 steps, and single steps from every state whose number is a multiple of `stride`."""
    eights = [(start, (start + 1, start + 8)) for start in range(8, STEPS, 8) if start != 32]
    started = {start for start, _ in (*LONG, *eights)}
    singles = [(start, (start + 1,)) for start in range(0, STEPS, stride) if start not in started]
    return [*LONG, *eights, *singles]


def record(folder: Path, cases: list[Case]) -> None:
    """Record the runs of the study under `folder`."""
    write_atomically(folder / CORPUS_FILE, corpus().encode())
    shares = deal([asdict(case) for case in cases], workers())
    tasks = (
        StackJob(f"{__name__}:record_runs", BASE, f"record {number}", {"folder": str(folder), "cases": share})
        for number, share in enumerate(shares)
    )
    run_all(folder, tasks)


def record_runs(_: Stack, job: dict[str, Any]) -> tuple[()]:
    """Record every case of the job into a run directory of its name; a finished run is not repeated."""
    folder = Path(job["folder"])
    for fields in job["cases"]:
        case = Case(**fields)
        if not (folder / case.name / "claim.json").exists():
            config = Config(case.recipe(), folder / CORPUS_FILE if case.model == "llama" else None)
            train(config, folder / case.name)
    return ()


def measure_honest(folder: Path, cases: list[Case], stride: int, tell: Tell) -> list[Sample]:
    """The drift of every stack from the claims of the base stack; held-out stacks save their end states."""
    tell("replaying on the stack that recorded")
    shares = deal(cases, workers())
    run_all(folder, [_task(folder, share, BASE, f"base {number}", 1) for number, share in enumerate(shares)])
    tell("replaying on all other stacks")
    tasks = [
        _task(folder, share, stack, f"{stack.name} {number}", 1 if stack.held_out else stride)
        for stack in reversed(stacks_here())
        for number, share in enumerate(deal(cases, max(1, workers() // 4)))
        if stack != BASE
    ]
    named = {case.name: case for case in cases}
    return [
        Sample(
            named[entry["case"]],
            stack_named(entry["stack"]),
            entry["start"],
            entry["end"],
            entry["same_bits"],
            Drift.from_json(entry["drift"]),
        )
        for entries in run_all(folder, tasks)
        for entry in entries
    ]


def ends_folder(folder: Path, stack: Stack, case: Case) -> Path:
    """The folder in which a stack saves the end states of one run."""
    return folder / "ends" / stack.name.replace(" ", "_").replace(",", "") / case.name


def _task(folder: Path, cases: list[Case], stack: Stack, name: str, stride: int) -> StackJob:
    runs = [
        {
            "path": str(folder / case.name),
            "stretches": LONG if case.only_long else stretches(stride),
            "claims": None if stack == BASE else str(ends_folder(folder, BASE, case)),
            "keep": str(ends_folder(folder, stack, case)) if stack == BASE or stack.held_out else None,
        }
        for case in cases
        if _takes(stack, case)
    ]
    return StackJob("tallystick.tally.calibration.segments:replay_study", stack, name, {"runs": runs})


def _takes(stack: Stack, case: Case) -> bool:
    """Whether a stack replays a run: held-out runs only on held-out stacks, runs for long segments only on some."""
    if stack not in stacks_for(case.model):
        return False
    if stack == BASE:
        return True
    return stack.takes_long if case.only_long else stack.held_out or not case.held_out
