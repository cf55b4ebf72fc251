"""Cheats of graded size, tried against the replays of other stacks, and the smallest that are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallystick.audits.limits import Calibration
from tallystick.core.canonical_json import Json
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.training.trainer import Sketcher, Trainer
from tallystick.formats.data.samples import Dataset
from tallystick.formats.data.step_program import micro_batches
from tallystick.formats.recipe import Recipe
from tallystick.tally.calibration.drift import Drift, Outcome, limits_of
from tallystick.tally.calibration.runs import Case, ends_folder
from tallystick.tally.calibration.segments import Bench, Stretch, reached
from tallystick.tally.calibration.stacks import BASE, Stack, StackJob, deal, run_all, stacks_for, stacks_here, workers
from tallystick.verdicts.evidence import at_least, clopper_pearson

# Cheats of graded size: ways in which a prover may depart from the recipe that it declares.
#
# Every cheat keeps the declared form of the work: the number of steps, plausible counters, and the losses that it
# really observed. Only the computation is not the declared one.

Rows = np.ndarray
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Moment:
    """One step of a cheated segment: its index, and `touched`, the only step that a one-step cheat changes."""

    bench: Bench
    index: int
    touched: int
    random: np.random.Generator

    @property
    def is_touched(self) -> bool:
        """Whether a one-step cheat changes this step."""
        return self.index == self.touched


def _planned(moment: Moment, _size: float) -> Rows:
    return moment.bench.plan.indices(moment.index)


@dataclass(frozen=True)
class Kind:
    """A family of cheats: how it changes the recipe, the rows, their content or the gradients.

    `declared` are the precisions of the runs to which it applies; `unit` is the unit of its size.
    """

    unit: str
    recipe: Callable[[Recipe, float], Recipe] = lambda recipe, _size: recipe
    rows: Callable[[Moment, float], Rows] = _planned
    content: Callable[[Arrays, Moment, float], Arrays] = lambda arrays, _moment, _size: arrays
    is_noisy: bool = False
    skips_last: bool = False
    declared: frozenset[str] = field(default=frozenset({"fp32", "bf16"}))


def _optimizer(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update=changes)})


def _raised(setting: str) -> Callable[[Recipe, float], Recipe]:
    """Multiply a setting of the optimizer by 1 + size."""
    return lambda recipe, size: _optimizer(recipe, **{setting: getattr(recipe.optimizer, setting) * (1 + size)})


def _momentum(recipe: Recipe, size: float) -> Recipe:
    settings = recipe.optimizer
    if settings.kind == "sgd":
        return _optimizer(recipe, momentum=settings.momentum - size)
    return _optimizer(recipe, betas=(settings.betas[0], settings.betas[1] - size))


def _half_precision(recipe: Recipe, _size: float) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"dtype": "bf16"})})


def _duplicate_rows(moment: Moment, size: float) -> Rows:
    rows = _planned(moment, size).copy()
    if moment.is_touched:
        first, *others = moment.random.choice(len(rows), int(size) + 1, replace=False)
        rows[others] = rows[first]
    return rows


def _undeclared_rows(moment: Moment, size: float) -> Rows:
    rows = _planned(moment, size).copy()
    places = moment.random.choice(len(rows), int(size), replace=False)
    rows[places] = moment.random.choice(moment.bench.plan.validation, int(size), replace=False)
    return rows


def _swapped_batches(moment: Moment, _size: float) -> Rows:
    other = moment.index + 1 if moment.index % 2 else moment.index - 1
    return moment.bench.plan.indices(other)


def _change_tokens(arrays: Arrays, moment: Moment, size: float) -> Arrays:
    """Change `size` random tokens of the inputs, or invert as many pixels, in one step."""
    if not moment.is_touched:
        return arrays
    name = "inputs" if "inputs" in arrays else "images"
    changed = arrays[name].copy()
    places = moment.random.choice(changed.size, int(size), replace=False)
    flat = changed.reshape(-1)
    if name == "inputs":
        flat[places] = (flat[places] + moment.random.integers(1, 256, len(places))) % 256
    else:
        flat[places] = 1.0 - flat[places]
    return arrays | {name: changed}


KINDS = {
    "learning rate": Kind("of the rate", recipe=_raised("learning_rate")),
    "tokens in one step": Kind("tokens or pixels", content=_change_tokens),
    "duplicate rows in one step": Kind("rows", rows=_duplicate_rows),
    "undeclared rows in each step": Kind("rows", rows=_undeclared_rows),
    "gradient noise": Kind("of the gradient", is_noisy=True),
    "batches swapped": Kind("pairs", rows=_swapped_batches),
    "bf16 declared fp32": Kind("precision", recipe=_half_precision, declared=frozenset({"fp32"})),
    "last step skipped": Kind("steps", skips_last=True),
    "weight decay": Kind("of the decay", recipe=_raised("weight_decay")),
    "momentum or beta2": Kind("less", recipe=_momentum),
}


@dataclass(frozen=True)
class Cheat:
    """One cheat of one size."""

    kind: str
    size: float

    @property
    def name(self) -> str:
        """The name of the cheat in tables."""
        return f"{self.kind} {self.size:g}"

    @property
    def family(self) -> Kind:
        """The family of the cheat."""
        return KINDS[self.kind]

    def trainer(self, bench: Bench) -> Trainer:
        """The trainer that the prover really runs."""
        return bench.trainer(self.family.recipe(bench.recipe, self.size))


CLAIMED = (
    Cheat("learning rate", 1e-3),
    Cheat("learning rate", 1e-2),
    Cheat("tokens in one step", 1),
    Cheat("duplicate rows in one step", 1),
    Cheat("undeclared rows in each step", 1),
    Cheat("batches swapped", 1),
    Cheat("bf16 declared fp32", 1),
    Cheat("gradient noise", 1e-4),
    Cheat("gradient noise", 1e-3),
    Cheat("gradient noise", 1e-2),
    Cheat("last step skipped", 1),
    Cheat("weight decay", 0.1),
    Cheat("momentum or beta2", 1e-3),
)
"""The cheats tried on every calibration; one that the limits of an entry miss is listed there as withdrawn."""


def train_falsely(
    bench: Bench, trainer: Trainer, cheat: Cheat, stretch: Stretch, touched: int, seed: int
) -> Iterator[tuple[int, Outcome]]:
    """Take the steps of a stretch with the cheat; yields every end and the outcome that the prover would claim."""
    sketcher = Sketcher(bench.projection, trainer.weights())
    random = np.random.default_rng(seed)
    trainer.restore(bench.anchor(stretch.start))
    hook = trainer.optimizer.register_step_pre_hook(_noise(cheat, seed)) if cheat.family.is_noisy else None
    for index in range(stretch.start + 1, max(stretch.ends) + 1):
        is_end = index in stretch.ends
        unmoved = reached(trainer, sketcher, 0.0) if is_end and cheat.family.skips_last else None
        moment = Moment(bench, index, touched, random)
        loss = trainer.step(_batches(bench.dataset, trainer.recipe, cheat, moment)).loss
        if is_end:
            yield index, _counted(unmoved, loss) if unmoved else reached(trainer, sketcher, loss)
    if hook is not None:
        hook.remove()


def _batches(dataset: Dataset, recipe: Recipe, cheat: Cheat, moment: Moment) -> Iterator[Arrays]:
    rows = cheat.family.rows(moment, cheat.size)
    for arrays in micro_batches(recipe, dataset, rows):
        yield cheat.family.content(arrays, moment, cheat.size)


def _noise(cheat: Cheat, seed: int) -> Callable[..., None]:
    """A hook that adds Gaussian noise to every gradient; its norm is `size` times that of the gradient, per tensor."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def add(optimizer: Any, *_: object) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            noise = torch.randn(parameter.grad.shape, generator=generator)
            parameter.grad.add_(noise, alpha=cheat.size * float(parameter.grad.norm()) / parameter.numel() ** 0.5)

    return add


