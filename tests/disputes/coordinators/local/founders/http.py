"""A local coordinator on SQLite behind HTTP; every party has a client of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from tallystick.core.http.server import served
from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.server import create_app
from tests.disputes.coordinators.conformance import MakeRules
from tests.disputes.coordinators.local.founders import sqlite
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, party_of


@dataclass
class RemoteWorld:
    """The clients of one server."""

    url: str
    local: LocalWorld
    clients: ExitStack
    places: dict[str, RemoteCoordinator] = field(default_factory=dict)

    def party(self, name: str) -> str:
        return party_of(name)

    def place(self, name: str) -> RemoteCoordinator:
        if name not in self.places:
            expected = self.local.place.identity
            self.places[name] = self.clients.enter_context(closing(RemoteCoordinator(self.url, expected)))
        return self.places[name]

    def connect(self, name: str) -> Coordinator:
        return self.place(name).connect(key_of(name))

    def board(self, name: str) -> Board:
        return self.place(name).board(key_of(name))

    def advance(self, seconds: int) -> None:
        self.local.advance(seconds)


@contextmanager
def found(make_rules: MakeRules) -> Iterator[RemoteWorld]:
    with sqlite.found(make_rules) as local, served(create_app(local.place)) as url, ExitStack() as clients:
        yield RemoteWorld(url, local, clients)
