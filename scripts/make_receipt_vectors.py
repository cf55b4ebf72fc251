#!/usr/bin/env python3
"""Write the test vectors of receipts: signed ones, malformed ones, forged ones, and model cards.

Usage: python scripts/make_receipt_vectors.py vectors/receipt

Computed from spec/receipt.md, spec/model-card.md and spec/digest.md without the package; Ed25519 is that of the library
`cryptography`. The secret key is that of RFC 8032 §7.1, test 1, which everybody knows: it signs nothing but tests.
"""

from __future__ import annotations

import base64
import copy
import json
import struct
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Document = dict[str, Any]
SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
KEY = Ed25519PrivateKey.from_private_bytes(SECRET)
PUBLIC = KEY.public_key().public_bytes_raw().hex()
DOMAIN = b"tallystick/receipt/v1\n"
NOBODY, ANYTHING = "01" + 62 * "0", "01" + 126 * "0"
"""The neutral element as key and as R, and S = 0: S·B = R + k·A for every k (spec/signature.md)."""


def main() -> None:
    """Write one file per kind."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in vectors().items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


def vectors() -> dict[str, list[Any]]:
    """The contents of the files by name."""
    return {
        "signed": [signed_case(what, receipt) for what, receipt in receipts().items()],
        "refused": [{"what": what, "field": field, "text": text} for what, (field, text) in refused().items()],
        "forged": [{"what": what, "text": canonical(signed).decode()} for what, signed in forged().items()],
        "cards": [
            {"what": what, "card": card, "root": named("model", canonical(card))} for what, card in CARDS.items()
        ],
    }


def canonical(value: Any) -> bytes:
    """The bytes of JSON with ASCII text and short decimals."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def named(noun: str, data: bytes) -> str:
    """The digest under a domain."""
    return "sha256:" + sha256(f"tallystick/{noun}/v1\n".encode() + data).hexdigest()


def signed(receipt: Document, domain: bytes = DOMAIN) -> Document:
    """The receipt with key and signature."""
    return {"key": PUBLIC, "receipt": receipt, "signature": KEY.sign(domain + canonical(receipt)).hex()}


def signed_case(what: str, receipt: Document) -> Document:
    """A signed receipt as text, and its identity."""
    return {"what": what, "identity": named("receipt", canonical(receipt)), "text": canonical(signed(receipt)).decode()}


# ---- whole receipts
def tokens(ids: list[int], private: bool = False) -> Document:
    """Tokens by count and digest."""
    found = {"count": len(ids), "digest": named("tokens", struct.pack(f"<{len(ids)}I", *ids))}
    return found if private else {**found, "ids": ids}


def states_root(rows: dict[int, list[list[float]]], block: int) -> str:
    """The root over rows [rows, width] of each layer, in float32."""
    leaves = []
    for first in range(0, len(next(iter(rows.values()))), block):
        for layer, values in rows.items():
            part = values[first : first + block]
            header = {"dtype": "F32", "first": first, "layer": layer, "rows": len(part), "width": len(part[0])}
            data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in part)
            leaves.append(sha256(b"\0tallystick/hidden/v1\n" + canonical(header) + b"\n" + data).digest())
    return "sha256:" + root_of(leaves).hex()


