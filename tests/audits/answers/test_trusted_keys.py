"""Trusted keys are named by digits or files; a signing key in their place is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.audits.answers.policy import ReceiptPolicy, trusting
from tallystick.core.errors import MalformedError, UsageError
from tallystick.formats.signing import SigningKey

SECRETS = [SigningKey(bytes([number]) * 32) for number in (1, 2, 3)]
ONE, TWO, THREE = (each.public for each in SECRETS)


def test_keys_are_named_by_digits_and_by_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{TWO}\n\n{THREE.upper()}\n")
    file.chmod(0o644)
    found = trusting(ReceiptPolicy(), [ONE, str(file), file])
    assert found.keys == (ONE, TWO, THREE, TWO, THREE)
    assert found.unknown_key == "rejected"
    assert trusting(ReceiptPolicy(), []) == ReceiptPolicy()


def test_a_policy_keeps_its_keys_and_what_it_says_of_others() -> None:
    mild = ReceiptPolicy(keys=(TWO,), unknown_key="inconclusive")
    assert trusting(mild, [ONE]) == ReceiptPolicy(keys=(TWO, ONE), unknown_key="inconclusive")
    assert trusting(ReceiptPolicy(keys=(TWO,)), [ONE]).unknown_key == "rejected"


def test_a_signing_key_is_no_public_key(tmp_path: Path) -> None:
    SECRETS[0].write(tmp_path / "provider.key")
    with pytest.raises(UsageError, match="only its owner may read it, as is so for signing keys"):
        trusting(ReceiptPolicy(), [tmp_path / "provider.key"])


@pytest.mark.parametrize("text", ["", "no key", f"{ONE}\nab", f"01{'00' * 31}", "\x00\xff"])
def test_other_files_are_no_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    (tmp_path / "keys").chmod(0o644)
    with pytest.raises(MalformedError, match="keys"):
        trusting(ReceiptPolicy(), [tmp_path / "keys"])


def test_what_is_neither_digits_nor_a_file_is_usage(tmp_path: Path) -> None:
    for named in ("ab", ONE[:-1], str(tmp_path), tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="neither a public key"):
            trusting(ReceiptPolicy(), [named])
    with pytest.raises(MalformedError, match="small order"):
        trusting(ReceiptPolicy(), [f"01{'00' * 31}"])
