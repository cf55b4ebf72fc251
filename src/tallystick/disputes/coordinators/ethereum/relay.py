"""A move that its party signs and another account sends and pays for, so that the party's account needs no money."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.disputes.coordinators.ethereum.keys import EthereumKey, signer_of
from tallystick.disputes.coordinators.ethereum.typed_data import relayed_move
from tallystick.disputes.game.rules import Money
from tallystick.documents.document import Count, Document
from tallystick.errors import ProofError

CALL_HEX_MAX = 1 << 19


class Relayed(Document):
    """One signed move, valid once, until `deadline` in seconds, at one contract of one chain; `value` in gwei."""

    kind: Literal["relayed"] = "relayed"
    version: Literal[1] = 1
    chain: Count
    contract: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    signer: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    nonce: Count
    deadline: Count
    value: Money
    call: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=CALL_HEX_MAX)]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]

    @property
    def arguments(self) -> tuple[str, int, int, bytes, bytes]:
        """The arguments of the contract's `relay`."""
        call, signature = bytes.fromhex(self.call), bytes.fromhex(self.signature)
        return self.signer, self.nonce, self.deadline, call, signature


def sign_relayed(
    key: EthereumKey, chain: int, contract: str, nonce: int, deadline: int, call: bytes, value: int
) -> Relayed:
    """A signed move of the key's account, for anybody to send."""
    document = relayed_move(chain, contract, key.address, nonce, deadline, call)
    return Relayed(
        chain=chain,
        contract=contract,
        signer=key.address,
        nonce=nonce,
        deadline=deadline,
        value=value,
        call=call.hex(),
        signature=key.sign_typed(document).hex(),
    )


def check_relayed(relayed: Relayed, chain: int, contract: str) -> None:
    """Raise `ProofError` unless the move was signed by its signer for this contract on this chain."""
    if (relayed.chain, relayed.contract) != (chain, contract):
        raise ProofError("the move was signed for another chain or another contract")
    signer, nonce, deadline, call, signature = relayed.arguments
    document = relayed_move(chain, contract, signer, nonce, deadline, call)
    if signer_of(document, signature) != signer:
        raise ProofError("the signature is not one of the signer over this move")
