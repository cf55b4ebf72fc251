"""Set up a contract. The transaction that makes it fixes its rules permanently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tallystick.disputes.coordinators.ethereum import chain
from tallystick.disputes.coordinators.ethereum.client import Settings, default_folder
from tallystick.disputes.coordinators.ethereum.encoding import encode_deployment
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoints, HttpEndpoint
from tallystick.disputes.coordinators.ethereum.journal import TransactionJournal
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.coordinators.ethereum.location import ContractLocation
from tallystick.disputes.coordinators.ethereum.sender import NOWHERE, Call, Sender
from tallystick.disputes.game.rules import Rules
from tallystick.errors import UnavailableError


def deploy(
    urls: Sequence[str],
    rules: Rules,
    key: EthereumKey,
    board: str | None = None,
    folder: Path | None = None,
    settings: Settings | None = None,
) -> ContractLocation:
    """Make a contract with these rules, and wait until a block contains it; the same call after a crash continues.

    `board` is the address whose attestation the contract requires for the data of moves; without one it requires none.

    Raises:
        MalformedError: A party in the rules is no Ethereum address.
        RuleError: The contract refuses the rules.
        UnavailableError: No server takes the transaction, or no block contains it within the timeout.
    """
    given = settings or Settings()
    endpoints = Endpoints([HttpEndpoint(url, given.timeout_s) for url in urls], given.patience)
    found = deploy_through(endpoints, rules, key, board, folder, given)
    return replace(found, urls=tuple(urls))


def deploy_through(
    endpoints: Endpoints,
    rules: Rules,
    key: EthereumKey,
    board: str | None = None,
    folder: Path | None = None,
    settings: Settings | None = None,
) -> ContractLocation:
    """As `deploy`, through connected servers; the location in the result names no URL."""
    data, given = encode_deployment(rules, board), settings or Settings()
    chain_id = endpoints.agreed(lambda server: chain.quantity(server, "eth_chainId"))
    journal = TransactionJournal((folder or default_folder()) / f"{chain_id}-{key.address}.jsonl", endpoints.sleep)
    sender = Sender(endpoints, key, chain_id, journal, given.depth, given.sending)
    receipt = sender.submit(Call(NOWHERE, data, 0, f"found {rules.identity} {board}"))
    if receipt is None or receipt.contract is None:
        raise UnavailableError("the contract is not in a block yet: ask again later with the same rules")
    return ContractLocation((), receipt.contract, receipt.block)
