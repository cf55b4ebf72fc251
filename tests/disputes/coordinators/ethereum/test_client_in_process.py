"""The client at a contract on a chain inside this process, where no node is installed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.client import EthereumCoordinator, deploy
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoints
from tallystick.disputes.game.moves import Contest, Finalise, Post, Timeout, Withdraw
from tallystick.disputes.game.state import Status
from tests.disputes.coordinators.ethereum.chains import ETHER, KEYS, QUICK, rules
from tests.disputes.coordinators.ethereum.in_process import InProcess

AT_ONCE = replace(QUICK, depth=0)


@dataclass
class World:
    """A chain, a contract on it, and connections."""

    server: InProcess
    connections: dict[str, EthereumCoordinator]

    def post(self) -> Post:
        connection = self.connections["prover"]
        return Post(
            actor=connection.party,
            value=connection.rules.prover_bond,
            root="11" * 32,
            size=9,
            statement=digest("blob", b"statement"),
            seal="00" * 32,
        )

    def contest(self) -> Contest:
        connection = self.connections["challenger"]
        value = connection.rules.challenger_bond + connection.rules.deposit
        return Contest(actor=connection.party, value=value, claim=0, low=0, high=9)


@pytest.fixture
def world(tmp_path: Path) -> World:
    server = InProcess()
    roles = ("prover", "challenger", "treasury")
    for role in roles:
        server.fund(KEYS[role].address, 10 * ETHER)
    endpoints = Endpoints([server], QUICK.patience)
    place = deploy(endpoints, rules(), KEYS["prover"], None, tmp_path, AT_ONCE)
    return World(server, {role: EthereumCoordinator(endpoints, place, KEYS[role], tmp_path, AT_ONCE) for role in roles})


def test_a_claim_is_posted_contested_and_lost_by_silence(world: World) -> None:
    prover, challenger = world.connections["prover"], world.connections["challenger"]
    prover.submit(world.post())
    challenger.submit(world.contest())
    world.server.advance(prover.rules.clock)
    challenger.submit(Timeout(actor=challenger.party, dispute=0))
    assert challenger.state.claims[0].status is Status.SLASHED
    world.server.advance(prover.rules.withdrawal_delay)
    challenger.submit(Withdraw(actor=challenger.party))
    assert [entry.move.kind for entry in challenger.entries()] == ["post", "contest", "timeout", "withdraw"]
    held = int(world.server.ask("eth_getBalance", challenger.contract, "latest"), 16)
    assert held == challenger.state.balance * 10**9


def test_refusals_have_the_codes_of_the_rules_and_cost_nothing(world: World) -> None:
    prover = world.connections["prover"]
    prover.submit(world.post())
    before = world.server.ask("eth_getTransactionCount", prover.party, "latest")
    for move, code in (
        (Finalise(actor=prover.party, claim=0), "early"),
        (Finalise(actor=prover.party, claim=1), "unknown"),
    ):
        with pytest.raises(RuleError) as refused:
            prover.submit(move)
        assert refused.value.code == code
    assert world.server.ask("eth_getTransactionCount", prover.party, "latest") == before


def test_a_move_whose_block_is_undone_is_made_again(world: World) -> None:
    prover, challenger = world.connections["prover"], world.connections["challenger"]
    prover.submit(world.post())
    careful = replace(AT_ONCE, depth=3)
    connection = EthereumCoordinator(
        challenger.endpoints,
        challenger.place,
        KEYS["challenger"],
        Path(challenger._sender.journal.path).parent,
        careful,
    )
    before = world.server.snapshot()
    connection.submit(world.contest())
    world.server.revert(before)
    world.server.mine()
    assert [entry.move.kind for entry in prover.entries()] == ["post"]
    connection.entries()
    world.server.mine(3)
    assert [entry.move.kind for entry in connection.entries()] == ["post", "contest"]
