"""Secp256k1 keys of Ethereum accounts, and the typed data that they sign (EIP-712)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_account.signers.local import LocalAccount
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

from tallystick.core.digests import Digest, digest_bytes
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.files import write_secret

# Secp256k1 keys of Ethereum accounts, with the library `eth-account`; a party is an address in lower case.

SECRET_BYTES: Final = 32
SIGNATURE_BYTES: Final = 65
RECOVERY: Final = (27, 28)
"""The last byte of a signature. With s in the lower half (EIP-2) the signature is unique, as in `Signed.sol`."""
ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""The order of the group of secp256k1 (SEC 2, §2.4.1): a secret key is a number from 1 below it."""


@dataclass(frozen=True)
class EthereumKey:
    """A secret key; it is written only to a file that its owner alone can read."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES or not 0 < int.from_bytes(self.secret) < ORDER:
            raise MalformedError(f"an Ethereum key is a number of {SECRET_BYTES} bytes below the order of its group")

    def __repr__(self) -> str:
        return f"EthereumKey({self.address})"

    @classmethod
    def generate(cls) -> EthereumKey:
        """A new key from the system's generator."""
        while True:
            try:
                return cls(os.urandom(SECRET_BYTES))
            except MalformedError:
                continue

    @classmethod
    def read(cls, path: Path) -> EthereumKey:
        """A key from a file of 64 hexadecimal digits, with or without 0x before them.

        Raises:
            MalformedError: It holds something else.
            UsageError: There is no such file, or others can read it.
        """
        try:
            with path.open("rb") as file:
                text, mode = file.read(4 * SECRET_BYTES), os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise UsageError(f"{path}: no key can be read: {error.strerror}") from None
        if mode & 0o077:
            raise UsageError(f"{path}: others can read this key; chmod 600 it")
        try:
            return cls(bytes.fromhex(text.decode().strip().removeprefix("0x")))
        except ValueError:
            raise MalformedError(f"{path.name}: no Ethereum key of 64 hexadecimal digits") from None

    def write(self, path: Path) -> None:
        """Keep the key in a new file of mode 600.

        Raises:
            UsageError: there is one already.
            UnavailableError: the disk refuses it.
        """
        write_secret(path, self.secret.hex().encode() + b"\n", "a key")

    @cached_property
    def address(self) -> str:
        """The account's address: 0x and 40 lower-case hexadecimal digits."""
        return str(self._account.address).lower()

    def sign_transaction(self, fields: Mapping[str, Any]) -> tuple[str, str]:
        """A transaction of type 2 (EIP-1559) with this key's signature, which binds the chain's id (EIP-155).

        Its bytes and its hash, both in hexadecimal digits after 0x.
        """
        signed = self._account.sign_transaction(dict(fields))
        return signed.raw_transaction.to_0x_hex(), signed.hash.to_0x_hex()

    def sign_typed(self, document: Mapping[str, Any]) -> bytes:
        """The 65 bytes r, s, v of a signature over typed data (EIP-712)."""
        return bytes(self._account.sign_message(encode_typed_data(full_message=dict(document))).signature)

    @cached_property
    def _account(self) -> LocalAccount:
        account: LocalAccount = Account.from_key(self.secret)
        return account


def signer_of(document: Mapping[str, Any], signature: bytes) -> str | None:
    """The address whose key made `signature` over typed data; `None` if the contract would not accept it."""
    is_low = int.from_bytes(signature[32:64]) <= ORDER // 2
    if len(signature) != SIGNATURE_BYTES or signature[-1] not in RECOVERY or not is_low:
        return None
    try:
        message = encode_typed_data(full_message=dict(document))
        return str(Account.recover_message(message, signature=signature)).lower()
    except (ValueError, ValidationError, BadSignature):
        return None


# The typed data that a key signs (EIP-712): a move that another account sends, and a board's attestation.
#
# The domain binds both to one chain and one contract, so that a copy is not valid elsewhere.

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
