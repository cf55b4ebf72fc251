"""A model captured as a graph ÷ `torch.export.export` of the same model.

Both arms get the model and its example inputs; a capture exports, lowers every node, derives its dtypes and shapes anew
from the operators' definitions, and copies the weights as canonical tensors.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import CLOCKS, interval, median_ratio, take_rounds, total, total_ratio
from benchmarks.workload import SEQUENCE, VOCABULARY, training_recipe
from tallystick.engines.torch.capture.export import exported_program
from tallystick.engines.torch.capture.model import capture
from tallystick.engines.torch.training.trainer import build_model

GOAL = Goal(1.1)


def figures(quick: bool) -> Iterator[Figure]:
    count, rng = (2 if quick else 25), random.Random(13)
    model = build_model(training_recipe(1, 128, 2 if quick else 8), VOCABULARY).eval()
    tokens = torch.arange(SEQUENCE).reshape(1, SEQUENCE) % VOCABULARY
    given = {"input_ids": tokens, "use_cache": False}
    arms = {
        "export": partial(exported_program, model, (), given),
        "again": partial(exported_program, model, (), given),
        "capture": partial(capture, model, (), given),
    }
    rounds = take_rounds(arms, count, rng)
    nodes = len(capture(model, (), given).graph.nodes)
    for clock in CLOCKS:
        control = interval(rounds, median_ratio("again", "export", clock), rng)
        details = {
            "export again": control,
            "ratio of sums": interval(rounds, total_ratio("capture", "export", clock), rng),
            "export s": total(rounds, "export", clock) / count,
            "nodes": nodes,
        }
        value = interval(rounds, median_ratio("capture", "export", clock), rng)
        what = "`capture` ÷ `torch.export`, Llama-style model"
        yield Figure("capture_cost", what, value, count, clock, goal=GOAL, is_void=1.0 not in control, details=details)
