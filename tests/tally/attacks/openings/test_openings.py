"""Every forged opening, judged in every way; and the claim by which an opening is tied to a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening
from tests.support.attacks.openings.attack import JUDGES, Judge
from tests.support.attacks.openings.catalogue import OPENING_ATTACKS
from tests.support.attacks.openings.examine import examine_opening, judged, published
from tests.support.attacks.openings.scene import Scene, train_opened

Forge = Callable[[str], Path]


@pytest.fixture(scope="module")
def scene(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run, its step 2 opened, and one operator of it. Never write into it."""
    folder = tmp_path_factory.mktemp("openings")
    train_opened(folder / "run")
    return Scene.of(folder / "run", folder)


@pytest.fixture(scope="module")
def forged(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Forge:
    folder = tmp_path_factory.mktemp("forged")

    @cache
    def forge(name: str) -> Path:
        OPENING_ATTACKS[name].forge(scene, folder / name)
        return folder / name

    return forge


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", OPENING_ATTACKS)
def test_each_judge_says_what_is_expected(name: str, judge: Judge, forged: Forge, scene: Scene) -> None:
    expected, answer = OPENING_ATTACKS[name].expected(judge), examine_opening(forged(name), judge, scene.run)
    assert answer.meets(expected), f"{expected}, but {answer}"
    assert expected.checks or expected.why


@pytest.mark.parametrize("name", [name for name, attack in OPENING_ATTACKS.items() if attack.is_located])
def test_a_forgery_in_one_operator_is_located_there(name: str, forged: Forge, scene: Scene) -> None:
    first = judged(forged(name), "alone", scene.run).objections[0]
    places = {"operator-moved-data-by-one-bit": scene.transposition, "weight-moved-behind-its-update": scene.update}
    node = places.get(name, scene.product)
    assert first.where.startswith((f"n{node.number} ({node.operator})", f"node {node.number}"))


def test_an_opening_of_the_published_claim_is_accepted_and_little_stays_open(scene: Scene) -> None:
    verdict = judge_opening(scene.whole, OpeningRequest(published=published(scene.run)))
    assert verdict.outcome == "accepted"
    assert {"claim", "graph of the spec", "loss", "learning rate"} <= {finding.name for finding in verdict.findings}
    assert verdict.not_checked == ("whether this is the batch of step 2: its record names positions, and not tensors",)


def test_an_opening_alone_says_that_nothing_ties_it_to_a_claim(scene: Scene) -> None:
    lines = judge_opening(scene.whole, OpeningRequest()).not_checked
    assert any("only the claim itself says so" in line for line in lines)


def test_one_operator_says_that_the_loss_was_not_compared(scene: Scene) -> None:
    verdict = judge_opening(scene.single, OpeningRequest(published=published(scene.run)))
    assert verdict.outcome == "accepted"
    assert any("whether the loss is that of the record" in line for line in verdict.not_checked)


def test_a_spec_that_the_claim_does_not_name_is_rejected(scene: Scene) -> None:
    held = published(scene.run)
    assert held.spec is not None
    other = type(held)(held.claim, held.spec.model_copy(update={"graph": "sha256:" + "1" * 64}))
    verdict = judge_opening(scene.whole, OpeningRequest(published=other))
    assert {finding.name for finding in verdict.objections} == {"graph of the spec"}
    unknown = judge_opening(scene.whole, OpeningRequest(published=type(held)(held.claim)))
    assert unknown.outcome == "accepted"
    assert any("give the spec" in line for line in unknown.not_checked)
