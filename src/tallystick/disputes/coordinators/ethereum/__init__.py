"""A coordinator that is an Ethereum contract, for parties who trust no common host."""

from tallystick.disputes.coordinators.ethereum.board import AttestingBoard, FolderBoard
from tallystick.disputes.coordinators.ethereum.client import (
    Attester,
    EthereumCoordinator,
    Settings,
    UndoneError,
    connect,
)
from tallystick.disputes.coordinators.ethereum.deploy import deploy
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.coordinators.ethereum.place import Place
from tallystick.disputes.coordinators.ethereum.relay import Relayed

__all__ = [
    "Attester",
    "AttestingBoard",
    "EthereumCoordinator",
    "EthereumKey",
    "FolderBoard",
    "Place",
    "Relayed",
    "Settings",
    "UndoneError",
    "connect",
    "deploy",
]
