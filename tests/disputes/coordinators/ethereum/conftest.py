"""A local node and an in-process chain, each with rich accounts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from web3 import Web3
from web3.providers.eth_tester import EthereumTesterProvider

from tallystick.disputes.coordinators.ethereum.node import LocalNode, running_node
from tallystick.errors import UnavailableError


@pytest.fixture(scope="session")
def anvil() -> Iterator[LocalNode]:
    """One node per worker, without a limit on the gas of a block, so that a batch of moves is one transaction."""
    try:
        with running_node("--disable-block-gas-limit", "--disable-code-size-limit") as node:
            yield node
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def in_process_chain() -> Web3:
    """A chain inside this process: no binary is needed."""
    return Web3(EthereumTesterProvider())
