"""Transactions that are stuck, lost, censored, cut short by a crash: each move is made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.journal import FeeRules
from tallystick.disputes.game.moves import Choose, Finalise, Pause, Protest
from tallystick.disputes.game.state import Phase
from tests.disputes.coordinators.ethereum.chain_game import SMALL, ChainGame
from tests.disputes.coordinators.ethereum.chains import KEYS, QUICK, Chain, claim, contest, running_chain

GWEI = 10**9


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


def journal_of(chain: Chain, role: str) -> Path:
    return chain.folder / f"31337-{KEYS[role].address}.jsonl"


def test_a_move_is_in_a_block_when_submit_returns_and_in_the_entries_when_it_is_final(chain: Chain) -> None:
    move = claim(chain)
    chain.at("prover").submit(move)
    assert chain.at("prover").entries() == ()
    chain.final()
    assert [entry.move for entry in chain.at("prover").entries()] == [move]


def test_the_journal_is_empty_again_once_everything_is_final(chain: Chain) -> None:
    chain.at("prover").submit(claim(chain))
    assert journal_of(chain, "prover").stat().st_size
    assert journal_of(chain, "prover").stat().st_mode & 0o777 == 0o600
    chain.final()
    chain.at("prover").entries()
    assert not journal_of(chain, "prover").stat().st_size


def test_a_refused_move_costs_no_transaction(chain: Chain) -> None:
    chain.at("prover").submit(claim(chain))
    chain.final()
    before = chain.transactions("prover")
    with pytest.raises(RuleError) as refused:
        chain.at("prover").submit(Finalise(actor=KEYS["prover"].address, claim=0))
    assert refused.value.code == "early"
    assert chain.transactions("prover") == before


def test_the_same_move_submitted_again_before_it_is_final_is_one_transaction(chain: Chain) -> None:
    move = claim(chain)
    for _ in range(3):
        chain.at("prover").submit(move)
    chain.anew("prover").submit(move)
    chain.final()
    chain.anew("prover").submit(move)  # closed as final within this very call
    assert len(chain.at("prover").entries()) == 1
    chain.at("prover").submit(claim(chain))
    chain.final()
    assert len(chain.at("prover").entries()) == 2


def test_a_stuck_move_is_sent_again_with_its_number_and_a_higher_fee(chain: Chain) -> None:
    chain.node.ask("evm_setAutomine", False)
    chain.at("prover").submit(claim(chain))
    [stuck] = chain.pool()
    for _ in range(3):
        drop_all(chain)
        chain.node.mine()
    chain.at("prover").entries()
    [again] = chain.pool()
    assert again["nonce"] == stuck["nonce"]
    assert again["input"] == stuck["input"]
    for fee in ("maxFeePerGas", "maxPriorityFeePerGas"):
        assert int(again[fee], 16) * 8 >= int(stuck[fee], 16) * 9
    chain.final()
    assert len(chain.at("prover").entries()) == 1


def test_a_move_that_is_priced_out_gets_in_by_offering_more(chain: Chain) -> None:
    chain.node.ask("evm_setAutomine", False)
    chain.at("prover").submit(claim(chain))
    for _ in range(8):
        chain.node.ask("anvil_setNextBlockBaseFeePerGas", hex(60 * GWEI))
        chain.node.mine()
        chain.at("prover").entries()
    chain.final()
    chain.final()
    assert len(chain.at("prover").entries()) == 1
    assert len(chain.receipts("prover")) == 2


def test_no_offer_passes_the_highest_fee_that_is_allowed(tmp_path: Path) -> None:
    low = replace(QUICK, sending=replace(QUICK.sending, fees=FeeRules(fee_max=20 * GWEI)))
    with running_chain(tmp_path) as chain:
        chain.node.ask("evm_setAutomine", False)
        poor = chain.anew("prover", low)
        poor.submit(claim(chain))
        for _ in range(12):
            chain.node.ask("anvil_setNextBlockBaseFeePerGas", hex(60 * GWEI))
            chain.node.mine()
            poor.entries()
        assert all(int(each["maxFeePerGas"], 16) <= 20 * GWEI for each in chain.pool())
        chain.final()
        assert poor.entries() == ()
        chain.node.ask("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
        chain.final()
        poor.entries()
        chain.final()
        assert len(poor.entries()) == 1


def test_a_move_that_nobody_mines_for_many_blocks_arrives_when_one_does(chain: Chain) -> None:
    """Censored: every node drops it, block after block."""
    chain.node.ask("evm_setAutomine", False)
    chain.at("prover").submit(claim(chain))
    for _ in range(20):
        drop_all(chain)
        chain.node.mine()
        chain.at("prover").entries()
    chain.final()
    chain.final()
    assert len(chain.at("prover").entries()) == 1
    assert [nonce for nonce, _ in chain.receipts("prover")] == [0, 1]


def test_a_missing_number_below_a_waiting_move_is_filled(chain: Chain) -> None:
    """A nonce gap: the second transaction cannot be mined before the first one, which is lost for good."""
    chain.node.ask("evm_setAutomine", False)
    first, second = claim(chain), claim(chain)
    chain.at("prover").submit(first)
    chain.at("prover").submit(second)
    lose_first_line(journal_of(chain, "prover"))
    drop_all(chain)
    chain.anew("prover").entries()
    chain.final()
    chain.final()
    assert [entry.move for entry in chain.anew("prover").entries()] == [second]
    assert chain.transactions("prover") == 3


def test_a_number_used_elsewhere_is_given_up_and_the_move_made_under_another(chain: Chain) -> None:
    chain.node.ask("evm_setAutomine", False)
    move = claim(chain)
    chain.at("prover").submit(move)
    [ours] = chain.pool()
    drop_all(chain)
    raw, _ = KEYS["prover"].sign_transaction(
        {
            "type": 2,
            "chainId": 31337,
            "nonce": int(ours["nonce"], 16),
            "to": bytes(20),
            "value": 1,
            "gas": 21_000,
            "maxFeePerGas": 100 * GWEI,
            "maxPriorityFeePerGas": 3 * GWEI,
        }
    )
    chain.node.ask("eth_sendRawTransaction", raw)
    chain.final()
    chain.at("prover").submit(move)
    chain.final()
    assert [entry.move for entry in chain.at("prover").entries()] == [move]


def test_two_different_moves_for_one_turn_are_never_under_way_together(chain: Chain) -> None:
    game = ChainGame(chain)
    prover, challenger = game.prover(SMALL), game.challenger()
    game.play(prover, until=lambda state: bool(state.claims))
    game.play(challenger, until=lambda state: bool(state.disputes))
    game.play(prover, until=lambda state: state.disputes[0].phase is Phase.CHOOSE)
    chain.node.ask("evm_setAutomine", False)
    turn, actor = chain.at("challenger").state.disputes[0].turn, KEYS["challenger"].address
    chain.at("challenger").submit(Choose(actor=actor, dispute=0, turn=turn, child=0))
    for other in (Choose(actor=actor, dispute=0, turn=turn, child=1), Protest(actor=actor, dispute=0, turn=turn)):
        with pytest.raises(RuleError) as refused:
            chain.anew("challenger").submit(other)
        assert refused.value.code == "turn"
    assert len(chain.pool()) == 1
    chain.anew("challenger").submit(Choose(actor=actor, dispute=0, turn=turn, child=0))
    assert len(chain.pool()) == 1


def test_a_transaction_that_a_block_refuses_is_a_refusal(chain: Chain) -> None:
    """Two challengers' moves pass the simulation, and the guardian's pause is mined before them."""
    chain.at("prover").submit(claim(chain))
    chain.final()
    chain.node.ask("evm_setAutomine", False)
    chain.at("challenger").submit(contest(chain))
    chain.node.ask("anvil_setNextBlockBaseFeePerGas", hex(GWEI))
    rich = replace(QUICK, sending=replace(QUICK.sending, fees=FeeRules(tip_min=50 * GWEI)))
    chain.anew("guardian", rich).submit(Pause(actor=KEYS["guardian"].address))
    chain.node.mine()
    assert chain.receipts("challenger") == [(0, False)]
    with pytest.raises(RuleError) as refused:
        chain.at("challenger").submit(contest(chain))
    assert refused.value.code == "paused"
    chain.final()
    assert [entry.move.kind for entry in chain.at("challenger").entries()] == ["post", "pause"]


def drop_all(chain: Chain) -> None:
    for each in chain.pool():
        chain.node.ask("anvil_dropTransaction", each["hash"])


def lose_first_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
