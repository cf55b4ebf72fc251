"""What a challenger reads of what a prover opened: it has the weights of a claim; unread bytes count in the end."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tallystick.core.digests import Digest  # noqa: E402
from tallystick.core.safetensors import StateFile  # noqa: E402
from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.traces import RecordTrace  # noqa: E402
from tallystick.disputes.game.protocols import Descent, OpenedLeaves, Trace  # noqa: E402
from tallystick.disputes.game.state import Dispute  # noqa: E402
from tallystick.verdicts.opening.files import VALUES, value_name  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.catalogue import DECEPTIONS  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402
from tests.support.attacks.disputes.values import contested_call  # noqa: E402
from tests.support.rehearsal import Rehearsal  # noqa: E402

FIRST, INPUT = "weights.first.weight", "inputs.tokens"


@dataclass(frozen=True)
class Garbling:
    """A prover whose descent holds other bytes for one value than its digest names."""

    trace: Trace
    name: str
    folder: Path

    def partition(self, dispute: Dispute, places: range) -> OpenedLeaves:
        return self.trace.partition(dispute, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        descent = self.trace.descend(dispute)
        assert descent is not None
        assert isinstance(self.trace, RecordTrace)
        kept = self.trace.operators(dispute.low)
        assert kept is not None
        values = self.folder / VALUES
        shutil.copyfile(Path(str(descent.files[VALUES])), values)
        flip(values, kept.whole.opening.sources[self.name])
        return replace(descent, files={**descent.files, VALUES: values})

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        return self.trace.reveal(dispute)


def flip(path: Path, name: Digest) -> None:
    """Change the last byte of a value."""
    with StateFile(path) as file:
        end = file.specs[value_name(name)].end - max(each.end for each in file.specs.values()) - 1
    data = bytearray(path.read_bytes())
    data[end] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [FIRST, INPUT])
def test_bytes_that_are_not_the_named_ones_are_protested_against(
    scene: Scene, tmp_path: Path, board: Path, name: str
) -> None:
    """A child reads the input. No child reads the weight, of which the challenger has its own: no child is wrong."""
    trace = Garbling(scene.call_trace(tmp_path / "work"), name, tmp_path)
    outcome = Rehearsal(scene.calls, board).play(trace, doubter_for(), DisputeJudge(), contested_call())
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.PROVER, "structure"), outcome.reason


def test_an_honest_opening_is_not_protested_against(scene: Scene, tmp_path: Path, board: Path) -> None:
    trace = scene.call_trace(tmp_path / "work")
    outcome = Rehearsal(scene.calls, board).play(trace, doubter_for(), DisputeJudge(), contested_call())
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.CHALLENGER, "leaf"), outcome.reason


def test_a_wrong_operator_is_found_from_weights_of_the_claim(scene: Scene, tmp_path: Path, board: Path) -> None:
    """The opened bytes of a weight are not read where a child is wrong, whatever they are."""
    staged = DECEPTIONS["swapped-layer"].stage(scene, tmp_path / "staged")
    trace = Garbling(staged.trace, FIRST, tmp_path)
    outcome = Rehearsal(staged.statement, board).play(trace, doubter_for(), DisputeJudge())
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.PROVER, "leaf"), outcome.reason
