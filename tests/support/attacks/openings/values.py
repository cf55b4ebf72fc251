"""One operator gives other numbers than it computes; everything behind it is computed from them, and recommitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.core.digests import Digest
from tallystick.engines.torch.tensors import to_tensor
from tallystick.programs.execution import Arguments
from tallystick.programs.graph import Node
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.tally.attacks.catalogue import accepted, inconclusive, rejected
from tests.support.attacks.openings.attack import Forge, OpeningAttack
from tests.support.attacks.openings.scene import Change, Scene, TamperingEngine, loss_of, recommit
from tests.support.opened_values import read_values, write_values

BEYOND, WITHIN, PUSH = 2.0, 0.9, 1e-4


def forge_with(change: Change, moves_data: bool = False) -> Forge:
    """A forger that changes the results of one node, computes on from there, and commits to all of it."""

    def forge(scene: Scene, out: Path) -> None:
        node = scene.transposition if moves_data else scene.product
        scene.open(out, engine=TamperingEngine(node.number, change))
        recommit(scene, out, loss=loss_of(out))

    return forge


def moved_by(radii: float) -> Change:
    """The element with the widest bound is moved by so many times that bound."""

    def change(node: Node, arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
        operands = {name: to_tensor(value) for name, value in arguments.items()}
        found = bound(operator(node.operator), {**operands, **node.attributes})[0]
        assert found is not None  # a product has one result
        place = int(found.radius.argmax())
        moved = results[0].clone()
        moved.view(-1)[place] = float(found.value.flat[place] + radii * found.radius.flat[place])
        return (moved,)

    return change


def forge_named(engine: str, excused: bool) -> Forge:
    """A forger beyond the bound who says that an engine outside of bounds computed it: of that operator, or not."""

    def forge(scene: Scene, out: Path) -> None:
        node = scene.cosine if excused else scene.product
        scene.open(out, engine=TamperingEngine(node.number, moved_by(BEYOND), engine))
        recommit(scene, out, loss=loss_of(out))

    return forge


def plant_nan(_node: Node, _arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first element is no number."""
    moved = results[0].clone()
    moved.view(-1)[0] = float("nan")
    return (moved,)


def turn_one_bit(_node: Node, _arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first element becomes the next number that float32 can hold."""
    moved = results[0].clone().contiguous()
    moved.view(-1)[0] = float(np.nextafter(np.float32(moved.view(-1)[0]), np.float32(np.inf)))
    return (moved,)


def forge_behind_the_update(scene: Scene, out: Path) -> None:
    """Move one weight behind the last operator that the optimizer applies to it."""
    scene.open(out, engine=TamperingEngine(scene.update.number, _push))
    recommit(scene, out)


def _push(_node: Node, _arguments: Arguments, results: tuple[Any, ...]) -> tuple[Any, ...]:
    moved = results[0].clone()
    moved.view(-1)[0] += PUSH
    return (moved,)


def forge_withheld(scene: Scene, out: Path) -> None:
    """Keep the result of one operator back."""
    scene.copy(out)
    values = read_values(out)
    del values[_product(scene, out)]
    write_values(out, values)


def forge_bytes(scene: Scene, out: Path) -> None:
    """Change one bit of a value and leave its name."""
    scene.copy(out)
    values, name = read_values(out), _product(scene, out)
    data = bytearray(values[name].data)
    data[-1] ^= 1
    write_values(out, values | {name: replace(values[name], data=bytes(data))})


def _product(scene: Scene, out: Path) -> Digest:
    lines = [json.loads(line) for line in (out / "operators.jsonl").read_bytes().splitlines()]
    found = next(line["outputs"] for line in lines if line["node"] == scene.product.number)
    return Digest(found[f"n{scene.product.number}"])


WITHIN_BOUND = "a proven bound holds for every honest order of rounding; a calibrated profile is tighter"
NAMED = "an engine that is known to leave the bound is neither accused nor accepted; a dispute does not excuse it"
KEPT = rejected("claim")


def _tampered(name: str, change: str, forge: Forge) -> OpeningAttack:
    seen = rejected("operator")
    return OpeningAttack(name, change, forge, alone=seen, own=seen, kept=KEPT, is_located=True)


ATTACKS = (
    _tampered(
        "operator-beyond-its-bound",
        "one element of a matrix product is moved by twice its bound",
        forge_with(moved_by(BEYOND)),
    ),
    _tampered("operator-nan-planted", "one element of a matrix product is NaN", forge_with(plant_nan)),
    _tampered(
        "operator-moved-data-by-one-bit",
        "one element of a transposition is one ULP off",
        forge_with(turn_one_bit, moves_data=True),
    ),
    _tampered(
        "weight-moved-behind-its-update",
        "one weight is moved by 1e-4 in the result of the last operator of its update",
        forge_behind_the_update,
    ),
    OpeningAttack(
        name="operator-within-its-bound",
        change="one element of a matrix product is moved by nine tenths of its bound",
        forge=forge_with(moved_by(WITHIN)),
        alone=accepted(WITHIN_BOUND),
        own=accepted(WITHIN_BOUND),
        kept=KEPT,
    ),
    _tampered(
        "operator-beyond-its-bound-by-a-named-engine",
        "one element of a matrix product is moved by twice its bound; the opening names IREE, which keeps that bound",
        forge_named("iree", excused=False),
    ),
    OpeningAttack(
        name="cosine-beyond-its-bound-by-a-named-engine",
        change="one element of a cosine is moved by twice its bound; the opening names IREE, which leaves that bound",
        forge=forge_named("iree", excused=True),
        alone=inconclusive(NAMED),
        own=inconclusive(NAMED),
        kept=KEPT,
    ),
    OpeningAttack(
        name="value-withheld",
        change="the result of one operator is not opened",
        forge=forge_withheld,
        alone=inconclusive("an operator whose values are not opened is not judged"),
        own=inconclusive("an operator whose values are not opened is not judged"),
        kept=inconclusive("an operator whose values are not opened is not judged"),
    ),
    OpeningAttack(
        name="value-exchanged",
        change="one bit of a value is turned, under the name of the old one",
        forge=forge_bytes,
        alone=rejected("value"),
        own=rejected("value"),
        kept=rejected("value"),
        is_located=True,
    ),
)
