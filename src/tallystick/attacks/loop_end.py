"""The final weights of a loop are edited, and the last segment, which would show it, cannot be replayed by anybody."""

from __future__ import annotations

from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive
from tallystick.attacks.forging import anchor_before, copy_run, find_scene, read_anchor, replace_anchor, seal
from tallystick.attacks.loop_batches import file_of
from tallystick.attacks.weights_edited import take_back
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.transcripts.claim import Claim, Withdrawn

EXCUSE = "the loop does something else"


def forge_end_withdrawn(run: Path, out: Path) -> None:
    """Edit the final weights, and withdraw the graph of the last steps."""
    forged, last = _edited(run, out)
    withdraw(forged, anchor_before(forged, last) + 1, last)


def forge_end_without_batch(run: Path, out: Path) -> None:
    """Edit the final weights, and delete the batch of the last step."""
    forged, last = _edited(run, out)
    (forged.path / file_of(forged, last)).unlink()


def withdraw(forged: RunDirectory, first: int, last: int) -> None:
    """Withdraw the graph of these steps in the claim."""
    claim: Claim = seal(forged)
    withdrawn = (Withdrawn(first=first, last=last, reason=EXCUSE),)
    write_atomically(forged.claim_path, claim.model_copy(update={"withdrawn": withdrawn}).to_bytes())


def _edited(run: Path, out: Path) -> tuple[RunDirectory, int]:
    forged = copy_run(run, out)
    if forged.spec().recipe is not None:
        raise UsageError("this forgery needs a run of a custom training loop")
    last = find_scene(forged).last
    replace_anchor(forged, last, take_back(read_anchor(forged, anchor_before(forged, last)), read_anchor(forged, last)))
    return forged, last


NOT_REPLAYED = accepted("no step is taken")
LOOSE = inconclusive("nobody can replay the last segment, and nothing else ties the final weights to the run")

ATTACKS = (
    Attack(
        name="loop-end-withdrawn",
        change="the final weights are edited after training, and the claim withdraws the graph of the last steps",
        forge=forge_end_withdrawn,
        reference="loop",
        screens=NOT_REPLAYED,
        exact=LOOSE,
        tolerant=LOOSE,
    ),
    Attack(
        name="loop-end-without-batch",
        change="the final weights are edited after training, and the batch of the last step is deleted",
        forge=forge_end_without_batch,
        reference="loop",
        screens=NOT_REPLAYED,
        exact=LOOSE,
        tolerant=LOOSE,
    ),
)
