"""The result of a local coordinator's accepted moves: state, balances, time and the head of the chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.local import beacon
from tallystick.disputes.coordinators.local.signed import Accepted, ChainEntry, Charter, SignedMove
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.invariants import broken
from tallystick.disputes.game.moves import Draw, Move, read_move, value_of
from tallystick.disputes.game.state import State
from tallystick.errors import MalformedError, ProofError, RuleError


@dataclass(frozen=True)
class ChainState:
    """The chain after `count` accepted moves, the last of them at second `time`.

    `spent` is what each party paid by its moves less what it withdrew. `nonce` is the beacon's last nonce, and `drawn`
    the number of its nonces.
    """

    charter: Charter
    state: State
    head: Digest
    nonce: str
    count: int = 0
    time: int = 0
    drawn: int = 0
    spent: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def empty(cls, charter: Charter) -> ChainState:
        """The state before the first move; the chain begins at the coordinator's identity."""
        return cls(charter, State(charter.rules), charter.identity, charter.beacon)

    def entry(self, signed: SignedMove, time: int) -> ChainEntry:
        """The entry of the next accepted move."""
        return ChainEntry(
            coordinator=self.charter.identity,
            move=signed.identity,
            number=self.count,
            previous=self.head,
            time=time,
        )

    def after(self, move: Move, entry: ChainEntry) -> ChainState:
        """The chain with one more move; raises `RuleError` if the rules refuse it or its nonce is not the next one."""
        is_beacons = isinstance(move, Draw) and move.actor == self.charter.key
        if isinstance(move, Draw) and is_beacons:
            beacon.check_nonce(move.nonce, self.nonce)
        state = apply(self.state, move, entry.time)
        paid_out = state.paid_out - self.state.paid_out
        spent = {**self.spent, move.actor: self.spent.get(move.actor, 0) + value_of(move) - paid_out}
        return replace(
            self,
            state=state,
            head=entry.identity,
            nonce=move.nonce if isinstance(move, Draw) and is_beacons else self.nonce,
            count=self.count + 1,
            time=entry.time,
            drawn=self.drawn + is_beacons,
            spent=spent,
        )

    def checked(self) -> ChainState:
        """This chain, after a check of the invariants; `AssertionError` for a broken one, a fault of the program."""
        lines = list(broken(self.state))
        if lines:
            raise AssertionError(f"after move {self.count - 1}: {lines[0]}")
        return self

    def read(self, accepted: Accepted) -> tuple[ChainState, Move]:
        """The chain after an entry that somebody else wrote, and its move; raises `ProofError` if a check fails.

        The checks are: the coordinator's signature, number, time and place in the chain, the party's signature, and
        whether the rules allow the move at this second.
        """
        signed, entry = accepted.signed, accepted.receipt.entry
        accepted.receipt.check(self.charter)
        if entry != self.entry(signed, entry.time) or entry.time < self.time:
            raise ProofError(f"entry {self.count}: the chain of the coordinator's entries is broken")
        if signed.coordinator != self.charter.identity:
            raise ProofError(f"entry {self.count}: the move was signed for another coordinator")
        signed.check()
        move = self._read_move(signed)
        try:
            signed.check_actor(move)
            signed.check_time(entry.time)
            return self.after(move, entry), move
        except RuleError as error:
            raise ProofError(f"entry {self.count}: the coordinator accepted what its rules refuse: {error}") from None

    def _read_move(self, signed: SignedMove) -> Move:
        try:
            return read_move(signed.move.encode(), f"entry {self.count}")
        except MalformedError as error:
            raise ProofError(f"{error}; the coordinator accepted it") from None
