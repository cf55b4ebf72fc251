"""Named parties with keys that are the same in every test, and a clock that a test moves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.state import Rules
from tallystick.disputes.parties.programs import Clock
from tallystick.formats.signing import SigningKey
from tests.disputes.coordinators.conformance import NAMES, MakeRules

PURSE = 10_000_000


def key_of(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(f"key of {name}".encode()).digest())


def party_of(name: str) -> str:
    return key_of(name).public


@dataclass
class LocalWorld:
    """A local coordinator in this process."""

    place: LocalCoordinator
    clock: Clock = field(default_factory=Clock)

    def party(self, name: str) -> str:
        return party_of(name)

    def connect(self, name: str) -> Coordinator:
        return self.place.connect(key_of(name))

    def board(self, name: str) -> Board:
        return self.place.board(key_of(name))

    def advance(self, seconds: int) -> None:
        self.clock.advance(self.clock() + seconds)


def set_up(place: str | Path, make_rules: MakeRules | Rules, purse: int = PURSE) -> LocalWorld:
    """A new coordinator in which everybody has money; the bystander is the beacon where the rules name none."""
    clock = Clock()
    rules = make_rules if isinstance(make_rules, Rules) else make_rules(party_of)
    rules = rules.model_copy(update={"beacon": rules.beacon or party_of("bystander")})
    coordinator = LocalCoordinator.create(place, rules, key_of("coordinator"), clock)
    for name in NAMES if purse else ():
        coordinator.grant(party_of(name), purse)
    return LocalWorld(coordinator, clock)
