"""What an audit costs, in units of the training it audits, for a growing share of replayed steps.

One run of the shipped example recipe, with 4,096 tokens a step, is recorded, then audited with K sampled steps and in
full, several times each with fresh nonces. An audit rereads every record and replays; a spot check reads the anchors of
its segments and the two ends of the chain, a full audit all of them, and screens neighbours. A straight line through
(replayed share, audit ÷ training) of the spot checks splits their cost in two: what every one pays, and what one
replayed step costs in units of one training step, its anchors included. CPU time, in one process with as many threads
as training; training counts from the first step to the last, recording included.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Interval, Round, interval, stopwatch
from benchmarks.workload import prepare_text
from tallystick.audits.policy import Policy, draw_nonce
from tallystick.audits.training import audit_training
from tallystick.engines.tokenizers import train_bpe
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.verifier_stack import TorchReplayer
from tallystick.formats.recipe import Recipe
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.training import TrainingRun, read_config
from tallystick.verdicts.replayer import VerifierStack

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama-tiny.toml"
SAMPLES = (1, 2, 4, 8)
STEPS, BATCH = 80, 64
FIXED = Goal(3.0)


@dataclass(frozen=True)
class Seen:
    """One audit: the share of steps it replayed, and its cost in units of the training."""

    share: float
    cost: float


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    rng, repeats = random.Random(7), 1 if quick else 3
    recipe = read_config(EXAMPLE).recipe
    training = {"steps": 30 if quick else STEPS, "batch": recipe.training.batch if quick else BATCH}
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update=training)})
    with TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        spent = _train(run, recipe)
        audits = {str(k): Policy(samples=k) for k in SAMPLES} | {"all": Policy(full=True)}
        order = [name for name in audits for _ in range(repeats)]
        rng.shuffle(order)
        seen: dict[str, list[Seen]] = {name: [] for name in audits}
        for name in order:
            seen[name].append(_audit(run, audits[name], spent))
    for name, audits_seen in seen.items():
        yield _figure(name, audits_seen)
    spot_checks = [one for name, several in seen.items() if name != "all" for one in several]
    yield from _line(spot_checks, recipe.training.steps, rng)


def _train(run: RunDirectory, recipe: Recipe) -> float:
    commitment = prepare_text(run.data_path, recipe.tokenizer.vocabulary)
    training = TrainingRun(run, Spec.of(recipe, commitment))
    elapsed = stopwatch()
    training.record()
    return elapsed().cpu


def _audit(run: RunDirectory, policy: Policy, training: float) -> Seen:
    stack = VerifierStack(describe_environment("cpu"), TorchReplayer, train_bpe=train_bpe)
    elapsed = stopwatch()
    report = audit_training(run, policy, draw_nonce(), stack)
    seconds = elapsed().cpu
    assert report.verdict.outcome == "accepted", report.verdict.objections
    return Seen(report.replayed_steps / report.steps, seconds / training)


def _figure(name: str, seen: list[Seen]) -> Figure:
    costs = [one.cost for one in seen]
    value = Interval(mean(costs), min(costs), max(costs))
    details = {"replayed_share": mean(one.share for one in seen)}
    what = f"audit with K = {name} ÷ training (in brackets: least and most)"
    return Figure(f"audit_cost: K = {name}", what, value, len(seen), "CPU", details=details)


def _line(seen: list[Seen], steps: int, rng: random.Random) -> Iterator[Figure]:
    rounds: list[Round] = [{"audit": one} for one in seen]  # type: ignore[dict-item]
    slope = interval(rounds, lambda drawn: _fit(drawn)[1], rng)
    fixed = interval(rounds, lambda drawn: steps * _fit(drawn)[0], rng)
    yield Figure("audit_cost: per step", "one replayed step ÷ one training step", slope, len(seen), "CPU")
    what = "what every spot check pays, in training steps"
    yield Figure("audit_cost: fixed", what, fixed, len(seen), "CPU", "steps", FIXED)


def _fit(rounds: object) -> tuple[float, float]:
    """Intercept and slope of the least squares line."""
    points = [one["audit"] for one in rounds]  # type: ignore[attr-defined]
    x, y = mean(p.share for p in points), mean(p.cost for p in points)
    spread = sum((p.share - x) ** 2 for p in points)
    slope = sum((p.share - x) * (p.cost - y) for p in points) / spread if spread else float("nan")
    return y - slope * x, slope
