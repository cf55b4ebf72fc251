"""Gas of a dispute on a local Ethereum node, against the size of the graph and the number of children of a partition.

The script's disputes are played at the contract, one contract for each N, with an account for each party and a board
that attests to the data of every answer. Counted is what every transaction used, from the contest to the referee's
ruling; posting a claim, withdrawals and committees stand apart. In brackets stand the least and the most over places
drawn at random. Gas is a count: the same contract and calls use as much on every machine. What each function costs by
itself is in data/gas.json (research/gas_report.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.dispute_rounds import spread
from benchmarks.dispute_script import SIZES, WAYS, Script
from benchmarks.figure import Figure
from tallystick.core.digests import digest
from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.ethereum.encoding import (
    GWEI,
    artefact,
    decode_event,
    decode_move,
    encode_deployment,
    encode_move,
)
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey, kept_data
from tallystick.disputes.game import voting
from tallystick.disputes.game.moves import (
    Convene,
    Descend,
    Disclose,
    Draw,
    Enlist,
    Finalise,
    Move,
    Partition,
    Reveal,
    Rule,
    Settle,
    Tally,
    Vote,
    Withdraw,
    value_of,
)
from tallystick.disputes.game.state import Rules
from tallystick.verdicts.verdict import Fault
from tests.support.ethereum_node import LocalNode, running_node

PLACES = 5
POOL = 40
NODE_OPTIONS = ("--accounts", str(POOL + 5), "--prune-history")
SALT = "5a" * 32
REASON = digest("blob", b"reason")
BOARD = EthereumKey((4242).to_bytes(32))
GAS_LIMIT = 16_000_000
PROVERS = ("descend", "partition", "reveal")
Used = list[tuple[str, int]]
"""The kind of each move, and the gas that its transaction used."""


def figures(quick: bool) -> Iterator[Figure]:
    try:
        with running_node(*NODE_OPTIONS) as node:
            yield from _figures(node, quick)
    except UnavailableError as error:
        print(f"dispute_gas: left out: {error}")


def _figures(node: LocalNode, quick: bool) -> Iterator[Figure]:
    for ways in (4, 16) if quick else WAYS:
        for size in SIZES[: 1 if quick else None]:
            yield of_cell(node, size, ways, 2 if quick else PLACES)
    standing = Contract(node, rules_at(node, Rules(treasury="0" * 64).ways))
    sittings = [standing.committee(place) for place in _places(100, 2 if quick else PLACES)]
    yield _of_committees(sittings, standing.rules)
    claims = [standing.undisputed(seed) for seed in range(2 if quick else PLACES)]
    yield _figure("an undisputed claim", "gas of a claim that nobody disputes", [_total(each) for each in claims])


def of_cell(node: LocalNode, size: int, ways: int, count: int) -> Figure:
    """Gas of disputes over graphs of one size with one number of children, at a contract of their own."""
    contract = Contract(node, rules_at(node, ways))
    return _of_disputes(size, ways, [contract.dispute(size, place) for place in _places(size, count)])


def rules_at(node: LocalNode, ways: int) -> Rules:
    """The default rules, with accounts of the node in the roles; nobody is the beacon, so the chain draws."""
    names = [str(name).lower() for name in node.ask("eth_accounts")]
    return Rules(treasury=names[3], referee=names[2], members=tuple(names[5 : 5 + POOL]), ways=ways)


@dataclass
class Contract:
    """A contract at a node; its parties are the node's own accounts."""

    node: LocalNode
    rules: Rules
    claims: int = 0
    disputes: int = 0

    @cached_property
    def parties(self) -> list[str]:
        """Prover, challenger, referee, treasury, and others."""
        return [str(name).lower() for name in self.node.ask("eth_accounts")]

    @cached_property
    def address(self) -> str:
        """Where the contract is; makes it."""
        data = "0x" + encode_deployment(self.rules, BOARD.address).hex()
        return str(self._sent({"from": self.parties[4], "data": data})["contractAddress"])

    @cached_property
    def chain_id(self) -> int:
        """The chain to which attestations are bound."""
        return int(self.node.ask("eth_chainId"), 16)

    def dispute(self, size: int, fault: int) -> Used:
        """A dispute to its ruling by the referee, and the claim before it."""
        used, number = self._until_ruling(size, fault)
        rule = Rule(actor=self.parties[2], dispute=number, fault=Fault.PROVER, reason=REASON)
        return [*used, self.make(rule), self._withdrawn(self.parties[1])]

    def committee(self, fault: int) -> Used:
        """What a committee uses, from its call to the end of the dispute."""
        for name in self.rules.members if not self.disputes else ():
            self.make(Enlist(actor=name, value=self.rules.stake))
        _, number = self._until_ruling(100, fault)
        used = [self.make(Convene(actor=self.parties[2], dispute=number))]
        self.node.mine(2)
        used.append(self.make(Draw(actor=self.parties[1], dispute=number, nonce="00" * 32)))
        drawn = voting.draw_members(self.rules.members, self.rules.committee, self._nonce(), number, 0)
        for name in drawn:
            commitment = voting.commitment(number, 0, name, Fault.PROVER, SALT)
            used.append(self.make(Vote(actor=name, dispute=number, commitment=commitment)))
        used += [self.make(Disclose(actor=name, dispute=number, vote=Fault.PROVER, salt=SALT)) for name in drawn]
        used.append(self.make(Tally(actor=self.parties[1], dispute=number)))
        self.node.advance(self.rules.appeal_window + 1)
        return [*used, self.make(Settle(actor=self.parties[1], dispute=number))]

    def undisputed(self, seed: int) -> Used:
        """A claim that is posted, becomes final, and whose bond is taken out."""
        post = next(self._script(100, 0, seed + 10**6).moves())
        posted, number = self.make(post), self.claims
        self.claims += 1
        self.node.advance(self.rules.challenge_window + 1)
        return [posted, self.make(Finalise(actor=post.actor, claim=number)), self._withdrawn(post.actor)]

    def make(self, move: Move) -> tuple[str, int]:
        """Make a move in a transaction of its own; returns its kind and what it used."""
        data = "0x" + encode_move(move, self._attestation(move)).hex()
        value = hex(value_of(move) * GWEI)
        self.last = self._sent({"from": move.actor, "to": self.address, "data": data, "value": value})
        return move.kind, int(self.last["gasUsed"], 16)

    def _until_ruling(self, size: int, fault: int) -> tuple[Used, int]:
        script = self._script(size, fault, 1000 * self.disputes)
        used = [self.make(move) for move in script.moves(self.claims, self.disputes)]
        self.claims, self.disputes = self.claims + 1, self.disputes + 1
        return used, self.disputes - 1

    def _script(self, size: int, fault: int, seed: int) -> Script:
        return Script(self.rules, self.parties[0], self.parties[1], size, fault, seed=seed)

    def _withdrawn(self, party: str) -> tuple[str, int]:
        self.node.advance(self.rules.withdrawal_delay + 1)
        return self.make(Withdraw(actor=party))

    def _attestation(self, move: Move) -> bytes:
        if not isinstance(move, Partition | Descend | Reveal):
            return b""
        return BOARD.sign_typed(kept_data(self.chain_id, self.address, move.dispute, move.turn, move.data))

    def _nonce(self) -> str:
        """The nonce that the contract took for the last draw."""
        (log,) = [each for each in self.last["logs"] if each["topics"][0] == artefact().topic("Moved")]
        _, actor, _, value, call = decode_event(log["topics"], bytes.fromhex(log["data"][2:]))
        move = decode_move(call, actor, value)
        assert isinstance(move, Draw)
        return move.nonce

    def _sent(self, fields: Mapping[str, str]) -> Any:
        name = self.node.ask("eth_sendTransaction", {**fields, "gas": hex(GAS_LIMIT)})
        while (receipt := self.node.ask("eth_getTransactionReceipt", name)) is None:
            time.sleep(0.002)
        assert int(receipt["status"], 16) == 1, "the contract refuses a move of the script"
        return receipt


