"""A wrong learning rate and a swapped layer, played by programs at a local coordinator: the bond moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from tallystick.disputes.coordinators.coordinator import fetch  # noqa: E402
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator  # noqa: E402
from tallystick.disputes.evidence.convicting import find_evidence  # noqa: E402
from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.traces import torch_engine  # noqa: E402
from tallystick.disputes.game.moves import Prove, Rule  # noqa: E402
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Ground  # noqa: E402
from tallystick.disputes.game.state import (  # noqa: E402
    PostedClaim,
    Rules,
    Status,
)
from tallystick.disputes.parties import programs  # noqa: E402
from tallystick.disputes.parties.game_view import BoardCache  # noqa: E402
from tallystick.disputes.parties.player import (  # noqa: E402
    DueMoves,
    PartyRole,
    Player,
    Workspace,
)
from tallystick.disputes.parties.programs import Clock, play_out  # noqa: E402
from tallystick.disputes.parties.progress import REASON  # noqa: E402
from tallystick.disputes.parties.prover import offer_of  # noqa: E402
from tallystick.formats.signing import SigningKey  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.catalogue import DECEPTIONS  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402

PURSE = 2_000_000


@pytest.fixture(scope="module")
def scene(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """An honest run and honest calls. Never write into them."""
    return Scene.make(tmp_path_factory.mktemp("scene"))


@dataclass
class Told:
    """A challenger that contests what it is told, or else what it finds."""

    doubter: Doubter
    told: Doubt | None

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        return self.doubter.unseen(claim, statement)

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        return self.told or self.doubter.doubt(claim, statement)

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        return self.doubter.choose(answered, children)


class DisputeSetup:
    """A local coordinator with a clock that waits, and programs of parties at it."""

    def __init__(self, folder: Path, with_referee: bool, members: int = 0) -> None:
        self.folder, self.clock = folder, Clock()
        self.own, self.referee_key = SigningKey.generate(), SigningKey.generate()
        self.member_keys = [SigningKey.generate() for _ in range(members)]
        rules = Rules(
            treasury=self.own.public,
            beacon=self.own.public,
            members=tuple(key.public for key in self.member_keys),
            referee=self.referee_key.public if with_referee else None,
            committee=3,
            appeals=0,
        )
        self.place = LocalCoordinator.create(folder / "coordinator.db", rules, self.own, self.clock)

    def player(
        self, roles: Callable[[BoardCache, Workspace], Sequence[PartyRole]], key: SigningKey | None = None
    ) -> Player:
        key = key or SigningKey.generate()
        self.place.grant(key.public, PURSE)
        workspace = Workspace(self.folder / key.public[:8])
        cache = BoardCache(self.place.board(key), workspace.folder / "data")
        return Player(self.place.connect(key), workspace, roles(cache, workspace))

    def referee(self) -> Player:
        return self.player(lambda cache, _: programs.referee(cache, DisputeJudge()), self.referee_key)

    def members(self) -> list[Player]:
        judge = DisputeJudge(torch_engine())
        return [self.player(lambda *at: programs.member(*at, judge), key) for key in self.member_keys]

    def beacon(self) -> Player:
        return self.player(lambda *_: (DueMoves(everybody=True, nonce=self.place.next_nonce),), self.own)

    def reason(self) -> str:
        """What the referee put at the board with its ruling."""
        (rule,) = [entry.move for entry in self.place.entries() if isinstance(entry.move, Rule)]
        return fetch(rule.reason, self.place.board(self.own), self.folder / "reason").joinpath(REASON).read_text()

    def play(self, name: str, scene: Scene, *judges: Player, evidence: bool = False) -> tuple[Player, Player]:
        """One deception of the catalogue, defended by its prover."""
        staged = DECEPTIONS[name].stage(scene, self.folder / name)
        doubter, offer = Told(doubter_for(contests_all=True), staged.doubt), offer_of(staged.statement)
        brings = {"judge": DisputeJudge(), "evidence": find_evidence} if evidence else {}
        prover = self.player(lambda *at: programs.prover(*at, lambda _: staged.trace, offer))
        challenger = self.player(lambda *at: programs.challenger(*at, lambda _: doubter, **brings))  # type: ignore[arg-type]
        play_out([prover, challenger, *judges], self.clock.advance)
        return prover, challenger


@pytest.mark.parametrize("name", ["wrong-rate", "swapped-layer"])
def test_a_cheat_is_bisected_to_the_operator_and_its_bond_moves(tmp_path: Path, scene: Scene, name: str) -> None:
    setup = DisputeSetup(tmp_path, with_referee=True)
    setup.play(name, scene, setup.referee())
    state = setup.place.state
    (dispute,) = state.disputes
    assert (dispute.fault, dispute.level, dispute.ground) == (Fault.PROVER, 1, "leaf")
    assert dispute.high - dispute.low == 1
    assert DECEPTIONS[name].operator in setup.reason()
    assert state.claims[0].status is Status.SLASHED
    assert state.paid_out == state.rules.prover_bond // 2 + state.rules.challenger_bond + state.rules.deposit
    kinds = [entry.move.kind for entry in setup.place.entries()]
    assert (kinds[:2], kinds[-2:]) == (["post", "contest"], ["rule", "withdraw"])
    assert "descend" in kinds


@pytest.mark.parametrize("name", ["honest-step", "honest-call"])
def test_an_honest_prover_that_is_accused_gets_the_accusers_bond(tmp_path: Path, scene: Scene, name: str) -> None:
    setup = DisputeSetup(tmp_path, with_referee=True)
    setup.play(name, scene, setup.referee())
    assert setup.place.state.disputes[0].fault is Fault.CHALLENGER
    assert setup.place.state.claims[0].status is Status.FINAL


def test_a_wrong_rate_is_convicted_by_evidence_that_every_coordinator_checks(tmp_path: Path, scene: Scene) -> None:
    """No referee and no committee: the challenger shows the conversion that is wrong."""
    setup = DisputeSetup(tmp_path, with_referee=False)
    setup.play("wrong-rate", scene, evidence=True)
    (prove,) = [entry.move for entry in setup.place.entries() if isinstance(entry.move, Prove)]
    assert prove.evidence.ground == "cast"
    assert setup.place.state.disputes[0].fault is Fault.PROVER


def test_without_evidence_members_decide(tmp_path: Path, scene: Scene) -> None:
    setup = DisputeSetup(tmp_path, with_referee=False, members=3)
    setup.play("swapped-layer", scene, setup.beacon(), *setup.members(), evidence=True)
    (dispute,) = setup.place.state.disputes
    assert dispute.rounds[0].votes == (Fault.PROVER,) * 3
    assert dispute.fault is Fault.PROVER
