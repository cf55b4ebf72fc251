"""A training step with recording ÷ the same step without, for every kind of summary.

All arms step one and the same trainer; a recording arm then hands the step to its own recorder, which takes the
summary, encodes the record, appends it to the log under its tree and notes the time. Counted are hashing, encoding,
log, trace, tiles and anchors; opening and closing a run (anchor of the initial state, claim) are spread over a run of
1,000 steps. An anchor is measured on its own rounds and weighed into a whole period: ((N − 1) · projection + anchor) ÷
(N · bare). `inside` is the time spent in the recorder, read directly, beside the time of the bare step: it is precise
on any machine, and blind to what recording does to the step itself. The figure, and the word on the goal, is the one
of median, ratio of sums and `inside` whose upper end is the largest.

The cost of recording does not depend on the tokens of a step, so its share halves where a step has twice as many.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import (
    CLOCKS,
    Arm,
    Clock,
    Interval,
    Round,
    Spent,
    Statistic,
    interval,
    median_ratio,
    spin_after,
    stopwatch,
    take_rounds,
    total,
    total_ratio,
)
from benchmarks.workload import SEQUENCE, prepare_text, training_recipe
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.trainer import Observation, Summariser, Trainer
from tallystick.formats.data.step_program import batch_plan, micro_batches, open_data, projection_seed
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import Recipe, RecordRecipe
from tallystick.formats.records import Batch
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.run_recorder import RunRecorder

GOAL = Goal(1.003)
PLANTED = 0.003
RUN_STEPS = 1000
NEVER = 1 << 40
STRIDES = (20, 100, 200, 1000)
PROJECTED: dict[str, dict[str, Any]] = {
    "projection": {"summaries": ["projection"]},
    "projection+anchor": {"summaries": ["projection"], "anchor_stride": 1},
}
KINDS: dict[str, dict[str, Any]] = {
    "no summary": {"summaries": []},
    "bucket fp16_rne": {"summaries": ["bucket"]},
    "bucket grid": {"summaries": ["bucket"], "bucket_mode": "grid"},
    "bucket fp16_rne with hints": {"summaries": ["bucket"], "hint_margin": 0.05},
    "exact": {"summaries": ["exact"]},
}


@dataclass
class RecordingArm:
    """A step that is recorded; its anchors are deleted outside the clocks."""

    loop: Loop
    run: RunDirectory
    recorder: RunRecorder
    steps: int = 0
    inside: list[Spent] = field(default_factory=list)

    def __call__(self) -> None:
        """One step, trained and recorded."""
        seen, indices = self.loop.step()
        elapsed = stopwatch()
        self.steps += 1
        self.recorder.step(
            self.steps,
            Batch(indices=indices),
            loss=seen.loss,
            learning_rate=seen.learning_rate,
            gradient_norm=seen.gradient_norm,
            seconds=0.5,
        )
        self.inside.append(elapsed())

    def tidy(self) -> None:
        """Delete the anchors written so far."""
        for path in (self.run.path / "anchors").glob("*"):
            path.unlink()


class Loop:
    """One trainer on committed data, shared by all arms."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.folder, self.recipe = folder, recipe
        self.commitment: DatasetCommitment = prepare_text(folder / "data")
        spec = Spec.of(recipe, self.commitment)
        self.dataset = open_data(spec, folder / "data")
        self.plan = batch_plan(spec, self.dataset)
        assert self.commitment.tokens is not None
        self.trainer = Trainer(recipe, self.commitment.tokens.vocabulary)
        self.environment = describe_environment("cpu")

    def step(self) -> tuple[Observation, tuple[int, ...]]:
        """The bare step."""
        indices = self.plan.indices(self.trainer.index + 1)
        seen = self.trainer.step(micro_batches(self.recipe, self.dataset, indices))
        return seen, tuple(int(position) for position in indices)

    def arm(self, name: str, settings: dict[str, Any]) -> RecordingArm:
        """An arm that records into a run of its own."""
        recorded = RecordRecipe.from_json({"anchor_stride": NEVER, **settings}, name)
        spec = Spec.of(self.recipe.model_copy(update={"record": recorded}), self.commitment)
        run, trainer = RunDirectory(self.folder / name.replace(" ", "-")), self.trainer
        summariser = Summariser(recorded, projection_seed(spec), trainer.weights(), trainer.state, run.write_blob)
        return RecordingArm(self, run, RunRecorder(run, spec, self.environment, summariser, trainer.state).begin())


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    hidden, layers = (64, 2) if quick else (256, 4)
    for batch, count in ((4, 4), (2, 4)) if quick else ((32, 30), (16, 12)):
        with TemporaryDirectory() as folder:
            loop = Loop(training_recipe(batch, hidden, layers), Path(folder))
            yield from _with_projection(loop, count)
    with TemporaryDirectory() as folder:
        yield from _kinds(Loop(training_recipe(batch, hidden, layers), Path(folder)), 3 if quick else 6)


def _with_projection(loop: Loop, count: int) -> Iterator[Figure]:
    rng = random.Random(1)
    arms = {name: loop.arm(name, settings) for name, settings in PROJECTED.items()}
    rounds = take_rounds(_controls(loop) | arms, count, rng, between=arms["projection+anchor"].tidy)
    ends, shared = _ends(loop), _shared(loop, rounds, rng)
    yield _figure("projection", rounds, arms["projection"].inside[-count:], shared, rng)
    for stride in STRIDES:
        yield _with_anchors(stride, rounds, arms, ends, shared, rng)


