"""One whole dispute on the contract as it is deployed: the log rebuilds the game, and the money goes where it says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from web3 import Web3
from web3.providers.eth_tester import EthereumTesterProvider

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.encoding import (
    EVIDENCE,
    encode_call,
    encode_deployment,
    encode_move,
    rules_to_abi,
)
from tallystick.disputes.game.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Finalise,
    Pinpoint,
    Prove,
    Reveal,
    Settle,
    Unseal,
    Withdraw,
)
from tallystick.disputes.game.state import ELEMENT_MAX, RESULT_MAX, Phase, Rules, Status, broken
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.deployed import Chain, Deployed, InProcessChain
from tests.disputes.coordinators.ethereum.gas import faulty_tree
from tests.disputes.coordinators.ethereum.operator_trees import DeepTree, OperatorTree, cut, operator_tree
from tests.disputes.coordinators.ethereum.play import PLANTED, SALT, Play
from tests.support.ethereum_node import LocalNode

CODE_BYTES_MAX = 24_576  # EIP-170
FOUNDING_BYTES_MAX = 49_152  # EIP-3860


@pytest.fixture
def chain(anvil: LocalNode) -> LocalNode:
    return anvil


@pytest.fixture
def play(chain: Chain | LocalNode) -> Play:
    return play_on(chain)


@pytest.fixture(params=["in process", "node"])
def play_anywhere(request: pytest.FixtureRequest) -> Play:
    """On both kinds of chain."""
    if request.param == "in process":
        return play_on(InProcessChain(Web3(EthereumTesterProvider())))
    return play_on(request.getfixturevalue("anvil"))


def play_on(chain: Chain | LocalNode) -> Play:
    """Accounts 0 and 1 are the parties, the next seven the members."""
    prover, challenger, *members = [str(each).lower() for each in chain.web3.eth.accounts[:9]]
    return Play(Deployed(chain, rules(members, prover)), prover, challenger)


def rules(members: list[str], planter: str, **changes: Any) -> Rules:
    given: dict[str, Any] = {"ways": 4, "committee": 3, "appeals": 1, "treasury": "0x" + "7e" * 20}
    return Rules(**{**given, "members": tuple(members), "planter": planter, **changes})


def records() -> tuple[OperatorTree, OperatorTree]:
    """A run of 9 records, and the 17 operators of one of them."""
    rng = random.Random(3)
    return operator_tree(rng, 9), operator_tree(rng, 17)


def test_a_dispute_from_the_claim_to_the_money(play_anywhere: Play) -> None:
    play = play_anywhere
    contract, (run, step) = play.contract, records()
    play.enlist()
    claim = play.post(run, levels=2)
    dispute = play.contest(claim)
    play.bisect(dispute, run, place=6)
    play.descend(dispute, run, step)
    play.bisect(dispute, step, place=11)
    play.reveal(dispute, step)
    contract.make(Pinpoint(actor=play.challenger, dispute=dispute, result=2, element=ELEMENT_MAX))
    play.convene(dispute)
    contract.make(Pinpoint(actor=play.challenger, dispute=dispute, result=RESULT_MAX, element=3))
    assert play.dispute(dispute).element == (RESULT_MAX, 3)
    play.draw(dispute)
    play.vote(dispute, Fault.CHALLENGER)
    seats = 7
    price = contract.state.rules.appeal_bond + contract.state.rules.vote_fee * seats
    contract.make(Appeal(actor=play.challenger, dispute=dispute, value=price))
    play.draw(dispute)
    play.vote(dispute, Fault.PROVER)
    assert play.dispute(dispute).phase is Phase.SETTLED
    assert contract.state.claims[claim].status is Status.SLASHED
    contract.make(Unseal(actor=play.prover, dispute=dispute, answer=PLANTED, salt=SALT))
    agrees(contract)
    contract.chain.advance(contract.state.rules.withdrawal_delay)
    for party in (play.challenger, *contract.state.rules.members):
        contract.make(Withdraw(actor=party))
    agrees(contract)
    stakes = sum(member.stake for member in contract.state.members.values())
    assert list(contract.state.owed) == [contract.state.rules.treasury]
    assert contract.balance == stakes + sum(each.amount for each in contract.state.owed[contract.state.rules.treasury])


def test_a_finding_that_nobody_appeals_against(play: Play) -> None:
    contract, (run, _) = play.contract, records()
    play.enlist()
    dispute = play.contest(play.post(run, levels=1))
    play.bisect(dispute, run, place=0)
    play.reveal(dispute, run)
    play.convene(dispute)
    play.draw(dispute)
    play.vote(dispute, Fault.NOBODY)
    with pytest.raises(RuleError, match="early"):
        contract.make(Settle(actor=play.prover, dispute=dispute))
    contract.chain.advance(contract.state.rules.appeal_window)
    contract.make(Settle(actor=play.prover, dispute=dispute))
    agrees(contract)


def test_the_deepest_tree_is_bisected(play: Play) -> None:
    contract = play.contract
    tree = DeepTree(2**32, records()[0].reader.hashes(0, 0, 1)[0])
    dispute = play.contest(play.post(tree, levels=1))
    play.bisect(dispute, tree, place=2**32 - 1)
    play.reveal(dispute, tree)
    assert play.dispute(dispute).low == 2**32 - 1
    agrees(contract)


def test_a_move_is_refused_with_the_code_of_python(play_anywhere: Play) -> None:
    play = play_anywhere
    contract, (run, _) = play.contract, records()
    dispute = play.contest(play.post(run, levels=1))
    wrong = {
        "phase": Choose(actor=play.challenger, dispute=dispute, turn=0, child=0),
        "unknown": Concede(actor=play.prover, dispute=dispute + 1),
        "early": Finalise(actor=play.prover, claim=0),
        "nothing": Withdraw(actor=play.prover),
    }
    for code, move in wrong.items():
        with pytest.raises(RuleError) as refused:
            contract.make(move)
        assert refused.value.code == code
    play.partition(dispute, run)
    agrees(contract)


def test_a_claim_becomes_final(play_anywhere: Play) -> None:
    play = play_anywhere
    contract, (run, _) = play.contract, records()
    claim = play.post(run, levels=2)
    contract.chain.advance(contract.state.rules.challenge_window)
    contract.make(Finalise(actor=play.challenger, claim=claim))
    contract.chain.advance(contract.state.rules.withdrawal_delay)
    contract.make(Withdraw(actor=play.prover))
    assert contract.balance == 0
    agrees(contract)


def test_the_log_says_each_move_in_one_spelling(play: Play) -> None:
    """What an opponent writes in a way that the contract reads, the log tells in a way that everybody reads."""
    contract, (run, _) = play.contract, records()
    claim = play.post(run, levels=1)
    move = contest_of(play, claim)
    contract.send(encode_move(move) + b"bytes that nobody asked for", move.actor, move.value)
    dispute = len(contract.state.disputes) - 1
    play.bisect(dispute, run, place=0)
    opened = cut(run, 0)
    reveal = Reveal(
        actor=play.prover, dispute=dispute, turn=4, leaf=opened.leaf, proof=opened.proof, data=play.digest()
    )
    contract.send(crooked(encode_move(reveal)), play.prover)
    assert play.dispute(dispute).data == reveal.data
    agrees(contract)


@pytest.mark.parametrize("ground", ["edge", "cast", "product"])
def test_evidence_is_taken_only_without_surplus(play: Play, ground: str) -> None:
    """What nobody looks at could be unreadable for the other party, who reads the log."""
    contract, tree = play.contract, faulty_tree(ground, size=5)
    dispute = play.contest(play.post(tree, levels=1))
    play.bisect(dispute, tree, place=4)
    play.reveal(dispute, tree)
    shown = tree.evidence(4)
    assert shown is not None
    offence, record, writers, tensors, element = EVIDENCE.to_abi(shown.to_json())
    junk_writer, junk_tensor = (record, 2**40 - 1, [bytes(32)] * 70), (5, [2**64 - 1] * 9, b"")
    surplus = [
        (offence, record, [*writers, junk_writer], tensors, element),
        (offence, record, writers, [*tensors, junk_tensor], element),
        (offence, record, writers, tensors, 2**60),
    ]
    for evidence in surplus:
        with pytest.raises(RuleError, match=r"evidence|malformed"):
            contract.send(encode_call("prove", [dispute, evidence]), play.challenger)
    contract.make(Prove(actor=play.challenger, dispute=dispute, evidence=shown))
    assert play.dispute(dispute).fault is Fault.PROVER
    agrees(contract)


def test_numbers_that_a_move_does_not_hold_are_not_taken_for_an_element(play: Play) -> None:
    """What the log would carry and no reader could read."""
    contract, tree = play.contract, faulty_tree("edge", size=5)
    dispute = play.contest(play.post(tree, levels=1))
    play.bisect(dispute, tree, place=4)
    play.reveal(dispute, tree)
    right = encode_call("pinpoint", [dispute, RESULT_MAX, ELEMENT_MAX])
    for result, element in ((RESULT_MAX + 1, 0), (0, ELEMENT_MAX + 1)):
        with pytest.raises(RuleError, match="reverted"):
            contract.send(right[:36] + result.to_bytes(32) + element.to_bytes(32), play.challenger)
    contract.send(right, play.challenger)
    assert play.dispute(dispute).element == (RESULT_MAX, ELEMENT_MAX)


def test_the_code_fits_on_a_chain(play: Play) -> None:
    assert 0 < len(play.contract.code) <= CODE_BYTES_MAX
    everybody = ["0x" + number.to_bytes(20).hex() for number in range(1, 256)]
    assert len(encode_deployment(rules(everybody, everybody[0]), everybody[1])) <= FOUNDING_BYTES_MAX


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        (16, 1, "ways"),
        (16, 33, "ways"),
        (17, 0, "committee"),
        (18, 5, "appeals"),
        (5, 1001, "reward"),
        (6, 0, "window"),
    ],
    ids=["one way", "too many ways", "no committee", "too many appeals", "reward", "no window"],
)
def test_rules_without_sense_found_no_contract(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, place: int, value: int, code: str
) -> None:
    sane = rules([], "0x" + "01" * 20)
    values = list(rules_to_abi(sane))
    values[place] = value
    monkeypatch.setattr("tallystick.disputes.coordinators.ethereum.encoding.rules_to_abi", lambda _: tuple(values))
    with pytest.raises(RuleError) as refused:
        Deployed(chain, sane)
    assert refused.value.code == code


def contest_of(play: Play, claim: int) -> Contest:
    rules, size = play.contract.state.rules, play.contract.state.claims[claim].size
    value = rules.challenger_bond + rules.deposit
    return Contest(actor=play.challenger, value=value, claim=claim, low=0, high=size)


def crooked(call: bytes) -> bytes:
    """The same reveal, with its proof behind a gap and with dirt behind the empty attestation."""
    words = [call[4 + i : 36 + i] for i in range(0, len(call) - 4, 32)]
    assert int.from_bytes(words[3]) == 6 * 32
    length = int.from_bytes(words[6])
    gap, proof, attestation = [b"\xff" * 32], words[6 : 7 + length], [bytes(32), b"\xff" * 32]
    places = [(7 * 32).to_bytes(32), words[4], ((8 + length) * 32).to_bytes(32)]
    return call[:4] + b"".join([*words[:3], *places, *gap, *proof, *attestation])


def agrees(contract: Deployed) -> None:
    """The contract holds and says what the game says that its log tells."""
    state = contract.state
    assert list(broken(state)) == []
    assert contract.balance == state.balance
    assert contract.ask("moves") == (contract.moves,)
    for number, claim in enumerate(state.claims):
        prover, deadline, status, levels, bond, size, disputes, root, seal = contract.ask("claims", number)
        found = replace(claim, deadline=deadline, levels=levels, bond=bond, size=size, disputes=disputes)
        assert (found, prover, list(Status)[status]) == (claim, claim.prover, claim.status)
        assert (root.hex(), seal.hex()) == (claim.root, claim.seal)
    for number, dispute in enumerate(state.disputes):
        phase, _, turn, deadline, _ = contract.ask("disputeAt", number)
        assert (list(Phase)[phase], turn, deadline) == (dispute.phase, dispute.turn, dispute.deadline)
    for party, credits in state.owed.items():
        [owed] = contract.ask("creditsOf", party)
        assert owed == tuple((each.amount, each.ripe) for each in credits)
