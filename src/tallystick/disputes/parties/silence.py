"""What a prover that says nothing loses, and when: for its own program, and for whoever looks at the coordinator."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.disputes.game.context import mover, time_left
from tallystick.disputes.game.state import Phase, Status
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.waiting import deadline, in_words


def silent_provers(view: GameView) -> Iterator[str]:
    """A sentence for each dispute whose prover has let half of the time for its move pass."""
    for number, dispute in enumerate(view.state.disputes):
        claim = view.claim_of(dispute)
        if dispute.phase not in (Phase.PARTITION, Phase.LEAF) or claim.status is not Status.OPEN:
            continue
        left = time_left(dispute, view.time)
        if mover(claim, dispute) == claim.prover and 2 * left <= dispute.clocks.prover:
            when = deadline(view.now + left, view.now) if left > 0 else ": its time is over"
            yield (
                f"dispute {number}: the prover of claim {dispute.claim} is silent, and loses {claim.bond:,} unless it "
                f"moves{when}"
            )


def before_silence(view: GameView, number: int) -> str:
    """What becomes of a claim if nobody answers for it; empty once it cannot be contested any more."""
    claim, rules = view.state.claims[number], view.rules
    left = claim.deadline - view.time
    if claim.status is not Status.OPEN or (left <= 0 and not claim.disputes):
        return ""
    until = deadline(view.now + left, view.now) if left > 0 else ""
    return (
        f"claim {number} can be contested{until}. Whoever then answers nothing for {in_words(rules.clock)} in all, or "
        f"{in_words(rules.extension)} later on, loses {claim.bond:,} although it is right: leave this program running, "
        "or `tally watchtower` with what `tally dispute delegate` prints"
    )
