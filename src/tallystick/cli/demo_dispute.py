"""The last part of `tally demo`: provers that cheat are disputed on a local coordinator, and their bonds move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
    from tallystick.disputes.game.protocols import Trace
    from tallystick.disputes.game.rules import Rules
    from tallystick.disputes.game.state import Dispute, State
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.player import Player
    from tallystick.disputes.parties.task import PartyRole
    from tallystick.disputes.parties.workspace import Workspace

SWAPPED: Final = "weights.model.layers.1.mlp.down_proj.weight"
WRONG_STEP: Final = 29
PURSE: Final = 10_000_000
PAYING: Final = ("prover", "challenger")

MakeTrace = Callable[[Path], "Trace"]


@dataclass(frozen=True)
class Ended:
    """What became of a claim: who was at fault where, after how many moves, and what each party has gained."""

    state: State
    record: int
    operator: str
    gained: dict[str, int]

    @property
    def dispute(self) -> Dispute | None:
        """The dispute, if there was one."""
        return self.state.disputes[0] if self.state.disputes else None

    @property
    def outcome(self) -> str:
        """`slashed`, or `final`."""
        return self.state.claims[0].status.value

    @property
    def reason(self) -> str:
        """One line for the table."""
        from tallystick.disputes.parties.endings import DisputeEnding

        if self.dispute is None:
            return "nobody contests it, and its bond goes back"
        place = DisputeEnding(self.record, (self.dispute.low, self.dispute.size, self.operator)).place
        paid = f"prover {self.gained['prover']:+,}, challenger {self.gained['challenger']:+,}"
        return f"bisected in {self.dispute.turn} moves to {place}; {paid}"


def honest_claim(model: Path, calls: Path) -> Ended:
    """Record answers of the exported model into `calls`, and claim them."""
    from tallystick.disputes.evidence.statement import statement_at

    record_calls(model, calls)
    return play(calls, lambda work: statement_at(calls).trace(work))


def swapped_layer(calls: Path, out: Path) -> Ended:
    """Claim answers of the promised model that another layer's weights gave."""
    from tallystick.attacks.disputes.swapped_layer import forge_swapped_layer, swapped_layer_trace

    forge_swapped_layer(calls, out, SWAPPED)
    return play(out, lambda work: swapped_layer_trace(out, work, SWAPPED))


def wrong_rate(run: Path, out: Path) -> Ended:
    """Claim a training one step of which was taken at a higher learning rate than was declared."""
    from tallystick.attacks.disputes.wrong_rate import forge_wrong_rate, wrong_rate_trace

    forge_wrong_rate(run, out, WRONG_STEP)
    return play(out, lambda work: wrong_rate_trace(out, work, WRONG_STEP))


def record_calls(model: Path, out: Path, calls: int = 3) -> None:
    """Answer `calls` prompts with the exported model, and record what went in and what came out."""
    import torch

    from tallystick.frameworks.torch.generation.language_models import load_language_model
    from tallystick.recorders.inference import record_inference

    language_model = load_language_model(model)
    tokens = language_model.encode_text("The with statement is used to wrap the execution of a block.")[:24]
    with torch.no_grad(), record_inference(language_model.model, out):
        for shift in range(calls):
            language_model.model(input_ids=torch.tensor([tokens[shift:] + tokens[:shift]]), use_cache=False)


def play(claimed: Path, make_trace: MakeTrace) -> Ended:
    """Post the claim in `claimed`, let a challenger look at it, and play until all money has been paid out."""
    folder = claimed.with_name(f"{claimed.name}-dispute")
    folder.mkdir()
    with closing(_LocalGame(folder)) as game:
        return game.play(claimed, make_trace)


class _LocalGame:
    """A coordinator in a database of its own, and the programs of three parties, under a clock that waits for them."""

    def __init__(self, folder: Path) -> None:
        from tallystick.attestation.signing import SigningKey
        from tallystick.disputes.parties.play_out import Clock

        self.folder, self.clock = folder, Clock()
        self.keys = {name: SigningKey.generate() for name in (*PAYING, "referee", "treasury")}
        self.caches: dict[str, BoardCache] = {}

    @cached_property
    def coordinator(self) -> LocalCoordinator:
        from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator

        found = LocalCoordinator.create(self.folder / "coordinator.db", self._rules(), clock=self.clock)
        for name in PAYING:
            found.grant(self.keys[name].public, PURSE)
        return found

    def close(self) -> None:
        self.coordinator.close()

    def play(self, claimed: Path, make_trace: MakeTrace) -> Ended:
        from tallystick.disputes.parties.play_out import play_out

        players = list(self._players(claimed, make_trace))
        try:
            play_out(players, self.clock.advance)
            operator = self._operator(players[-1])
        finally:
            for player in players:
                player.workspace.close()
        record = next((each.move.low for each in self.coordinator.entries() if each.move.kind == "contest"), 0)
        return Ended(self.coordinator.state, record, operator, self._gained())

    def _rules(self) -> Rules:
        from tallystick.disputes.game.rules import Rules

        return Rules(referee=self.keys["referee"].public, treasury=self.keys["treasury"].public)

    def _players(self, claimed: Path, make_trace: MakeTrace) -> Iterator[Player]:
        from tallystick.disputes.evidence.doubting import doubter_for
        from tallystick.disputes.evidence.judging import DisputeJudge
        from tallystick.disputes.parties.offers import offer_of
        from tallystick.disputes.parties.programs import challenger, prover, referee

        doubter, trace = doubter_for(), make_trace(self.folder / "trace")
        yield self._player("prover", lambda own: prover(*own, lambda _: trace, offer_of(claimed)))
        yield self._player("challenger", lambda own: challenger(*own, lambda _: doubter))
        yield self._player("referee", lambda own: referee(own[0], DisputeJudge()))

    def _player(self, name: str, roles: Callable[[tuple[BoardCache, Workspace]], Sequence[PartyRole]]) -> Player:
        from tallystick.disputes.parties.board_cache import BoardCache
        from tallystick.disputes.parties.player import Player
        from tallystick.disputes.parties.workspace import Workspace

        key, workspace = self.keys[name], Workspace(self.folder / name)
        cache = BoardCache(self.coordinator.board(key), workspace.folder / "data")
        self.caches[name] = cache
        return Player(self.coordinator.connect(key), workspace, roles((cache, workspace)))

    def _gained(self) -> dict[str, int]:
        """What each party has more than it began with, the treasury what it is owed."""
        from tallystick.disputes.parties.accounts import accounts

        found = {each.party: each.gained for each in accounts(self._rules(), self.coordinator.entries())}
        return {name: found.get(key.public, 0) for name, key in self.keys.items()}

    def _operator(self, referee: Player) -> str:
        """The operator that the only dispute ended at, as the referee saw it."""
        from tallystick.documents.files import read_document
        from tallystick.judging.opening.files import OPERATOR
        from tallystick.transcripts.opening import OpenedOperator

        if not self.coordinator.state.disputes:
            return ""
        revealed = self.caches["referee"].answered(referee.follower.look(), 0).turns[-1]
        record = OpenedOperator.from_bytes(read_document(revealed / OPERATOR), OPERATOR).record
        return record.operator
