"""One operator is opened alone, with a proof or a record that belongs to something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from research.attacks.graphs import larger_epsilon
from tallystick.core.canonical_json import encode
from tallystick.programs.encoding import prove_node
from tallystick.tally.attacks.catalogue import rejected
from tests.support.attacks.openings.attack import Forge, OpeningAttack
from tests.support.attacks.openings.scene import Document, Scene

Edit = Callable[[Scene, Document, Document], Document]


def editing(edit: Edit) -> Forge:
    """A forger that exchanges parts of `operator.json` for those of another operator, which `edit` is given too."""

    def forge(scene: Scene, out: Path) -> None:
        scene.open(out, node=scene.product.number)
        other = out / "other"
        scene.open(other, node=scene.transposition.number)
        held, theirs = (json.loads((folder / "operator.json").read_bytes()) for folder in (out, other))
        (out / "operator.json").write_bytes(encode(edit(scene, held, theirs)))

    return forge


def _other_proof(_scene: Scene, held: Document, theirs: Document) -> Document:
    return held | {"proof": theirs["proof"]}


def _other_record(_scene: Scene, held: Document, theirs: Document) -> Document:
    return held | {name: theirs[name] for name in ("index", "record", "proof")}


def _other_node(_scene: Scene, held: Document, theirs: Document) -> Document:
    return held | {"node": theirs["node"]}


def _node_of_another_graph(scene: Scene, held: Document, _theirs: Document) -> Document:
    other = prove_node(larger_epsilon(scene.program).graph, scene.product.number).to_json()
    return held | {"node": other}


def _refused(name: str, change: str, edit: Edit) -> OpeningAttack:
    seen = rejected("operator")
    return OpeningAttack(name, change, editing(edit), alone=seen, own=seen, kept=seen)


ATTACKS = (
    _refused("proof-swapped", "the record of one operator comes with the proof of another", _other_proof),
    _refused("record-of-another-operator", "the record of another operator comes with its own proof", _other_record),
    _refused("node-of-another-operator", "the node of another operator comes with its own proof", _other_node),
    _refused("node-of-another-graph", "the node comes with its proof from another graph", _node_of_another_graph),
)
