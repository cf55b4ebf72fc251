"""The two disputes of the demonstration, played by the parties' programs on a real Ethereum node, to the last coin.

A provider answers with another layer than it promised; another one takes one training step at a wrong learning rate.
Each is contested, bisected to the operator and ruled upon, and the bond moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.disputes.coordinators.coordinator import Manifest, MoveEntry
from tallystick.disputes.evidence.convicting import find_evidence
from tallystick.disputes.game.game import CAST
from tallystick.disputes.game.moves import Prove, Reveal
from tallystick.disputes.game.protocols import Trace
from tallystick.disputes.game.state import State, Status
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.player import Player
from tallystick.disputes.parties.prover import offer_of
from tallystick.formats.openings import OpenedOperator
from tallystick.formats.records import OperatorRecord
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.chain_game import ChainGame, is_settled
from tests.disputes.coordinators.ethereum.chains import KEYS, MEMBERS, Chain, running_chain
from tests.support.attacks.disputes.scene import Scene

GWEI = 10**9


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """An honest training and honest calls, of seconds."""
    return Scene.make(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path, ways=8, referee=None) as found:
        yield found


@dataclass
class Case:
    """A chain, and the programs that play a dispute over real work on it."""

    chain: Chain
    run: Path
    trace: Trace

    def __post_init__(self) -> None:
        self.game = ChainGame(self.chain)
        self.before = {role: self.money(role) + self.chain.fees(role) for role in KEYS}

    def money(self, role: str) -> int:
        return int(self.chain.node.ask("eth_getBalance", KEYS[role].address, "latest"), 16)

    def prover(self) -> Player:
        offer = offer_of(self.run)
        return self.game.player("prover", lambda cache, work: programs.prover(cache, work, lambda _: self.trace, offer))

    def challenger(self) -> Player:
        from tallystick.disputes.evidence.doubting import doubter_for
        from tallystick.disputes.evidence.judging import DisputeJudge

        doubter = doubter_for()
        return self.game.player(
            "challenger",
            lambda cache, work: programs.challenger(cache, work, lambda _: doubter, DisputeJudge(), find_evidence),
        )

    def members(self) -> list[Player]:
        from tallystick.disputes.evidence.judging import DisputeJudge

        return [
            self.game.player(name, lambda cache, work: programs.member(cache, work, DisputeJudge()))
            for name in MEMBERS[:3]
        ]

    def play(self, *players: Player) -> State:
        """To the end of the dispute, and on until everybody at the table has taken out what it is owed."""
        self.game.play(*players, until=is_settled)
        parties = [player.coordinator.party for player in players]
        return self.game.play(*players, until=lambda state: is_settled(state) and not state.owed.keys() & parties)

    def entries(self) -> list[MoveEntry]:
        return list(self.chain.anew("treasury").entries())

    def lost(self, role: str) -> int:
        """What a role has less than before, in gwei, but for what its transactions cost."""
        return (self.before[role] - self.money(role) - self.chain.fees(role)) // GWEI


def check_the_bond_moved(case: Case, state: State, seats: int) -> None:
    """The claim is slashed; the prover's bond is the challenger's reward, the votes' fees and the treasury's rest."""
    rules, claim = case.chain.at("treasury").rules, state.claims[0]
    assert (claim.status, claim.bond) == (Status.SLASHED, 0)
    assert [dispute.fault for dispute in state.disputes] == [Fault.PROVER]
    spent = seats * rules.vote_fee
    reward = (rules.prover_bond - spent) * rules.reward // 1000
    assert case.lost("prover") == rules.prover_bond
    assert case.lost("challenger") == -reward
    assert [case.lost(name) - rules.stake for name in MEMBERS[:seats]] == [-rules.vote_fee] * seats
    rest = sum(credit.amount for credit in state.owed[KEYS["treasury"].address])
    assert rest == rules.prover_bond - spent - reward
    held = int(case.chain.node.ask("eth_getBalance", case.chain.place.contract, "latest"), 16)
    assert held == state.balance * GWEI == (rest + seats * rules.stake) * GWEI


def test_a_swapped_layer_is_bisected_to_its_operator_and_the_bond_moves(
    chain: Chain, scene: Scene, tmp_path: Path
) -> None:
    from tallystick.tally.attacks.provers import forge_swapped_layer, swapped_layer_trace
    from tests.support.attacks.disputes.scene import WEIGHT

    forge_swapped_layer(scene.calls, tmp_path / "forged", WEIGHT)
    case = Case(chain, tmp_path / "forged", swapped_layer_trace(tmp_path / "forged", tmp_path / "trace", WEIGHT))
    state = case.play(case.prover(), case.challenger(), *case.members())
    assert found_operator(case).operator == "aten.linear.default"
    check_the_bond_moved(case, state, seats=3)
    kinds = [entry.move.kind for entry in case.entries()]
    assert kinds.count("vote") == kinds.count("disclose") == 3
    assert [kind for kind in kinds if kind in ("timeout", "concede", "prove", "rule")] == []


def test_a_step_at_a_wrong_learning_rate_is_convicted_by_the_contract_itself(
    chain: Chain, scene: Scene, tmp_path: Path
) -> None:
    from tallystick.tally.attacks.provers import forge_wrong_rate, wrong_rate_trace
    from tests.support.attacks.disputes.scene import STEP

    forge_wrong_rate(scene.run, tmp_path / "forged", STEP)
    case = Case(chain, tmp_path / "forged", wrong_rate_trace(tmp_path / "forged", tmp_path / "trace", STEP))
    state = case.play(case.prover(), case.challenger())
    assert found_operator(case).operator == CAST
    check_the_bond_moved(case, state, seats=0)
    [proved] = [entry.move for entry in case.entries() if isinstance(entry.move, Prove)]
    assert (proved.actor, proved.evidence.ground) == (KEYS["challenger"].address, "cast")


@pytest.mark.parametrize("work", ["run", "calls"])
def test_honest_work_is_contested_by_nobody_and_the_bond_goes_back(
    chain: Chain, scene: Scene, tmp_path: Path, work: str
) -> None:
    from tallystick.disputes.evidence.statement import statement_at
    from tallystick.disputes.evidence.traces import trace_of

    run = scene.run if work == "run" else scene.calls
    case = Case(chain, run, trace_of(statement_at(run), tmp_path / "trace"))
    players = (case.prover(), case.challenger())
    state = case.game.play(*players)
    assert [claim.status for claim in state.claims] == [Status.FINAL]
    assert [entry.move.kind for entry in case.entries()] == ["post", "finalise", "withdraw"]
    assert case.lost("prover") == case.lost("challenger") == 0


def found_operator(case: Case) -> OperatorRecord:
    """The operator that the prover opened at the end."""
    [revealed] = [entry.move for entry in case.entries() if isinstance(entry.move, Reveal)]
    manifest = Manifest.from_bytes(case.game.board.get(revealed.data), "manifest")
    return OpenedOperator.from_bytes(case.game.board.get(manifest.files["operator.json"]), "operator").record
