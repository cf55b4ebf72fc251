"""What each function of the contract costs, on a local node with the default rules."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.ethereum.encoding import encode_move
from tallystick.disputes.game.game import convict
from tallystick.disputes.game.moves import (
    Appeal,
    Concede,
    Dismiss,
    Evidence,
    Finalise,
    Move,
    Pause,
    Pinpoint,
    Protest,
    Prove,
    Resume,
    Retire,
    Rule,
    Settle,
    Timeout,
    Unseal,
    Withdraw,
)
from tallystick.disputes.game.state import Clocks, Dispute, Phase, Rules
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.deployed import Chain, Deployed
from tests.disputes.coordinators.ethereum.operator_trees import DeepTree, OperatorTree, cut, operator_tree, root
from tests.disputes.coordinators.ethereum.play import PLANTED, SALT, Play
from tests.support.ethereum_node import LocalNode

STEPS, OPERATORS = 512, 1800
NODE_OPTIONS = ("--accounts", "32", "--timestamp", "1800000000")
ACCOUNTS = 32


@dataclass(frozen=True)
class Cost:
    """The gas of a transaction, and the bytes of its call; `case` says what it depends on."""

    function: str
    case: str
    gas: int
    call_bytes: int


def default_rules(parties: list[str]) -> Rules:
    """The default rules; accounts 0 to 4 have the other roles, the rest are members."""
    prover, _, referee, guardian, treasury, *members = parties
    return Rules(members=tuple(members), referee=referee, guardian=guardian, treasury=treasury, planter=prover)


class SteadyChain:
    """A node whose blocks are two seconds apart: they have the same hashes each time, and draw the same members."""

    def __init__(self, node: LocalNode) -> None:
        self.web3, self._node = node.web3, node
        node.ask("anvil_setBlockTimestampInterval", 2)

    def advance(self, seconds: int) -> None:
        """Let time pass, and mine a block."""
        now = self.web3.eth.get_block("latest")["timestamp"]
        self._node.ask("evm_setNextBlockTimestamp", now + seconds)
        self.mine()

    def mine(self, blocks: int = 1) -> None:
        """Mine empty blocks."""
        self._node.mine(blocks)


class Meter(Deployed):
    """A contract that writes down what each move cost the first time."""

    def __init__(self, chain: Chain, rules: Rules) -> None:
        super().__init__(chain, rules)
        self.costs = {("", "founding"): Cost("founding", f"{len(rules.members)} members", self.founding_gas, 0)}
        self.case = ""

    def make(self, move: Move, attestation: bytes = b"") -> None:
        """Make a move and note its cost."""
        super().make(move, attestation)
        cost = Cost(move.kind, self.case, self.gas, len(encode_move(move, attestation)))
        self.costs.setdefault((self.case, move.kind), cost)


def measure(node: LocalNode) -> list[Cost]:
    """The cost of every function, each in the cases that make a difference."""
    parties = [str(each).lower() for each in node.web3.eth.accounts[:ACCOUNTS]]
    contract = Meter(SteadyChain(node), default_rules(parties))
    play = Play(contract, parties[0], parties[1])
    for part in (_bisection, _committee, _convictions, _ends):
        part(contract, play)
    return sorted(contract.costs.values(), key=lambda cost: (cost.function, cost.case))


def _bisection(contract: Meter, play: Play) -> None:
    """A run of 512 steps, then 1,800 operators of one of them; the first move of a kind is the one that counts."""
    run, step = (
        DeepTree(size, operator_tree(random.Random(1), 1).reader.hashes(0, 0, 1)[0]) for size in (STEPS, OPERATORS)
    )
    contract.case = f"{STEPS} records"
    dispute = play.contest(play.post(run, levels=2))
    play.bisect(dispute, run, place=STEPS - 2)
    play.descend(dispute, run, step)
    contract.case = f"{OPERATORS} operators"
    play.bisect(dispute, step, place=OPERATORS - 2)
    play.reveal(dispute, step)
    contract.case = ""
    contract.make(Pinpoint(actor=play.challenger, dispute=dispute, result=0, element=31_234))
    contract.make(Rule(actor=_rules(contract).referee, dispute=dispute, fault=Fault.CHALLENGER, reason=play.digest()))


def _committee(contract: Meter, play: Play) -> None:
    """Seven members, and after an appeal fifteen."""
    contract.case = ""
    play.enlist()
    dispute = _opened(contract, play, faulty_tree("edge"), 0)
    contract.case = "7 seats"
    play.convene(dispute)
    play.draw(dispute)
    play.vote(dispute, Fault.CHALLENGER)
    price = _rules(contract).appeal_bond + _rules(contract).vote_fee * 15
    contract.make(Appeal(actor=play.challenger, dispute=dispute, value=price))
    contract.case = "15 seats"
    play.draw(dispute)
    play.vote(dispute, Fault.NOBODY)
    contract.case = ""
    contract.chain.advance(_rules(contract).appeal_window)
    contract.make(Settle(actor=play.prover, dispute=dispute))
    contract.case = "22 votes"
    contract.make(Unseal(actor=play.prover, dispute=dispute, answer=PLANTED, salt=SALT))


def _convictions(contract: Meter, play: Play) -> None:
    """Evidence of each kind."""
    for ground in ("edge", "cast", "product"):
        tree = faulty_tree(ground)
        dispute = _opened(contract, play, tree, tree.size - 1)
        shown = tree.evidence(tree.size - 1)
        assert shown is not None
        contract.case = ground
        contract.make(Prove(actor=play.challenger, dispute=dispute, evidence=shown))


def _ends(contract: Meter, play: Play) -> None:
    """The moves that end something, and those of money and time."""
    tree, rules = faulty_tree("edge"), _rules(contract)
    contract.case = f"{tree.size} operators"
    claim = play.post(tree, levels=1)
    slow, conceded, moot = (play.contest(claim) for _ in range(3))
    late = play.contest(play.post(tree, levels=1))
    play.partition(slow, tree)
    contract.case = ""
    contract.make(Pause(actor=rules.guardian))
    contract.make(Resume(actor=rules.guardian))
    contract.make(Protest(actor=play.challenger, dispute=slow, turn=1))
    contract.make(Concede(actor=play.challenger, dispute=conceded))
    contract.make(Concede(actor=play.prover, dispute=slow))
    contract.make(Dismiss(actor=play.challenger, dispute=moot))
    contract.chain.advance(rules.clock)
    contract.make(Timeout(actor=play.challenger, dispute=late))
    contract.chain.advance(rules.challenge_window)
    contract.make(Finalise(actor=play.prover, claim=0))
    contract.chain.advance(rules.holding)
    staked = next(name for name, member in contract.state.members.items() if member.stake)
    contract.make(Retire(actor=staked))
    contract.case = "one credit"
    contract.make(Withdraw(actor=next(name for name, credits in contract.state.owed.items() if len(credits) == 1)))
    contract.case = "32 credits"
    contract.make(Withdraw(actor=rules.treasury))


def _opened(contract: Meter, play: Play, tree: OperatorTree, place: int) -> int:
    """A dispute over a claim in one-round mode that stands at a ruling about the leaf at `place`."""
    contract.case = f"{tree.size} operators"
    dispute = play.contest(play.post(tree, levels=1))
    play.bisect(dispute, tree, place)
    play.reveal(dispute, tree)
    return dispute


def faulty_tree(ground: str, size: int = 17) -> OperatorTree:
    """Operators of which the last shows a fault of this kind."""
    for seed in range(10_000):
        tree = operator_tree(random.Random(seed), size)
        shown = tree.evidence(size - 1)
        if shown is not None and shown.ground == ground and _convicts(tree, shown):
            return tree
    raise AssertionError("no seed gives such a tree")


def _convicts(tree: OperatorTree, shown: Evidence) -> bool:
    place = tree.size - 1
    opened = Dispute(0, "", 1, root(tree), tree.size, place, tree.size, Phase.RULING, Clocks(0, 0, 0), 0, 0)
    try:
        convict(replace(opened, leaf=cut(tree, place).leaf), shown)
    except RuleError:
        return False
    return True


def _rules(contract: Deployed) -> Rules:
    return contract.state.rules
