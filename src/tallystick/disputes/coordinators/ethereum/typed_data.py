"""What a key signs outside a transaction (EIP-712): a move that another account sends, and a board's attestation.

Both are bound to one chain and one contract by the domain, so that a copy counts nowhere else.
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
    """A move by `signer` that anybody may send until `deadline`, in seconds; each nonce counts once."""
    message = {"signer": signer, "nonce": nonce, "deadline": deadline, "call": call}
    return _document(chain_id, contract, "Move", message)


def kept_data(chain_id: int, contract: str, dispute: int, turn: int, data: Digest) -> dict[str, Any]:
    """A board's attestation that it keeps, and hands out, what the move of this turn refers to."""
    return _document(chain_id, contract, "Kept", {"dispute": dispute, "turn": turn, "data": digest_bytes(data)})


def _document(chain_id: int, contract: str, primary: str, message: dict[str, Any]) -> dict[str, Any]:
    domain = {"name": DOMAIN_NAME, "version": DOMAIN_VERSION, "chainId": chain_id, "verifyingContract": contract}
    types = {name: _fields(name) for name in ("EIP712Domain", primary)}
    return {"types": types, "domain": domain, "primaryType": primary, "message": message}


def _fields(name: str) -> list[dict[str, str]]:
    return [{"name": field, "type": kind} for field, kind in TYPES[name]]