def root_of(leaves: list[bytes]) -> bytes:
    """The root of RFC 6962, by its recursive definition."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


ROWS = {0: [[0.5, -1.0], [2.0, 0.25], [-0.125, 3.0]], 2: [[1.0, 1.5], [-2.5, 0.0], [4.0, -8.0]]}
MODEL = {
    "architecture": "llama",
    "config": named("blob", b"{}"),
    "dtype": "F32",
    "layers": 2,
    "model": 1,
    "tokenizer": named("blob", b"tokenizer"),
    "vocabulary": 384,
    "weights": named("state", b"weights"),
    "width": 2,
}
CARDS: dict[str, Document] = {
    "without a template": MODEL,
    "with a template": {**MODEL, "template": named("blob", b"template")},
    "in another precision": {**MODEL, "dtype": "BF16"},
    "quantised": {**MODEL, "quantization": "int8, per channel"},
    "in version 2, tied weights once": {**MODEL, "model": 2},
}
SMALLEST: Document = {
    "answer": {"finish": "cancelled", "tokens": tokens([])},
    "batch": {"largest": 1},
    "engine": {
        "attention": "eager",
        "device": "cpu",
        "environment": named("environment", b"{}"),
        "kv_cache": "native",
        "name": "transformers",
        "version": "5.23.0",
    },
    "fingerprints": [],
    "model": named("model", canonical(MODEL)),
    "receipt": 1,
    "request": {"id": "r-1", "max_tokens": 0, "prompt": tokens([5])},
    "sampler": {
        "form": "gumbel",
        "min_p": 0,
        "repetition_penalty": 1,
        "seed": 0,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
    },
    "sequence": 1,
}
FINGERPRINT = {
    "bits": 8,
    "block": 32,
    "data": base64.b64encode(bytes(range(32))).decode(),
    "layers": [0, 2],
    "method": "projection",
    "seed": sha256(b"seed").hexdigest(),
    "tokens": 3,
    "width": 15,
}
WHOLE: Document = {
    **SMALLEST,
    "answer": {"finish": "end", "tokens": tokens([8, 9, 383])},
    "batch": {
        "composition": named("batch", canonical([{"passes": 3, "rows": ["r-1", "r-2"]}])),
        "largest": 2,
    },
    "engine": {**SMALLEST["engine"], "graph": named("graph", b"graph"), "kv_cache": "quantized"},
    "fingerprints": [FINGERPRINT],
    "previous": named("receipt", canonical(SMALLEST)),
    "request": {"id": "r-2", "max_tokens": 9, "nonce": "00ff", "prompt": tokens([5, 6, 7])},
    "sampler": {
        "form": "cdf",
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "seed": 2**53 - 1,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
    },
    "sequence": 2,
    "states": {"block": 2, "dtype": "F32", "layers": [0, 2], "prompt": False, "root": states_root(ROWS, 2), "rows": 3},
}


def receipts() -> dict[str, Document]:
    """Receipts that are well-formed."""
    private = copy.deepcopy(WHOLE)
    private["request"]["prompt"] = tokens([5, 6, 7], private=True)
    private["answer"]["tokens"] = tokens([8, 9, 383], private=True)
    return {
        "the smallest: no token, the first of its key": SMALLEST,
        "everything that can be there; states of [[[0.5,-1],[2,0.25],[-0.125,3]],[[1,1.5],[-2.5,0],[4,-8]]]": WHOLE,
        "private: no token ids": private,
    }


# ---- documents that are no receipts
def changed(path: str, value: Any) -> Document:
    """The whole receipt, signed, with one entry replaced."""
    found = copy.deepcopy(signed(WHOLE))
    *way, last = path.split(".")
    place: Any = found
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return found


BAD: dict[str, tuple[str, Any]] = {
    "another version": ("receipt.receipt", 2),
    "a negative count": ("receipt.answer.tokens.count", -3),
    "a count of a million and more": ("receipt.answer.tokens.count", 2**20 + 1),
    "a negative token": ("receipt.answer.tokens.ids.0", -1),
    "a token of 31 bits and more": ("receipt.answer.tokens.ids.0", 2**31),
    "a token with a point": ("receipt.answer.tokens.ids.0", 8.5),
    "a limit of tokens that is true": ("receipt.request.max_tokens", True),
    "an id with a slash": ("receipt.request.id", "a/b"),
    "a nonce of three digits": ("receipt.request.nonce", "00f"),
    "a negative temperature": ("receipt.sampler.temperature", -0.5),
    "a seed of 53 bits and more": ("receipt.sampler.seed", 2**53),
    "a batch of nobody": ("receipt.batch.largest", 0),
    "a fingerprint of no layer": ("receipt.fingerprints.0.layers", []),
    "a fingerprint of a negative number of tokens": ("receipt.fingerprints.0.tokens", -1),
    "seventeen fingerprints": ("receipt.fingerprints", [FINGERPRINT] * 17),
    "states in a dtype of 8 bits": ("receipt.states.dtype", "F8"),
    "sequence 0": ("receipt.sequence", 0),
    "an unknown entry": ("receipt.price", 1),
    "a digest without its prefix": ("receipt.model", 64 * "0"),
    "a key in capitals": ("key", 64 * "A"),
    "a short signature": ("signature", 126 * "0"),
}
UNRELATED: dict[str, tuple[str, Any]] = {
    "fewer ids than counted": ("receipt.answer.tokens.ids", [8, 9]),
    "other ids than digested": ("receipt.request.prompt.ids", [7, 6, 5]),
}


def refused() -> dict[str, tuple[str, str]]:
    """Text that a reader refuses, and the field it names; none where it is no canonical JSON."""
    texts = {what: (path, canonical(changed(path, value)).decode()) for what, (path, value) in BAD.items()}
    for what, (path, value) in UNRELATED.items():
        texts[what] = (path.rpartition(".")[0], canonical(changed(path, value)).decode())
    whole = canonical(signed(WHOLE)).decode()
    without = copy.deepcopy(WHOLE)
    del without["engine"]["kv_cache"]
    spellings = {
        "NaN": whole.replace('"temperature":0.7', '"temperature":NaN'),
        "a space": whole.replace('{"key":', '{"key": '),
        "a line feed at the end": whole + "\n",
        "a key twice": whole.replace('"sequence":2', '"sequence":2,"sequence":2'),
        "a default left out": canonical(signed(without)).decode(),
        "an explicit null": whole.replace('"nonce":"00ff"', '"nonce":null'),
        "cut short": whole[:-1],
        "nothing": "",
    }
    return texts | {what: ("", text) for what, text in spellings.items()}


def forged() -> dict[str, Document]:
    """Well-formed receipts with a signature that is not of this key over these bytes."""
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw().hex()
    return {
        "another token count": changed("receipt.request.max_tokens", 10),
        "another nonce": changed("receipt.request.nonce", "00fe"),
        "another sequence": changed("receipt.sequence", 3),
        "another key": changed("key", other),
        "a signature of zeros": changed("signature", 128 * "0"),
        "a key and a signature that hold for every message": {**signed(WHOLE), "key": NOBODY, "signature": ANYTHING},
        "signed without the domain": signed(WHOLE, b""),
        "signed under another domain": signed(WHOLE, b"tallystick/claim/v1\n"),
    }


if __name__ == "__main__":
    main()
