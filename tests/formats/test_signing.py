"""Keys and signatures: RFC 8032, and receipts that are somebody's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.formats.receipt import Answer, EngineStatement, Receipt, Request, Sampler, SignedReceipt, Tokens
from tallystick.formats.signing import SigningKey, check_signature, sign_receipt, verify_receipt_signature

KEY = SigningKey(bytes(range(32)))
RFC_8032_TESTS = [  # RFC 8032 §7.1, tests 1, 2 and 3: secret key, public key, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


def receipt(sequence: int = 1) -> Receipt:
    return Receipt(
        model=digest("model", b""),
        request=Request(id="r", prompt=Tokens.of([1, 2]), max_tokens=1, nonce="00"),
        answer=Answer(tokens=Tokens.of([3]), finish="length"),
        sampler=Sampler(),
        engine=EngineStatement(
            name="e", version="1", device="cpu", attention="sdpa", environment=digest("environment", b"")
        ),
        sequence=sequence,
    )


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032_TESTS)
def test_keys_and_signatures_are_those_of_rfc_8032(secret: str, public: str, message: str, signature: str) -> None:
    key = SigningKey(bytes.fromhex(secret))
    assert key.public == public
    assert key.sign(bytes.fromhex(message)) == signature
    check_signature(public, signature, bytes.fromhex(message))


def test_a_signature_is_of_one_key_and_one_message() -> None:
    signature = KEY.sign(b"message")
    check_signature(KEY.public, signature, b"message")
    other = SigningKey.generate()
    cases = {
        "another message": (KEY.public, signature, b"massage"),
        "another key": (other.public, signature, b"message"),
        "another signature": (KEY.public, other.sign(b"message"), b"message"),
        "no point on the curve": ("02" + 62 * "0", signature, b"message"),
        "zeros": (KEY.public, 128 * "0", b"message"),
        "a short key": (KEY.public[:-2], signature, b"message"),
        "a short signature": (KEY.public, signature[:-2], b"message"),
        "no hexadecimal": ("zz" * 32, signature, b"message"),
    }
    for public, claimed, message in cases.values():
        with pytest.raises(ProofError, match="signature"):
            check_signature(public, claimed, message)


def test_a_signed_receipt_is_its_providers() -> None:
    signed = sign_receipt(receipt(), KEY)
    verify_receipt_signature(signed)
    verify_receipt_signature(SignedReceipt.from_bytes(signed.to_bytes(), "receipt"))
    check_signature(KEY.public, signed.signature, b"tallystick/receipt/v1\n" + receipt().to_bytes())


def test_a_receipt_that_was_changed_is_nobodys() -> None:
    signed = sign_receipt(receipt(), KEY)
    stolen = SigningKey.generate().public
    for update in ({"receipt": receipt(2)}, {"key": stolen}, {"signature": KEY.sign(receipt().to_bytes())}):
        with pytest.raises(ProofError, match="signature"):
            verify_receipt_signature(signed.model_copy(update=update))


def test_a_key_is_kept_in_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    key, path = SigningKey.generate(), tmp_path / "key"
    mask = os.umask(0)
    key.write(path)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.read(path) == SigningKey.read(str(path)) == key
    with pytest.raises(UsageError, match="never overwritten"):
        SigningKey.generate().write(path)
    assert SigningKey.read(path) == key


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "zz" * 32, "\x00\xff"])
def test_a_file_that_is_no_key_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(MalformedError, match=r"^key: no signing key of 64 hexadecimal digits$"):
        SigningKey.read(tmp_path / "key")


def test_a_secret_is_shown_nowhere() -> None:
    assert KEY.secret.hex() not in f"{KEY!r} {KEY} {sign_receipt(receipt(), KEY)!r}"


def test_two_keys_are_two() -> None:
    assert SigningKey.generate() != SigningKey.generate()
