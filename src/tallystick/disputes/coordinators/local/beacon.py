"""The local beacon: a hash chain whose end is in the charter, and of which each draw shows one more link.

Each nonce hashes to the one before it, so the coordinator cannot choose any. But it knows all of them beforehand.
Parties that do not trust it with this name another beacon in their rules. The chain is derived from the coordinator's
key.
"""

from __future__ import annotations

import hashlib
from typing import Final

from tallystick.attestation.signing import SigningKey
from tallystick.errors import RuleError, UnavailableError

NONCES: Final = 1 << 14
"""The number of draws that one coordinator can make."""


def chain_end(key: SigningKey, genesis: str) -> str:
    """The end of the chain for the charter: the first nonce hashes to it."""
    return _link(key, genesis, NONCES)


def nonce(key: SigningKey, genesis: str, drawn: int) -> str:
    """The nonce after `drawn` earlier ones, computed from the seed; raises `UnavailableError` if none is left."""
    if drawn >= NONCES:
        raise UnavailableError(f"the beacon's chain of {NONCES} nonces is used up; set up a new coordinator")
    return _link(key, genesis, NONCES - 1 - drawn)


def hashed(nonce: str) -> str:
    """The hash of a nonce, which has to be the nonce drawn before it, or the end of the chain."""
    return hashlib.sha256(b"tallystick/nonce/v1\n" + bytes.fromhex(nonce)).hexdigest()


def check_nonce(nonce: str, previous: str) -> None:
    """Raise `RuleError` with code `nonce` unless `nonce` is the link before `previous`."""
    if hashed(nonce) != previous:
        raise RuleError("nonce", "the beacon's nonce is not the next one of its chain")


def _link(key: SigningKey, genesis: str, steps: int) -> str:
    """The seed, hashed `steps` times."""
    found = hashlib.sha256(b"tallystick/beacon/v1\n" + key.secret + bytes.fromhex(genesis)).hexdigest()
    for _ in range(steps):
        found = hashed(found)
    return found
