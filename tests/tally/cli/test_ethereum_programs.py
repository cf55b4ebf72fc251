"""A dispute on a real Ethereum node between processes of their own: deployed, bisected, ruled, and the bond moves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")
pytest.importorskip("web3")

from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.ethereum.contract import ContractLocation
from tallystick.disputes.game.moves import Concede
from tallystick.disputes.game.state import Rules, Status
from tests.disputes.coordinators.ethereum.chains import ETHER, KEYS, QUICK, Chain, claim, contest
from tests.recording.serving.conftest import loopback_only
from tests.support.ethereum_node import LocalNode, running_node
from tests.tally.cli.programs import Programs, await_, running
from tests.tally.cli.test_parties import calls

Tally = Callable[..., Any]
__all__ = ["calls", "loopback_only"]
GWEI = 10**9
PARTIES = ("prover", "challenger", "referee", "treasury")
OFFICES = ("guardian", "planter")
RULES = {
    "withdrawal_delay": 1,
    **{role: KEYS[role].address for role in ("referee", "treasury", *OFFICES)},
}


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with running(tmp_path / "programs") as found:
        yield found


@pytest.fixture
def node() -> Iterator[LocalNode]:
    """A chain whose blocks are final after two more; only the parties of this test hold anything there."""
    try:
        with running_node("--slots-in-an-epoch", "1") as found:
            for role in (*PARTIES, *OFFICES):
                found.ask("anvil_setBalance", KEYS[role].address, hex(ETHER))
            yield found
    except UnavailableError as error:
        if "anvil" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def chain(node: LocalNode, programs: Programs) -> Chain:
    """The contract that `tally contract deploy` makes."""
    for role in (*PARTIES, *OFFICES):
        KEYS[role].write(programs.folder / role)
    (programs.folder / "rules.json").write_text(json.dumps(RULES))
    owner = ("--key", programs.folder / "treasury", "--rules", programs.folder / "rules.json")
    place = programs.tell("contract", "deploy", "--rpc", node.url, *owner).strip()
    node.mine(3)
    return Chain(node, programs.folder / "chain", ContractLocation.parse(place), QUICK)


def test_separate_programs_play_a_dispute_to_its_end_and_the_bond_moves(
    tally: Tally, programs: Programs, chain: Chain, calls: Path
) -> None:
    (programs.folder / "board").mkdir()
    before = {role: money(chain, role) for role in PARTIES}

    def at(role: str) -> tuple[object, ...]:
        key, board = programs.folder / role, programs.folder / "board"
        return ("--coordinator", chain.place, "--key", key, "--board", board, "--poll", 0.2)

    prover = programs.start("prover", "prover", calls / "forged", *at("prover"))
    challenger = programs.start("challenger", "challenger", "--watch", "--whole", *at("challenger"))
    referee = programs.start("referee", "rule", "--watch", *at("referee"))
    watching = chain.at("treasury")
    await_(lambda: bool(watching.state.disputes), programs, chain.node.mine)
    prover.kill_and_start_again()
    await_(lambda: prover.process.poll() is not None, programs, chain.node.mine)
    assert prover.process.returncode == 1, prover.err
    await_(lambda: not watching.state.owed.keys() & {KEYS["challenger"].address}, programs, chain.node.mine)
    assert [challenger.interrupt(), referee.interrupt()] == [0, 0]

    state, rules = watching.state, watching.rules
    reward = rules.prover_bond * rules.reward // 1000
    gained = {role: money(chain, role) - before[role] for role in PARTIES}
    assert gained == {"prover": -rules.prover_bond, "challenger": reward, "referee": 0, "treasury": 0}
    assert (state.claims[0].status, state.balance) == (Status.SLASHED, rules.prover_bond - reward)
    kinds = Counter(entry.move.kind for entry in chain.anew("treasury").entries())
    assert (kinds["post"], kinds["contest"], kinds["rule"]) == (1, 1, 1)
    check_what_is_shown(tally, programs, chain, rules)


def check_what_is_shown(tally: Tally, programs: Programs, chain: Chain, rules: Rules) -> None:
    """Whoever looks sees the same, and why it was ruled so where the board is known."""
    status = json.loads(programs.tell("dispute", "status", "--coordinator", chain.place, "--json"))
    assert [(claim["status"], claim["bond"]) for claim in status["claims"]] == [("slashed", 0)]
    assert [(each["phase"], each["fault"]) for each in status["disputes"]] == [("settled", "prover")]
    shown = tally("dispute", "show", 0, "--coordinator", chain.place, "--board", programs.folder / "board").out
    assert "finds prover at fault" in shown
    assert "because: " in shown
    contract = json.loads(tally("contract", "show", chain.place).out)
    assert (contract["chain"], Rules.from_json(contract["rules"], "rules")) == (chain.at("treasury").chain_id, rules)


def test_a_contract_is_not_deployed_by_an_account_without_money(tally: Tally, node: LocalNode, tmp_path: Path) -> None:
    KEYS["board"].write(tmp_path / "poor")
    result = tally("contract", "deploy", "--rpc", node.url, "--key", tmp_path / "poor")
    assert result.code == 2
    assert f"{KEYS['board'].address} holds nothing on this chain" in result.complaint


def test_the_guardian_of_a_contract_pauses_and_resumes_it(tally: Tally, programs: Programs, chain: Chain) -> None:
    guardian = ("--coordinator", chain.place, "--key", programs.folder / "guardian")
    result = tally("dispute", "resume", *guardian)
    assert (result.code, "running" in result.complaint) == (2, True)
    result = tally("dispute", "pause", "--coordinator", chain.place, "--key", programs.folder / "prover")
    assert (result.code, "actor" in result.complaint) == (2, True)
    assert tally("dispute", "pause", *guardian).out == "on its way\n"
    chain.final()
    shown = tally("dispute", "status", "--coordinator", chain.place, "--json").out
    assert 0 < json.loads(shown)["paused"] <= 3 * 86400
    assert tally("dispute", "resume", *guardian).out == "on its way\n"
    chain.final()
    shown = tally("dispute", "status", "--coordinator", chain.place, "--json").out
    assert json.loads(shown)["paused"] is None


def test_the_planter_unseals_a_claim_at_a_contract(tally: Tally, programs: Programs, chain: Chain) -> None:
    result = tally("dispute", "seal", KEYS["prover"].address, "--answer", "prover").out
    (_, seal), (_, salt) = (line.split() for line in result.splitlines())
    chain.at("prover").submit(claim(chain).model_copy(update={"seal": seal}))
    chain.final()
    chain.at("challenger").submit(contest(chain))
    chain.final()
    shown = ("--answer", "prover", "--salt", salt, "--coordinator", chain.place)
    result = tally("dispute", "unseal", 0, *shown, "--key", programs.folder / "planter")
    assert (result.code, "phase" in result.complaint) == (2, True)
    chain.at("prover").submit(Concede(actor=KEYS["prover"].address, dispute=0))
    chain.final()
    result = tally("dispute", "unseal", 0, *shown, "--key", programs.folder / "referee")
    assert (result.code, "actor" in result.complaint) == (2, True)
    assert tally("dispute", "unseal", 0, *shown, "--key", programs.folder / "planter").out == "on its way\n"
    chain.final()
    assert chain.anew("treasury").state.disputes[0].is_unsealed


def money(chain: Chain, role: str) -> int:
    """What an account has, in gwei, as if its transactions had cost nothing."""
    held = int(chain.node.ask("eth_getBalance", KEYS[role].address, "latest"), 16)
    return (held + chain.fees(role)) // GWEI