def _of_disputes(size: int, ways: int, disputes: Sequence[Used]) -> Figure:
    counted = [[(kind, gas) for kind, gas in used if kind not in ("post", "withdraw")] for used in disputes]
    details = {
        "size": size,
        "ways": ways,
        "transactions": spread([float(len(used)) for used in counted]),
        "prover": spread([_total(used, PROVERS) for used in counted]),
        "challenger": spread([_total(used, ("contest", "choose")) for used in counted]),
        "referee": spread([_total(used, ("rule",)) for used in counted]),
        "largest transaction": max(gas for used in counted for _, gas in used),
    }
    what = f"gas of a dispute, V = {size:,}, N = {ways}"
    return _figure(f"{size}/{ways}", what, [_total(used) for used in counted], details)


def _of_committees(sittings: Sequence[Used], rules: Rules) -> Figure:
    details = {"transactions": len(sittings[0]), "members": rules.committee, "pool": len(rules.members)}
    what = f"gas of a committee of {rules.committee}, in the place of the referee's ruling"
    return _figure("a committee", what, [_total(used) for used in sittings], details)


def _figure(name: str, what: str, values: Sequence[float], details: Mapping[str, Any] | None = None) -> Figure:
    return Figure(
        f"dispute_gas: {name}", what, spread(values), len(values), "count", unit="gas", details=dict(details or {})
    )


def _places(size: int, count: int) -> list[int]:
    return random.Random(size + 1).sample(range(size), count)


def _total(used: Used, kinds: Iterable[str] | None = None) -> float:
    return float(sum(gas for kind, gas in used if kinds is None or kind in kinds))
