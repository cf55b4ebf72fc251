"""Local nodes with rich accounts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallystick.core.errors import UnavailableError
from tests.disputes.coordinators.ethereum.side import NODE_OPTIONS
from tests.support.ethereum_node import LocalNode, running_node


@pytest.fixture(scope="module")
def anvil(loopback_only: None) -> Iterator[LocalNode]:
    """One node for the tests of a file."""
    try:
        with running_node() as node:
            yield node
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def free_anvil(loopback_only: None) -> Iterator[LocalNode]:
    """One node for the tests of a file, on which code and transactions may be of any size, and gas costs nothing."""
    try:
        with running_node(*NODE_OPTIONS) as node:
            yield node
    except UnavailableError as error:
        pytest.skip(str(error))
