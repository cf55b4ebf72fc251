"""A training step replayed from its graph ÷ the same step taken by the trainer.

Both arms step the Llama-style model of the other benchmarks on the same batch, in one process: the trainer with
PyTorch's modules, autograd and AdamW, the engine node by node from the captured graph, state given away as the trainer
gives its own. Before anything is timed, every tensor of the state has to have the same bits after a step of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import CLOCKS, Arm, interval, median_ratio, spin_after, take_rounds, total, total_ratio
from benchmarks.workload import SEQUENCE, VOCABULARY, training_recipe
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.engines.torch.training.verifier_stack import capture_recipe_step
from tallystick.formats.recipe import Recipe, learning_rate

GOAL = Goal(1.05)
PLANTED = 0.05
SIZES = {"4.2 M weights, 512 tokens": (4, 256, 4), "0.9 M weights, 256 tokens": (2, 128, 4)}


class Replay:
    """The graph of a recipe's step, the state it goes on from, and the number of the step."""

    def __init__(self, recipe: Recipe, batch: Mapping[str, np.ndarray]) -> None:
        self.captured = capture_recipe_step(recipe, VOCABULARY)
        engine = TorchEngine()
        self.program = engine.compile(self.captured.graph, consumed=self.captured.state)
        held = Trainer(recipe, VOCABULARY).state()
        self.state = {name: from_tensor(held[name]) for name in self.captured.state}
        self.fixed = {name: engine.load(tensor) for name, tensor in self.captured.constants.items()}
        self.fixed |= {f"inputs.{name}": torch.from_numpy(value) for name, value in batch.items()}
        self.recipe, self.index = recipe, 0

    def step(self) -> None:
        """One step."""
        self.index += 1
        scalars = self.captured.schedule(self.index, learning_rate(self.recipe, self.index))
        given = {name: from_tensor(value) for name, value in scalars.items()}
        outputs = self.program(self.fixed | self.state | given)
        self.state = {name: outputs[name] for name in self.state}


def figures(quick: bool) -> Iterator[Figure]:
    count = 3 if quick else 40
    for size, (batch, hidden, layers) in list(SIZES.items())[-1 if quick else 0 :]:
        yield from _figures(size, training_recipe(batch, hidden, layers), count)


def _figures(size: str, recipe: Recipe, count: int) -> Iterator[Figure]:
    rng = random.Random(11)
    shape = (recipe.training.batch, SEQUENCE)
    draw = np.random.default_rng(5)
    batch = {name: draw.integers(0, VOCABULARY, shape) for name in ("inputs", "targets")}
    trainer, replay = Trainer(recipe, VOCABULARY), Replay(recipe, batch)
    eager: Arm = partial(trainer.step, [batch])
    _check_same(trainer, replay, eager)
    bare = take_rounds({"eager": eager}, 3, rng)
    planted = PLANTED * total(bare, "eager", "cpu") / len(bare)
    arms = {"eager": eager, "again": eager, "planted": partial(spin_after, eager, planted), "replay": replay.step}
    rounds = take_rounds(arms, count, rng)
    for clock in CLOCKS:
        controls = {
            "eager again": interval(rounds, median_ratio("again", "eager", clock), rng),
            "planted 5 %": interval(rounds, median_ratio("planted", "eager", clock), rng),
        }
        is_void = 1.0 not in controls["eager again"] or controls["planted 5 %"].low <= 1.0
        details = controls | {
            "ratio of sums": interval(rounds, total_ratio("replay", "eager", clock), rng),
            "eager s": total(rounds, "eager", clock) / count,
            "nodes": len(replay.captured.graph.nodes),
            "threads": torch.get_num_threads(),
        }
        value = interval(rounds, median_ratio("replay", "eager", clock), rng)
        what = f"replay ÷ trainer, {size}"
        yield Figure(f"graph_replay: {size}", what, value, count, clock, goal=GOAL, is_void=is_void, details=details)


def _check_same(trainer: Trainer, replay: Replay, eager: Arm) -> None:
    """One step of each from the same state; every bit of the state agrees, or nothing is worth timing."""
    eager()
    replay.step()
    live = trainer.state()
    differing = [name for name, value in replay.state.items() if not torch.equal(from_tensor(live[name]), value)]
    assert not differing, f"the replay differs in {differing[:3]}"
