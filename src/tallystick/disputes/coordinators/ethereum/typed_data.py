"""The typed data that a key signs (EIP-712): a move that another account sends, and a board's attestation.

The domain binds both to one chain and one contract, so that a copy is not valid elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from tallystick.commitments.digests import Digest, digest_bytes

DOMAIN_NAME: Final = "Tallystick"
DOMAIN_VERSION: Final = "1"
TYPES: Final[dict[str, list[tuple[str, str]]]] = {
    "EIP712Domain": [
        ("name", "string"),
        ("version", "string"),
        ("chainId", "uint256"),
        ("verifyingContract", "address"),
    ],
    "Move": [("signer", "address"), ("nonce", "uint256"), ("deadline", "uint64"), ("call", "bytes")],
    "Kept": [("dispute", "uint64"), ("turn", "uint64"), ("data", "bytes32")],
}


def relayed_move(chain_id: int, contract: str, signer: str, nonce: int, deadline: int, call: bytes) -> dict[str, Any]:
    """A move of `signer` that anybody may send until `deadline`, in seconds; each nonce is valid once."""
    message = {"signer": signer, "nonce": nonce, "deadline": deadline, "call": call}
    return _document(chain_id, contract, "Move", message)


def kept_data(chain_id: int, contract: str, dispute: int, turn: int, data: Digest) -> dict[str, Any]:
    """A board's attestation that it keeps the data of the move of this turn, and gives it to everybody."""
    return _document(chain_id, contract, "Kept", {"dispute": dispute, "turn": turn, "data": digest_bytes(data)})


def _document(chain_id: int, contract: str, primary: str, message: dict[str, Any]) -> dict[str, Any]:
    domain = {"name": DOMAIN_NAME, "version": DOMAIN_VERSION, "chainId": chain_id, "verifyingContract": contract}
    used = {name: TYPES[name] for name in ("EIP712Domain", primary)}
    types = {name: [{"name": field, "type": kind} for field, kind in fields] for name, fields in used.items()}
    return {"types": types, "domain": domain, "primaryType": primary, "message": message}