def _counted(outcome: Outcome, loss: float) -> Outcome:
    """The state before a skipped step, with every counter incremented as a careful prover would do it."""
    counters = {
        name: Tensor.of(np.asarray(tensor.array() + 1, tensor.array().dtype))
        for name, tensor in outcome.state.items()
        if name.endswith((".step", "num_batches_tracked"))
    }
    return Outcome({**outcome.state, **counters}, loss, outcome.sketch)


# In a process on the base stack: the named cheats on every run, or a ladder of sizes of one family.

Benches = list[tuple[Bench, list[Path]]]
CLAIM_STRETCH: Final = Stretch(32, (33, 40, 64))
SHARES: Final = (0.95, 0.99)
LADDERS: dict[str, tuple[float, ...]] = {
    "learning rate": (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
    "gradient noise": (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
    "tokens in one step": (1, 2, 4, 8, 16, 32, 64, 128),
    "undeclared rows in each step": (1, 2, 4, 8),
}
CLIMBED_WINDOWS = (1, 8)
LONGER_TRIALS = 60
"""The trials of longer segments; if 60 of 60 are caught, the share caught is at least 95 %."""


@dataclass(frozen=True)
class Ladder:
    """Sizes of one family of cheats, ascending, and the number of trials of each at one window."""

    kind: str
    sizes: tuple[float, ...]
    window: int
    trials: int


@dataclass
class Rate:
    """How often one size was caught, and `by` which check."""

    size: float
    caught: int = 0
    tried: int = 0
    by: dict[str, int] = field(default_factory=dict)

    def note(self, furthest: tuple[float, str]) -> None:
        """Count one trial, by its largest distance ÷ limit."""
        self.tried += 1
        if furthest[0] > 1.0:
            self.caught += 1
            self.by[furthest[1]] = self.by.get(furthest[1], 0) + 1

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided 95 % interval of the share caught (Clopper & Pearson 1934)."""
        return clopper_pearson(self.caught, self.tried)

    def shows(self, share: float) -> bool:
        """Whether the counts show, with 95 % confidence on one side, that at least `share` is caught."""
        return at_least(self.caught, self.tried, share) <= 0.05

    def to_json(self) -> Json:
        """The rate as JSON values."""
        low, high = self.interval
        return asdict(self) | {"interval": [round(low, 4), round(high, 4)]}


def try_named(_: Stack, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The drift of every named cheat from every reference, over one stretch of every run of the job."""
    start = CLAIM_STRETCH.start
    for bench, references in _benches(job):
        for cheat in (cheat for cheat in CLAIMED if bench.recipe.training.dtype in cheat.family.declared):
            for end, claimed in train_falsely(bench, cheat.trainer(bench), cheat, CLAIM_STRETCH, start + 1, seed=1):
                for folder in references:
                    replayed = Outcome.kept(folder, start, end)
                    drift = bench.drift(bench.anchor(start), claimed, replayed, (start, end))
                    yield {
                        "case": bench.run.path.name,
                        "cheat": cheat.name,
                        "steps": end - start,
                        "drift": drift.to_json(),
                    }


def climb(_: Stack, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Try ascending sizes of a ladder until one is caught in every trial, or the ladder ends."""
    benches, ladder = _benches(job), Ladder(**job["ladder"])
    limits = {int(step): named for step, named in job["limits"].items()}
    for size in ladder.sizes:
        rate = try_size(benches, Cheat(ladder.kind, size), ladder, limits)
        yield asdict(rate)
        if rate.caught == rate.tried >= ladder.trials:
            return


def _benches(job: dict[str, Any]) -> Benches:
    return [(Bench(Path(run["path"])), [Path(folder) for folder in run["references"]]) for run in job["runs"]]


def try_size(benches: Benches, cheat: Cheat, ladder: Ladder, limits: Mapping[int, Mapping[str, float]]) -> Rate:
    """Try one size; stop early when the smaller share can no longer be shown.

    `limits` are by the first start to which they apply.
    """
    rate = Rate(cheat.size)
    trainers = [cheat.trainer(bench) for bench, _ in benches]
    for (bench, folders), trainer, start, seed in _draw(benches, trainers, ladder):
        end = start + ladder.window
        touched = int(np.random.default_rng([seed, 7]).integers(start + 1, end + 1))
        [(_, claimed)] = train_falsely(bench, trainer, cheat, Stretch(start, (end,)), touched, seed)
        replayed = Outcome.kept(folders[seed % len(folders)], start, end)
        drift = bench.drift(bench.anchor(start), claimed, replayed, (start, end))
        rate.note(drift.excess(limits[max(step for step in limits if step <= start)]))
        missed = rate.tried - rate.caught
        if missed and not Rate(cheat.size, ladder.trials - missed, ladder.trials).shows(SHARES[0]):
            break
    return rate


def _draw(
    benches: Benches, trainers: list[Trainer], ladder: Ladder
) -> Iterator[tuple[tuple[Bench, list[Path]], Trainer, int, int]]:
    """Draw every (run, start) in a random order, and repeat until there are enough; the last item is a seed."""
    random = np.random.default_rng(ladder.window)
    stride = 1 if ladder.window == 1 else 8
    places = [
        (place, start)
        for place, (bench, _) in enumerate(benches)
        for start in range(0, bench.recipe.training.steps - ladder.window + 1, stride)
    ]
    order = np.concatenate([random.permutation(len(places)) for _ in range(-(-ladder.trials // len(places)))])
    for seed, chosen in enumerate(order[: ladder.trials]):
        place, start = places[chosen]
        yield benches[place], trainers[place], start, seed


# The parent of these processes: which cheats are tried on which runs, and what they showed.


@dataclass(frozen=True)
class ClaimTrial:
    """One named cheat compared with the replay of one stack that is held out."""

    case: Case
    cheat: str
    steps: int
    drift: Drift


def try_claims(folder: Path, cases: list[Case]) -> list[ClaimTrial]:
    """Try every named cheat on every run, against the stacks that saved their end states."""
    tasks = [
        StackJob(f"{__name__}:try_named", BASE, f"claims {number}", {"runs": share})
        for number, share in enumerate(deal([_with_references(folder, case) for case in cases], workers()))
    ]
    named = {case.name: case for case in cases}
    return [
        ClaimTrial(named[entry["case"]], entry["cheat"], entry["steps"], Drift.from_json(entry["drift"]))
        for entries in run_all(folder, tasks)
        for entry in entries
    ]


def furthest_by_cheat(trials: list[ClaimTrial], limits: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """For every cheat: the largest distance ÷ limit and its path, in the trial where that ratio is smallest."""
    weakest: dict[str, tuple[float, str]] = {}
    for trial in trials:
        shown = trial.drift.excess(limits)
        weakest[trial.cheat] = min(weakest.get(trial.cheat, shown), shown)
    return weakest


def climb_ladders(folder: Path, cases: list[Case], calibration: Calibration, trials: int) -> list[dict[str, Any]]:
    """Try ladders of sizes on the language models of every optimizer and precision: the figures of each ladder."""
    language = [case for case in cases if case.family == "language"]
    tasks = [
        _climb_task(folder, [case for case in language if case.key == key], calibration, ladder)
        for window in CLIMBED_WINDOWS
        for ladder in (
            Ladder(kind, sizes, window, trials if window == 1 else LONGER_TRIALS) for kind, sizes in LADDERS.items()
        )
        for key in sorted({case.key for case in language})
    ]
    return [
        _ladder_figures(task.job, [Rate(**rate) for rate in rates])
        for task, rates in zip(tasks, run_all(folder, tasks), strict=True)
    ]


def _ladder_figures(job: Mapping[str, Any], rates: Sequence[Rate]) -> dict[str, Any]:
    """The sizes that were tried on one group of runs, ascending, and the smallest that shows each share."""
    optimizer, dtype = job["group"]
    shown = {f"{share:g}": smallest_shown(rates, share) for share in SHARES}
    return {
        "optimizer": optimizer,
        "dtype": dtype,
        "kind": job["ladder"]["kind"],
        "window": job["ladder"]["window"],
        "rates": [rate.to_json() for rate in rates],
        "smallest": {share: None if rate is None else rate.size for share, rate in shown.items()},
    }


def smallest_shown(rates: Iterable[Rate], share: float) -> Rate | None:
    """The smallest of ascending sizes that is shown to be caught in at least `share` of all cases."""
    return next((rate for rate in rates if rate.shows(share)), None)


def _climb_task(folder: Path, cases: list[Case], calibration: Calibration, ladder: Ladder) -> StackJob:
    family, optimizer, dtype = cases[0].key
    fitting = [e for e in calibration.entries if (e.family, e.optimizer, e.dtype) == (family, optimizer, dtype)]
    job = {
        "group": [optimizer, dtype],
        "ladder": asdict(ladder),
        "limits": {str(entry.from_step): limits_of(entry) for entry in fitting if entry.window == ladder.window},
        "runs": [_with_references(folder, case) for case in cases],
    }
    name = f"climb {optimizer}-{dtype} {ladder.kind} {ladder.window}"
    return StackJob(f"{__name__}:climb", BASE, name, job)


def _with_references(folder: Path, case: Case) -> dict[str, Any]:
    held_out = [stack for stack in stacks_for(case.model) if stack.held_out and stack in stacks_here()]
    return {"path": str(folder / case.name), "references": [str(ends_folder(folder, s, case)) for s in held_out]}
