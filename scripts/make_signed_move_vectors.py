#!/usr/bin/env python3
"""Write the test vectors of signed moves: charters, moves, receipts in a chain, a beacon; malformed and forged ones.

Usage: python scripts/make_signed_move_vectors.py vectors/signed-move

Computed from spec/signed-move.md and spec/digest.md without the package; Ed25519 is that of the library `cryptography`.
The secret keys are those of RFC 8032 §7.1, tests 1 and 3, which everybody knows: they sign nothing but tests.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Document = dict[str, Any]
PARTY = Ed25519PrivateKey.from_private_bytes(
    bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
)
HOUSE = Ed25519PrivateKey.from_private_bytes(
    bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
)
MOVE, ENTRY, PUT = (f"tallystick/{noun}/v1\n".encode() for noun in ("move", "entry", "put"))
TIME = 1_700_000_000
NOBODY, ANYTHING = "01" + 62 * "0", "01" + 126 * "0"
"""The neutral element as key and as R, and S = 0: S·B = R + k·A for every k (spec/signature.md)."""


def public(key: Ed25519PrivateKey) -> str:
    """The public key."""
    return key.public_key().public_bytes_raw().hex()


def canonical(value: Any) -> str:
    """JSON with ASCII text and whole numbers."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def named(noun: str, data: str) -> str:
    """The digest under a domain."""
    return "sha256:" + sha256(f"tallystick/{noun}/v1\n{data}".encode()).hexdigest()


RULES: Document = {
    "appeal_bond": 100_000,
    "appeal_window": 86_400,
    "appeals": 2,
    "beacon": public(HOUSE),
    "challenge_window": 604_800,
    "challenger_bond": 150_000,
    "clock": 172_800,
    "committee": 7,
    "extension": 10_800,
    "members": [],
    "pause_max": 259_200,
    "pause_rest": 1_209_600,
    "prover_bond": 1_000_000,
    "referee_window": 3_600,
    "reveal_window": 86_400,
    "reward": 500,
    "stake": 200_000,
    "treasury": public(HOUSE),
    "vote_fee": 2_000,
    "vote_window": 86_400,
    "ways": 16,
    "withdrawal_delay": 86_400,
}


def beacon(steps: int) -> str:
    """A seed of zeros, hashed so many times."""
    found = bytes(32)
    for _ in range(steps):
        found = sha256(b"tallystick/nonce/v1\n" + found).digest()
    return found.hex()


CHARTER: Document = {
    "beacon": beacon(3),
    "genesis": bytes(range(32)).hex(),
    "key": public(HOUSE),
    "rules": RULES,
    "version": 1,
}
COORDINATOR = named("coordinator", canonical(CHARTER))
OTHER = named("coordinator", canonical({**CHARTER, "genesis": bytes(32).hex()}))
NONCE = bytes(range(16)).hex()
MOVES: dict[str, Document] = {
    "a claim": {
        "actor": public(PARTY),
        "kind": "post",
        "levels": 2,
        "root": "11" * 32,
        "seal": "22" * 32,
        "size": 12,
        "statement": named("blob", "statement"),
        "value": 1_000_000,
    },
    "a withdrawal": {"actor": public(PARTY), "kind": "withdraw"},
    "the end of a claim": {"actor": public(PARTY), "claim": 0, "kind": "finalise"},
}


def body(coordinator: str, nonce: str, move: str) -> bytes:
    """What a party signs, without the domain."""
    return f"{coordinator}\n{nonce}\n{move}".encode()


def signed(
    move: str, coordinator: str = COORDINATOR, nonce: str = NONCE, domain: bytes = MOVE, key: Ed25519PrivateKey = PARTY
) -> Document:
    """A signed move."""
    signature = key.sign(domain + body(coordinator, nonce, move)).hex()
    return {"coordinator": coordinator, "key": public(key), "move": move, "nonce": nonce, "signature": signature}


def identity(document: Document) -> str:
    """The identity of a signed move."""
    return named("move", body(document["coordinator"], document["nonce"], document["move"]).decode())


def receipt(entry: Document, domain: bytes = ENTRY, key: Ed25519PrivateKey = HOUSE) -> Document:
    """An entry with the coordinator's signature."""
    return {"entry": entry, "key": public(HOUSE), "signature": key.sign(domain + canonical(entry).encode()).hex()}


