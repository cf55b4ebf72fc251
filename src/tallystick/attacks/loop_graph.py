"""A run of a custom training loop whose step graph is not that of the loop, or is incomplete."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.attacks.attack import MISSING, Attack, accepted, rejected
from tallystick.attacks.forging import copy_run
from tallystick.attacks.graph_forging import program_of, remake
from tallystick.attacks.step_graph_edited import adds_a_constant, forge_with, larger_epsilon, skips_a_tensor
from tallystick.attacks.step_graph_file import forge_removed
from tallystick.errors import UsageError
from tallystick.graphs.files import constants_path
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.tensors.tensor import Tensor


def forge_graph_named_only(run: Path, out: Path) -> None:
    """Name the graph of a step with another ε than the real one."""
    program = program_of(run)
    remake(run, out, practised=program, declared=larger_epsilon(program))


def forge_constants(run: Path, out: Path) -> None:
    """Change one number in the file of the graph's constants."""
    if not program_of(run).constants:
        raise UsageError("this forgery exchanges a constant of the step graph, and this one has none")
    path = constants_path(copy_run(run, out).graph_path)
    constants = dict(read_state(path))
    name = min(constants)
    values = np.array(constants[name].array())
    values.flat[0] += 1
    write_state(path, constants | {name: Tensor.of(values)})


def forge_constants_removed(run: Path, out: Path) -> None:
    """Delete the file of the graph's constants."""
    path = constants_path(copy_run(run, out).graph_path)
    if not path.exists():
        raise UsageError("this forgery deletes the constants of the step graph, and this one has none")
    path.unlink()


IS_THE_PROGRAM = (
    "no recipe says what the step should be: the graph is the program, the report assumes it, "
    "and a person who relies on it must read it (`tally graph show`, `tally graph diff`)"
)
NOT_REPLAYED = "no step is taken"

ATTACKS = (
    Attack(
        name="loop-graph-of-another-step",
        change="the spec names the graph of a step with another ε than the one that was taken; resealed",
        forge=forge_graph_named_only,
        reference="loop",
        screens=accepted(NOT_REPLAYED),
        exact=rejected("state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="loop-graph-removed",
        change="the step graph that the spec names is deleted",
        forge=forge_removed,
        reference="loop",
        screens=MISSING,
        exact=MISSING,
        tolerant=MISSING,
        claim=MISSING,
    ),
    Attack(
        name="loop-constant-exchanged",
        change="one number in the file of the graph's constants is another one",
        forge=forge_constants,
        reference="loop",
        screens=rejected("step graph"),
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
        claim=rejected("step graph"),
    ),
    Attack(
        name="loop-constants-removed",
        change="the file of the graph's constants is deleted",
        forge=forge_constants_removed,
        reference="loop",
        screens=MISSING,
        exact=MISSING,
        tolerant=MISSING,
        claim=MISSING,
    ),
    Attack(
        name="loop-graph-hidden-constant",
        change="a constant pattern is added to the gradient of one weight tensor, in the graph as in the training",
        forge=forge_with(adds_a_constant),
        reference="loop",
        screens=accepted(IS_THE_PROGRAM),
        exact=accepted(IS_THE_PROGRAM),
        tolerant=accepted(IS_THE_PROGRAM),
    ),
    Attack(
        name="loop-graph-skips-a-tensor",
        change="the update leaves one weight tensor as it was, in the graph as in the training",
        forge=forge_with(skips_a_tensor),
        reference="loop",
        screens=accepted(IS_THE_PROGRAM),
        exact=accepted(IS_THE_PROGRAM),
        tolerant=accepted(IS_THE_PROGRAM),
    ),
)
