"""How often a challenger reads an anchor: once to decide whether it contests, and then the one that it replays from."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tallystick.core.safetensors import StateFile
from tallystick.disputes.evidence.doubting import doubter_for
from tallystick.disputes.game.protocols import Doubt
from tallystick.tally.attacks.provers import forge_wrong_rate
from tests.support.attacks.disputes.scene import STEP, Scene
from tests.support.rehearsal import Rehearsal

ANCHORS = {0, 3, 6}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each anchor was opened, by its step."""
    seen, opening = Counter[int](), StateFile.__init__

    def count(self: StateFile, path: Path, *arguments: object, **settings: object) -> None:
        if path.parent.name == "anchors":
            seen[int(path.stem.removeprefix("step_"))] += 1
        opening(self, path, *arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(StateFile, "__init__", count)
    return seen


def doubted(run: Path, folder: Path) -> Doubt | None:
    return doubter_for().doubt(Rehearsal(run, folder / "board").state.claims[0], run)


def test_an_honest_claim_is_let_stand_after_one_reading_of_each_anchor(
    scene: Scene, reads: Counter[int], tmp_path: Path
) -> None:
    assert doubted(scene.run, tmp_path) is None
    assert reads == dict.fromkeys(ANCHORS, 1)


def test_a_wrong_step_is_located_by_reading_the_anchor_before_it_again(
    scene: Scene, reads: Counter[int], tmp_path: Path
) -> None:
    forge_wrong_rate(scene.run, tmp_path / "forged", STEP)
    reads.clear()
    found = doubted(tmp_path / "forged", tmp_path)
    assert found is not None
    assert f"step {STEP}" in found.reason
    assert reads == dict.fromkeys(ANCHORS, 1) | {3: 2}


@pytest.mark.parametrize("mark", sorted(ANCHORS))
def test_an_anchor_that_is_withheld_is_contested(scene: Scene, mark: int, tmp_path: Path) -> None:
    run = Path(shutil.copytree(scene.run, tmp_path / "run"))
    (run / f"anchors/step_{mark:08}.safetensors").unlink()
    found = doubted(run, tmp_path)
    assert found is not None
    assert (found.low, f"step_{mark:08}" in found.reason) == (0, True)


def test_an_anchor_of_another_state_is_contested_as_a_whole(scene: Scene, tmp_path: Path) -> None:
    run = Path(shutil.copytree(scene.run, tmp_path / "run"))
    shutil.copyfile(run / "anchors/step_00000003.safetensors", run / "anchors/step_00000006.safetensors")
    found = doubted(run, tmp_path)
    assert found is not None
    assert (found.low, found.high > 1, "anchor" in found.reason) == (0, True, True)
