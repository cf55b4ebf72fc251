"""The operators of an opening do not follow from one another, or are not those of the step, the graph or the claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from research.attacks.graphs import larger_epsilon
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.data.step_program import schedule_tensors
from tallystick.formats.optimizers import rule_of_recipe
from tallystick.formats.recipe import learning_rate
from tallystick.tally.attacks.catalogue import accepted, rejected
from tallystick.verdicts.exact import quantise
from tests.support.attacks.openings.attack import OpeningAttack
from tests.support.attacks.openings.scene import (
    DECIMALS,
    STEP,
    Document,
    Scene,
    edit_records,
    loss_of,
    read_opening,
    recommit,
    write_opening,
)
from tests.support.opened_values import read_values, write_values

RATE_EXCESS = 1.01


def open_whole(scene: Scene, out: Path) -> None:
    """Open the whole step."""
    scene.open(out)


def open_single(scene: Scene, out: Path) -> None:
    """Open one operator."""
    scene.open(out, node=scene.product.number)


def forge_edges(scene: Scene, out: Path) -> None:
    """Let one operator read zeros in the place of what was given to it."""
    scene.copy(out)
    ref = scene.product.refs[0]
    zeros = Tensor.of(np.zeros(scene.program.graph.specs()[ref].shape, np.float32))
    write_values(out, read_values(out) | {tensor_digest(zeros): zeros})

    def edit(lines: list[Document]) -> list[Document]:
        line = next(line for line in lines if line["node"] == scene.product.number)
        line["inputs"][ref] = str(tensor_digest(zeros))
        return lines

    edit_records(out, edit)


def forge_left_out(scene: Scene, out: Path) -> None:
    """Leave one operator out."""
    scene.copy(out)
    edit_records(out, lambda lines: [line for line in lines if line["node"] != scene.product.number])


def forge_other_step(scene: Scene, out: Path) -> None:
    """Open the operators of the next step under the record of this one."""
    scene.open(out, step=STEP + 1)
    held, shown = read_opening(scene.whole), read_opening(out)
    named = {name: getattr(held, name) for name in ("index", "record", "proof")}
    write_opening(out, shown.model_copy(update=named))


def forge_other_graph(scene: Scene, out: Path) -> None:
    """Open the operators of another graph than that of the spec, which gave the states that the record names."""
    scene.open(out, graph=larger_epsilon(scene.program).graph)
    recommit(scene, out)


def forge_rate(scene: Scene, out: Path) -> None:
    """Open a step at a learning rate 1 % above the one that the record states."""
    spec = scene.evidence.spec
    assert spec.recipe is not None  # the run follows a recipe
    rule, rate = rule_of_recipe(spec.recipe.optimizer), RATE_EXCESS * learning_rate(spec.recipe, STEP)
    scene.open(out, bindings=scene.bindings() | schedule_tensors((rule,), (rate,), STEP))
    recommit(scene, out)


def forge_loss(scene: Scene, out: Path) -> None:
    """Let the record state nine tenths of the loss that the operators give."""
    scene.copy(out)
    recommit(scene, out, loss=_lower(scene))


def forge_batch(scene: Scene, out: Path) -> None:
    """Open a step on a batch in which one token is another one."""
    bindings = scene.bindings()
    tokens = np.array(bindings["inputs.inputs"].array())
    tokens.flat[0] = (tokens.flat[0] + 1) % 128
    scene.open(out, bindings=bindings | {"inputs.inputs": Tensor.of(tokens)})
    recommit(scene, out, loss=loss_of(out))


def forge_transcript(scene: Scene, out: Path) -> None:
    """Name the honest claim, and bring a transcript in which the record states a lower loss."""
    scene.copy(out)
    recommit(scene, out, claims=False, loss=_lower(scene))


def _lower(scene: Scene) -> float | str:
    return quantise(0.9 * float(loss_of(scene.whole)), DECIMALS)


HONEST = accepted("nothing is forged")
UNBOUND = "the opening is consistent; only the claim says which transcript and which graph it belongs to"
NOT_SHOWN = "only the spec says how a record states its loss, and what follows from its learning rate"
POSITIONS = (
    "a record by a recipe names positions of examples, and the judge has no data; the report says so, and "
    "`tally audit` replays the step on the committed ones"
)
KEPT = rejected("claim")

ATTACKS = (
    OpeningAttack(
        "opening-honest", "nothing; a whole step is opened", open_whole, HONEST, HONEST, HONEST, is_honest=True
    ),
    OpeningAttack(
        "operator-honest", "nothing; one operator is opened", open_single, HONEST, HONEST, HONEST, is_honest=True
    ),
    OpeningAttack(
        name="edges-inconsistent",
        change="one operator reads zeros in the place of what the operator before it gave; its record says so",
        forge=forge_edges,
        alone=rejected("operators"),
        own=rejected("operators"),
        kept=rejected("operators"),
    ),
    OpeningAttack(
        name="operator-left-out",
        change="one operator has no record; the root is made anew",
        forge=forge_left_out,
        alone=rejected("operators"),
        own=rejected("operators"),
        kept=rejected("operators"),
    ),
    OpeningAttack(
        name="opening-of-another-step",
        change="the operators of the next step are opened under the record of this one",
        forge=forge_other_step,
        alone=rejected("opened record"),
        own=rejected("opened record"),
        kept=rejected("opened record"),
    ),
    OpeningAttack(
        name="opening-of-another-graph",
        change="the step is taken with another ε, and its graph opened; record, transcript and claim are made anew",
        forge=forge_other_graph,
        alone=accepted(UNBOUND),
        own=rejected("graph of the spec"),
        kept=rejected("claim", "graph of the spec"),
    ),
    OpeningAttack(
        name="opening-of-an-invented-transcript",
        change="the honest claim is named beside a transcript in which the record states another loss",
        forge=forge_transcript,
        alone=accepted(UNBOUND),
        own=rejected("claim"),
        kept=KEPT,
    ),
    OpeningAttack(
        name="opening-at-another-rate",
        change="the step is taken at a learning rate 1 % above that of its record; all is made anew",
        forge=forge_rate,
        alone=accepted(NOT_SHOWN),
        own=rejected("learning rate"),
        kept=KEPT,
    ),
    OpeningAttack(
        name="opening-with-another-loss",
        change="the record states nine tenths of the loss that the operators give; all is made anew",
        forge=forge_loss,
        alone=accepted(NOT_SHOWN),
        own=rejected("loss"),
        kept=KEPT,
    ),
    OpeningAttack(
        name="opening-on-another-batch",
        change="one token of the batch is another than the declared one; all is made anew",
        forge=forge_batch,
        alone=accepted(POSITIONS),
        own=accepted(POSITIONS),
        kept=KEPT,
    ),
)