def _kinds(loop: Loop, count: int) -> Iterator[Figure]:
    rng = random.Random(2)
    arms = {name: loop.arm(name, settings) for name, settings in KINDS.items()}
    rounds = take_rounds(_controls(loop) | arms, count, rng)
    shared = _shared(loop, rounds, rng)
    for name, arm in arms.items():
        yield _figure(name, rounds, arm.inside[-count:], shared, rng)


def _figure(
    name: str, rounds: Sequence[Round], inside: Sequence[Spent], shared: dict[str, Any], rng: random.Random
) -> Figure:
    estimates = {
        f"{kind} {clock}": interval(rounds, statistic(name, "bare", clock), rng)
        for clock in CLOCKS
        for kind, statistic in (("median", median_ratio), ("total", total_ratio))
    }
    timed = _beside(rounds, {"inside": inside})
    estimates |= {f"inside {clock}": interval(timed, _inside(clock), rng) for clock in CLOCKS}
    return _judged(name, f"a step with {name} every step ÷ a bare step", estimates, len(rounds), shared, None)


def _with_anchors(
    stride: int,
    rounds: Sequence[Round],
    arms: dict[str, RecordingArm],
    ends: Spent,
    shared: dict[str, Any],
    rng: random.Random,
) -> Figure:
    count = len(rounds)
    inside = {f"inside {name}": arms[name].inside[-count:] for name in ("projection", "projection+anchor")}
    timed = _beside(rounds, inside)
    estimates = {}
    for clock in CLOCKS:
        end = getattr(ends, clock) / RUN_STEPS
        estimates[f"total {clock}"] = interval(rounds, _period(stride, end, "", clock), rng)
        estimates[f"inside {clock}"] = interval(timed, _period(stride, end, "inside ", clock), rng)
    what = f"a step with projection every step and an anchor every {stride} steps ÷ a bare step"
    return _judged(f"projection, anchor every {stride}", what, estimates, count, shared, GOAL)


def _judged(
    name: str, what: str, estimates: dict[str, Interval], count: int, shared: dict[str, Any], goal: Goal | None
) -> Figure:
    """CPU time decides; of its estimates, the one with the largest upper end."""
    kind = max((kind for kind in estimates if kind.endswith("cpu")), key=lambda kind: estimates[kind].high)
    is_void = 1.0 not in shared["bare ÷ bare"] or 1 + PLANTED not in shared["planted"]
    where = f"{shared['tokens_per_step']:,} tokens a step"
    judged = {"inside_outcome": goal.judge(estimates["inside cpu"])} if goal else {}
    return Figure(
        f"train_commit: {name}, {where}",
        f"{what}, {where}",
        estimates[kind],
        count,
        f"CPU ({kind.split()[0]})",
        goal=goal,
        is_void=is_void,
        details={**estimates, **judged, **shared},
    )


def _period(stride: int, ends: float, prefix: str, clock: Clock) -> Statistic:
    """One anchor period over as many bare steps; with `inside`, the bare steps are added to the recorder's time."""

    def ratio(rounds: Sequence[Round]) -> float:
        bare = total(rounds, "bare", clock)
        steps = (stride - 1) * total(rounds, f"{prefix}projection", clock)
        period = steps + total(rounds, f"{prefix}projection+anchor", clock) + stride * len(rounds) * ends
        return period / (stride * bare) + (1.0 if prefix else 0.0)

    return ratio


def _inside(clock: Clock) -> Statistic:
    return lambda rounds: 1.0 + total(rounds, "inside", clock) / total(rounds, "bare", clock)


def _beside(rounds: Sequence[Round], inside: Mapping[str, Sequence[Spent]]) -> list[Round]:
    return [{**spent, **{name: seen[i] for name, seen in inside.items()}} for i, spent in enumerate(rounds)]


def _controls(loop: Loop) -> dict[str, Arm]:
    planted = PLANTED * _typical(loop)
    return {"bare": loop.step, "bare again": loop.step, "planted": lambda: spin_after(loop.step, planted)}


def _shared(loop: Loop, rounds: Sequence[Round], rng: random.Random) -> dict[str, Any]:
    """The controls, and what the workload is."""
    return {
        "bare ÷ bare": interval(rounds, median_ratio("bare again", "bare", "cpu"), rng),
        "planted": interval(rounds, median_ratio("planted", "bare", "cpu"), rng),
        "unit_ms": 1e3 * median(spent["bare"].cpu for spent in rounds),
        "parameters": sum(parameter.numel() for parameter in loop.trainer.model.parameters()),
        "tokens_per_step": loop.recipe.training.batch * SEQUENCE,
        "state_mib": sum(tensor.nbytes for tensor in loop.trainer.state().values()) / 2**20,
        "threads": torch.get_num_threads(),
    }


def _typical(loop: Loop) -> float:
    """The CPU seconds of a bare step once it is warm."""
    seconds = []
    for _ in range(5):
        elapsed = stopwatch()
        loop.step()
        seconds.append(elapsed().cpu)
    return mean(sorted(seconds)[:3])


def _ends(loop: Loop) -> Spent:
    """What it costs to open and to close a run."""
    elapsed = stopwatch()
    loop.arm("ends", PROJECTED["projection"]).recorder.finish()
    return elapsed()
