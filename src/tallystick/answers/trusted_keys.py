"""Keys that a verifier trusts, named beside its policy: as digits, or as files that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from tallystick.answers.policy import ReceiptPolicy
from tallystick.attestation.points import PublicKey
from tallystick.errors import MalformedError, UsageError

DIGITS: Final = re.compile("[0-9a-fA-F]{64}")
OTHERS_MAY_READ: Final = 0o077
FILE_BYTES_MAX: Final = 1 << 20


def trusting(policy: ReceiptPolicy, keys: Sequence[str | Path]) -> ReceiptPolicy:
    """The policy with these keys trusted too; any other key is rejected, unless the policy says what becomes of it.

    Each of `keys` is a public key of 64 hexadecimal digits, or a file of them, one a line.

    Raises:
        MalformedError: a file holds something else, or a key that nobody may trust.
        UsageError: a file holds a signing key, or is not there.
    """
    if not keys:
        return policy
    named = tuple(key for each in keys for key in _keys_in(each))
    unknown = policy.unknown_key if "unknown_key" in policy.model_fields_set else "rejected"
    return policy.model_copy(update={"keys": (*policy.keys, *named), "unknown_key": unknown})


def _keys_in(named: str | Path) -> Iterator[str]:
    if isinstance(named, str) and DIGITS.fullmatch(named):
        yield _checked(named, "trusted key")
        return
    path = Path(named)
    if not path.is_file():
        raise UsageError(f"{named}: neither a public key of 64 hexadecimal digits nor a file of such keys")
    lines = path.read_bytes()[:FILE_BYTES_MAX].decode(errors="replace").split()
    if not lines or not all(map(DIGITS.fullmatch, lines)):
        raise MalformedError(f"{path}: not public keys of 64 hexadecimal digits, one a line")
    if not path.stat().st_mode & OTHERS_MAY_READ:
        raise UsageError(
            f"{path}: only its owner may read it, as is so for signing keys: give the public key that belongs to it "
            "(`tally new-key` and `tally serve-model` print it), or `chmod a+r` a file of public keys"
        )
    yield from (_checked(line, path.name) for line in lines)


def _checked(digits: str, what: str) -> str:
    try:
        return TypeAdapter(PublicKey).validate_python(digits.lower())
    except ValidationError as error:
        raise MalformedError(f"{what}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
