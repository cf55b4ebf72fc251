"""Send transactions: each is signed once, stored before it is sent, and sent until its result is final.

At most one transaction of an account can use each nonce. A move keeps its nonce while it is pending. A stuck
transaction is sent again with the same nonce and a higher fee. A transaction that a reorganisation removed is sent
again unchanged. A transaction that the rules refuse by then is given up. So no crash, timeout or reorganisation makes a
move twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tallystick.core.errors import RuleError, UnavailableError
from tallystick.disputes.coordinators.coordinator import NotSentError
from tallystick.disputes.coordinators.ethereum import endpoints
from tallystick.disputes.coordinators.ethereum.encoding import refusal
from tallystick.disputes.coordinators.ethereum.endpoints import (
    Endpoint,
    Endpoints,
    RemoteError,
    Reverted,
    TransactionReceipt,
)
from tallystick.disputes.coordinators.ethereum.journal import (
    FeeRules,
    GasOffer,
    JournalLockedError,
    OpenJournal,
    Pending,
    Signed,
    TransactionJournal,
    first_offer,
    raised,
)
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey

LOG: Final = logging.getLogger(__name__)
NOWHERE: Final = "0x"
"""The receiver of a transaction that makes a contract."""
FILLER: Final = "filler"
GAS_OF_TRANSFER: Final = 21_000
USUAL_TIP: Final = 10**9
OUTBID: Final = "underpriced"
"""A part of the error message of nodes for a replacement that offers too little."""
HARMLESS: Final = ("already", "known", "nonce too low", OUTBID)
"""Parts of error messages that need no warning: the node knows the transaction, or its nonce is used or outbid."""


@dataclass(frozen=True)
class Call:
    """A call to make once; `value` in wei. `purpose` names the call; only one call per `turn` can be pending."""

    to: str
    data: bytes
    value: int
    purpose: str
    turn: str = ""

    @classmethod
    def again(cls, signed: Signed) -> Self:
        """The call of a signed transaction."""
        return cls(signed.to, bytes.fromhex(signed.data[2:]), int(signed.value), signed.purpose, signed.turn)


@dataclass(frozen=True)
class SendingRules:
    """How long to wait, and what to offer.

    If no block contains a transaction after `resend_blocks` blocks, its offer is raised. `submit` waits `patience_s`
    seconds for a block, and leaves the rest to the journal. The gas limit is the estimate times `gas_permille` ÷ 1000
    plus `gas_extra`, because a move may write more if another move comes before it; it is at most `gas_max`.
    """

    fees: FeeRules = field(default_factory=FeeRules)
    resend_blocks: int = 3
    patience_s: float = 60.0
    poll_s: float = 0.5
    lock_patience_s: float = 90.0
    gas_permille: int = 1250
    gas_extra: int = 80_000
    gas_max: int = 1 << 24
    gap_max: int = 16
    raises_max: int = 8


class Sender:
    """Sends transactions for one key on one chain."""

    def __init__(
        self,
        endpoints: Endpoints,
        key: EthereumKey,
        chain_id: int,
        journal: TransactionJournal,
        depth: int | None = None,
        rules: SendingRules = SendingRules(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints, self.key, self.chain_id, self.journal = endpoints, key, chain_id, journal
        self.depth, self.rules, self._clock = depth, rules, clock
        self._sent_at: dict[str, int] = {}

    def submit(self, call: Call) -> TransactionReceipt | None:
        """Make a call; returns its receipt, or `None` if it is still pending after `patience_s` seconds.

        Raises:
            RuleError: The contract refuses it, or another call for the same turn is pending.
            UnavailableError: No server answers; the signed transaction is stored, and the next call sends it.
            NotSentError: Nothing was signed, for example because the account has too little money.
        """
        with self.journal.locked(self.rules.lock_patience_s) as journal:
            ended_well = self._tend(journal)
            if call.purpose in ended_well:
                return ended_well[call.purpose]
            pending = _under_way(journal, call) or self._begin(journal, call)
            return self._see_through(journal, pending)

    def tend(self) -> None:
        """Send pending transactions again if necessary; does nothing while another program has the journal."""
        if not self.journal.path.exists():
            return
        with suppress(JournalLockedError), self.journal.locked(patience_s=0.0) as journal:
            self._tend(journal)

    def _tend(self, journal: OpenJournal) -> Mapping[str, TransactionReceipt]:
        """Handle all pending transactions, in the order of the nonces; returns the final receipts by purpose."""
        ended_well: dict[str, TransactionReceipt] = {}
        if journal.pending:
            self._fill_gaps(journal)
        is_first = True
        for pending in journal.pending:
            is_first = self._tend_one(journal, pending, is_first, ended_well) and is_first
        return ended_well

    def _tend_one(
        self, journal: OpenJournal, pending: Pending, is_first: bool, ended_well: dict[str, TransactionReceipt]
    ) -> bool:
        """Handle one nonce; returns whether it is settled, so that the next can be tried on the latest block."""
        sightings = self._sightings(pending)
        receipts = [receipt for _, receipt in sightings if receipt]
        if len(receipts) == len(sightings):
            if self._is_closed_well(journal, pending, receipts[0]):
                ended_well[pending.last.purpose] = receipts[0]
            return True
        if self._finally_used(pending.nonce):
            if not receipts:
                self._give_up(journal, pending, "another transaction used its number")
            elif self._is_closed_well(journal, pending, receipts[0]):
                ended_well[pending.last.purpose] = receipts[0]
            return True
        lacking = [server for server, receipt in sightings if not receipt]
        error = self._refused(lacking, Call.again(pending.last)) if is_first and not receipts else None
        if error is not None:
            self._give_up(journal, pending, str(error))
            return False
        self._push(journal, pending, lacking)
        return False

    def _is_closed_well(self, journal: OpenJournal, pending: Pending, receipt: TransactionReceipt) -> bool:
        if not receipt.status:
            self._give_up(journal, pending, f"refused in block {receipt.block}")
        elif self._is_final(receipt):
            journal.close(pending.nonce, "final")
            return True
        return False

    def _give_up(self, journal: OpenJournal, pending: Pending, reason: str) -> None:
        LOG.warning("transaction %d of %s is given up: %s", pending.nonce, self.key.address, reason)
        journal.close(pending.nonce, reason)

    def _begin(self, journal: OpenJournal, call: Call) -> Pending:
        try:
            error = self._refused(self.endpoints.servers, call)
            if error is not None:
                raise error
            needed = self._estimated(self._fields(call)) * self.rules.gas_permille // 1000
        except UnavailableError as error_before:  # nothing is signed yet
            raise NotSentError(str(error_before)) from None
        gas = min(needed + self.rules.gas_extra, self.rules.gas_max)
        nonce = self._free_nonce(journal)
        self._sign(journal, nonce, call, gas, self._market())
        pending = _of(journal, nonce)
        self._push(journal, pending, self.endpoints.awake())
        return _of(journal, nonce)

    def _see_through(self, journal: OpenJournal, pending: Pending) -> TransactionReceipt | None:
        """Wait for a block that contains the transaction, and raise the offer if none does."""
        ends_at = self._clock() + self.rules.patience_s
        while True:
            receipt = self._included(journal, pending)
            if receipt is not None:
                return self._judged(journal, pending, receipt)
            if self._clock() >= ends_at:
                return None
            self.endpoints.sleep(self.rules.poll_s)
            pending = _of(journal, pending.nonce)

    def _included(self, journal: OpenJournal, pending: Pending) -> TransactionReceipt | None:
        """The receipt if all answering servers have one; otherwise send the transaction to those that have none."""
        sightings = self._sightings(pending)
        lacking = [server for server, receipt in sightings if not receipt]
        if lacking:
            self._push(journal, pending, lacking)
            return None
        return sightings[0][1]

    def _judged(self, journal: OpenJournal, pending: Pending, receipt: TransactionReceipt) -> TransactionReceipt:
        self._is_closed_well(journal, pending, receipt)
        if receipt.status:
            return receipt
        error = self._refused(self.endpoints.servers, Call.again(pending.last))
        raise error or UnavailableError(f"transaction {receipt.hash} failed in block {receipt.block}; try again")

    def _push(self, journal: OpenJournal, pending: Pending, servers: Sequence[Endpoint]) -> None:
        """Send the highest offer to servers without a receipt, and a higher one if that is stuck or outbid."""
        number = self.endpoints.agreed(lambda server: endpoints.header(server, "latest").number)
        sent_at = self._sent_at.setdefault(pending.last.hash, number)
        is_stuck = number - sent_at >= self.rules.resend_blocks
        attempt = (self._raise(journal, pending) if is_stuck else None) or pending.last
        for _ in range(self.rules.raises_max):
            if not self._broadcast(attempt.raw, servers):
                return
            higher = self._raise(journal, _of(journal, pending.nonce))
            if higher is None:
                return
            attempt = higher

    def _broadcast(self, raw: str, servers: Sequence[Endpoint]) -> bool:
        """Send to each server; returns whether one has another transaction of this nonce and wants a higher offer."""
        failures, is_outbid = [], False
        for server in servers:
            try:
                server.ask("eth_sendRawTransaction", raw)
            except RemoteError as error:
                is_outbid = is_outbid or OUTBID in error.message
                if not any(word in error.message.lower() for word in HARMLESS):
                    LOG.warning("%s", error)
            except UnavailableError as error:
                failures.append(str(error))
        if failures and len(failures) == len(servers):
            raise UnavailableError(f"a signed transaction waits to be sent: {'; '.join(failures)}")
        return is_outbid

    def _raise(self, journal: OpenJournal, pending: Pending) -> Signed | None:
        last = pending.last
        base_fee, tip = self._fees()
        offer = raised(last.offer, base_fee, tip, self.rules.fees)
        if offer is None:
            LOG.warning("transaction %d is stuck at the highest fee that is allowed", pending.nonce)
            return None
        return self._sign(journal, pending.nonce, Call.again(last), last.gas, offer)

    def _sign(self, journal: OpenJournal, nonce: int, call: Call, gas: int, offer: GasOffer) -> Signed:
        """A signed transaction, on disk before it is sent."""
        raw, transaction_hash = self.key.sign_transaction(
            {
                "type": 2,
                "chainId": self.chain_id,
                "nonce": nonce,
                "to": bytes.fromhex(call.to[2:]),
                "data": call.data,
                "value": call.value,
                "gas": gas,
                "maxFeePerGas": offer.fee_max,
                "maxPriorityFeePerGas": offer.tip,
            }
        )
        entry = Signed(
            nonce=nonce,
            purpose=call.purpose,
            turn=call.turn,
            to=call.to,
            data="0x" + call.data.hex(),
            value=str(call.value),
            gas=gas,
            fee_max=str(offer.fee_max),
            tip=str(offer.tip),
            hash=transaction_hash,
            raw=raw,
        )
        journal.sign(entry)
        return entry

    def _sightings(self, pending: Pending) -> list[tuple[Endpoint, TransactionReceipt | None]]:
        """Each answering server, with its receipt of the attempt that is in a block, or `None`."""
        return self.endpoints.each(lambda server: _seen(server, pending))

    def _refused(self, servers: Sequence[Endpoint], call: Call) -> RuleError | UnavailableError | None:
        """Why the contract would refuse a call on the latest block; `None` if any server says that it would not."""
        fields = self._fields(call)
        answers = [answer for _, answer in self.endpoints.each(lambda server: endpoints.call(server, fields), servers)]
        refusals = [answer for answer in answers if isinstance(answer, Reverted)]
        return refusal(refusals[0].data) if len(refusals) == len(answers) else None

    def _estimated(self, fields: dict[str, Any]) -> int:
        answers = self.endpoints.each(lambda server: endpoints.estimate(server, fields))
        amounts = [answer for _, answer in answers if isinstance(answer, int)]
        if not amounts:
            raise next(refusal(answer.data) for _, answer in answers if isinstance(answer, Reverted))
        return max(amounts)

    def _fields(self, call: Call) -> dict[str, Any]:
        fields = {"from": self.key.address, "data": "0x" + call.data.hex(), "value": hex(call.value)}
        return fields if call.to == NOWHERE else {**fields, "to": call.to}

    def _free_nonce(self, journal: OpenJournal) -> int:
        taken = {pending.nonce for pending in journal.pending}
        nonce = self.endpoints.agreed(lambda server: endpoints.nonce(server, self.key.address))
        while nonce in taken:
            nonce += 1
        return nonce

    def _fill_gaps(self, journal: OpenJournal) -> None:
        """Sign an empty transfer to the own account for every unused nonce that blocks a higher, pending one."""
        count = self.endpoints.agreed(lambda server: endpoints.nonce(server, self.key.address))
        taken = [pending.nonce for pending in journal.pending]
        missing = [nonce for nonce in range(count, max(taken)) if nonce not in taken][: self.rules.gap_max]
        for nonce in missing:
            LOG.warning("transaction %d of %s is missing; the number is filled", nonce, self.key.address)
            filler = Call(self.key.address, b"", 0, f"{FILLER} {nonce}")
            self._sign(journal, nonce, filler, GAS_OF_TRANSFER, self._market())

    def _finally_used(self, nonce: int) -> bool:
        def used(server: Endpoint) -> bool:
            final = endpoints.final_header(server, self.depth)
            return endpoints.nonce(server, self.key.address, final.number) > nonce

        return self.endpoints.agreed(used)

    def _is_final(self, receipt: TransactionReceipt) -> bool:
        def final(server: Endpoint) -> bool:
            if endpoints.final_header(server, self.depth).number < receipt.block:
                return False
            return endpoints.header(server, receipt.block).hash == receipt.block_hash

        return self.endpoints.agreed(final)

    def _market(self) -> GasOffer:
        base_fee, tip = self._fees()
        return first_offer(base_fee, tip, self.rules.fees)

    def _fees(self) -> tuple[int, int]:
        """The base fee of the latest block and the tip that servers suggest; the median of all servers."""
        answers = sorted(answer for _, answer in self.endpoints.each(_fees_at))
        return answers[(len(answers) - 1) // 2]


def _fees_at(server: Endpoint) -> tuple[int, int]:
    base_fee = endpoints.header(server, "latest").base_fee
    try:
        return base_fee, endpoints.quantity(server, "eth_maxPriorityFeePerGas")
    except RemoteError:  # not every node suggests a tip
        return base_fee, USUAL_TIP


def _seen(server: Endpoint, pending: Pending) -> TransactionReceipt | None:
    for attempt in reversed(pending.attempts):
        receipt = endpoints.receipt(server, attempt.hash)
        if receipt is not None and receipt.hash == attempt.hash:
            return receipt
    return None


def _under_way(journal: OpenJournal, call: Call) -> Pending | None:
    """The pending transactions for the same purpose; raises `RuleError` if another call for the turn is pending."""
    for pending in journal.pending:
        if pending.last.purpose == call.purpose:
            return pending
        if call.turn and pending.last.turn == call.turn:
            raise RuleError("turn", "another move for this turn is on its way")
    return None


def _of(journal: OpenJournal, nonce: int) -> Pending:
    return next(pending for pending in journal.pending if pending.nonce == nonce)
