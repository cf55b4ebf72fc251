"""A fresh local coordinator for each test, in process and behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.http.client import RequestLimits
from tallystick.core.http.server import served
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.server import BodyTimeouts, create_app
from tests.disputes.coordinators.local.keys import LocalWorld, set_up
from tests.disputes.coordinators.local.script import rules


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LocalWorld]:
    found = set_up(tmp_path / "coordinator.db", rules())
    with closing(found.place):
        yield found


@pytest.fixture
def url(world: LocalWorld) -> Iterator[str]:
    with served(create_app(world.place, BodyTimeouts(body=2.0))) as address:
        yield address


@pytest.fixture
def remote(url: str) -> Iterator[Callable[..., RemoteCoordinator]]:
    """Connect a client that gives up soon: `remote()` to the fixture's server, `remote(url, …)` to another."""
    with ExitStack() as open_ones:

        def connect(address: str = url, **options: Any) -> RemoteCoordinator:
            options.setdefault("effort", RequestLimits(seconds=60, attempts=2, pause=0.01))
            return open_ones.enter_context(closing(RemoteCoordinator(address, **options)))

        yield connect