def chain() -> list[Document]:
    """The moves, accepted one after the other."""
    previous, found = COORDINATOR, list[Document]()
    for number, (what, move) in enumerate(MOVES.items()):
        document = signed(canonical(move))
        entry = {
            "coordinator": COORDINATOR,
            "move": identity(document),
            "number": number,
            "previous": previous,
            "time": TIME + 60 * number,
        }
        previous = named("entry", canonical(entry))
        text = canonical({"receipt": receipt(entry), "signed": document})
        found.append({"what": what, "head": previous, "text": text})
    return found


ENTRY_0: Document = {
    "coordinator": COORDINATOR,
    "move": identity(signed(canonical(MOVES["a claim"]))),
    "number": 0,
    "previous": COORDINATOR,
    "time": TIME,
}
HONEST = signed(canonical(MOVES["a withdrawal"]))


def forged() -> dict[str, Document]:
    """Well-formed signed moves whose signature does not hold."""
    turned = canonical({**MOVES["the end of a claim"], "claim": 1})
    return {
        "another coordinator": {**HONEST, "coordinator": OTHER},
        "another nonce": {**HONEST, "nonce": "00" * 16},
        "another move": {**signed(canonical(MOVES["the end of a claim"])), "move": turned},
        "another key": {**HONEST, "key": public(HOUSE)},
        "a signature of zeros": {**HONEST, "signature": "00" * 64},
        "a key and a signature that hold for every message": {**HONEST, "key": NOBODY, "signature": ANYTHING},
        "signed without the domain": signed(HONEST["move"], domain=b""),
        "signed as an entry": signed(HONEST["move"], domain=ENTRY),
    }


def refused() -> dict[str, tuple[str, str]]:
    """Text that a reader refuses, and the field it names; none where it is no canonical JSON."""
    whole = canonical(HONEST)
    changes: dict[str, tuple[str, Any]] = {
        "a nonce of 15 bytes": ("nonce", "00" * 15),
        "a nonce in capitals": ("nonce", "AB" * 16),
        "a short signature": ("signature", "00" * 63),
        "a key that is an address": ("key", "0x" + "ab" * 20),
        "a move that is an object": ("move", MOVES["a withdrawal"]),
        "a digest without its prefix": ("coordinator", "00" * 32),
        "an unknown entry": ("price", 1),
    }
    found = {what: (field, canonical({**HONEST, field: value})) for what, (field, value) in changes.items()}
    missing = {name: value for name, value in HONEST.items() if name != "nonce"}
    return found | {
        "no nonce": ("nonce", canonical(missing)),
        "a space": ("", whole.replace('"key":', '"key": ')),
        "a line feed at the end": ("", whole + "\n"),
        "a key twice": ("", whole.replace('"nonce"', '"nonce":"00","nonce"')),
        "cut short": ("", whole[:-1]),
        "nothing": ("", ""),
    }


def false_receipts() -> dict[str, Document]:
    """Receipts that this coordinator never gave."""
    honest = receipt(ENTRY_0)
    return {
        "another time": {**honest, "entry": {**ENTRY_0, "time": TIME + 1}},
        "another number": {**honest, "entry": {**ENTRY_0, "number": 1}},
        "another predecessor": {**honest, "entry": {**ENTRY_0, "previous": OTHER}},
        "signed by the party": receipt(ENTRY_0, key=PARTY),
        "signed without the domain": receipt(ENTRY_0, b""),
        "signed as a move": receipt(ENTRY_0, MOVE),
    }


def put() -> Document:
    """What a party signs to have a blob kept."""
    name, size = named("blob", "hello"), 5
    signature = PARTY.sign(PUT + f"{COORDINATOR}\n{name}\n{size}".encode()).hex()
    return {"coordinator": COORDINATOR, "digest": name, "key": public(PARTY), "signature": signature, "size": size}


def vectors() -> dict[str, list[Any]]:
    """The contents of the files by name."""
    return {
        "charters": [{"what": "the defaults", "identity": COORDINATOR, "text": canonical(CHARTER)}],
        "signed": [
            {"what": what, "identity": identity(signed(canonical(move))), "text": canonical(signed(canonical(move)))}
            for what, move in MOVES.items()
        ],
        "refused": [{"what": what, "field": field, "text": text} for what, (field, text) in refused().items()],
        "forged": [{"what": what, "text": canonical(document)} for what, document in forged().items()],
        "accepted": chain(),
        "false_receipts": [{"what": what, "text": canonical(each)} for what, each in false_receipts().items()],
        "beacon": [{"nonce": beacon(steps), "previous": beacon(steps + 1)} for steps in (2, 1, 0)],
        "put": [put()],
    }


def main() -> None:
    """Write one file per kind."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in vectors().items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
