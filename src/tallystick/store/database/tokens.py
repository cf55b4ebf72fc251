"""Bearer tokens of a service: who may do what. The database holds digests of them alone.

A token is `tally_<number>_<secret>`: the number finds its row, and the digest of the whole is compared in constant
time. The secret has 256 bits, so a plain hash of it can be kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final

import sqlalchemy as sa

from tallystick.errors import UnavailableError, UsageError
from tallystick.store.database.schema import TOKEN, UPLOAD
from tallystick.store.database.workload_database import WorkloadDatabase

SCOPES: Final = ("read", "open", "ingest", "challenge")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FORM: Final = re.compile(r"tally_([0-9a-f]{16})_[0-9A-Za-z_-]{43}")
_NOBODY: Final = "0" * 64


@dataclass(frozen=True)
class TokenGrant:
    """What the holder of a token may do: `scopes`, for all runs or for `runs`, until `end_ns`.

    `run_bytes_max` limits one run that is sent with it.
    """

    name: str
    scopes: frozenset[str]
    runs: frozenset[str] | None = None
    requests_per_minute: int = 6000
    run_bytes_max: int = 64 << 30
    made_ns: int = 0
    end_ns: int | None = None

    def allows_run(self, run: str) -> bool:
        """Whether it is for this run."""
        return self.runs is None or run in self.runs


def new_token(database: WorkloadDatabase, grant: TokenGrant) -> str:
    """Make a token and return it: it is nowhere else. Raises `UsageError` for a name that is taken or no name."""
    if NAME.fullmatch(grant.name) is None:
        raise UsageError(f"{grant.name[:80]}: no name of 1 to 64 letters, digits, dots, dashes")
    unknown = sorted(grant.scopes - {*SCOPES})
    if unknown or not grant.scopes:
        raise UsageError(f"--scope: {', '.join(SCOPES)}" + f"; not {unknown[0]}" * bool(unknown))
    number = secrets.token_hex(8)
    token = f"tally_{number}_{secrets.token_urlsafe(32)}"
    row = {
        "name": grant.name,
        "number": number,
        "digest": _digest(token),
        "scopes": " ".join(sorted(grant.scopes)),
        "runs": None if grant.runs is None else "\n".join(sorted(grant.runs)),
        "requests_per_minute": grant.requests_per_minute,
        "run_bytes_max": grant.run_bytes_max,
        "made_ns": time.time_ns(),
        "end_ns": grant.end_ns,
    }
    with database.writing("tokens") as connection:
        if connection.execute(sa.select(TOKEN.c.name).where(TOKEN.c.name == grant.name)).first() is not None:
            raise UsageError(f"{grant.name}: has a token; `tally token revoke {quote(grant.name)}` takes it away")
        connection.execute(sa.insert(TOKEN).values(**row))
    return token


def grant_of(database: WorkloadDatabase, token: str) -> TokenGrant | None:
    """What a token allows; `None` for one that is unknown, revoked or past its end."""
    found = _FORM.fullmatch(token)
    with database.sql.reading() as connection:
        asked = sa.select(TOKEN).where(TOKEN.c.number == (found[1] if found else ""))
        row = connection.execute(asked).one_or_none()
    is_it = hmac.compare_digest(_digest(token), _NOBODY if row is None else row.digest)
    if row is None or not is_it or (row.end_ns is not None and row.end_ns <= time.time_ns()):
        return None
    return _grant(row)


def list_tokens(database: WorkloadDatabase) -> list[TokenGrant]:
    """What every token allows, in the order of their names."""
    with database.sql.reading() as connection:
        return [_grant(row) for row in connection.execute(sa.select(TOKEN).order_by(TOKEN.c.name))]


def revoke_token(database: WorkloadDatabase, name: str) -> None:
    """Take a token away; raises `UnavailableError` where there is none of that name."""
    with database.writing("tokens") as connection:
        if not connection.execute(sa.delete(TOKEN).where(TOKEN.c.name == name)).rowcount:
            raise UnavailableError(f"{name}: no such token")


def claim_upload(database: WorkloadDatabase, run: str, token: str) -> bool:
    """Whether the run of that name is for this token to send: the first one that sends it keeps it."""
    with database.writing("uploads") as connection:
        owner = connection.execute(sa.select(UPLOAD.c.token).where(UPLOAD.c.name == run)).scalar()
        if owner is None:
            connection.execute(sa.insert(UPLOAD).values(name=run, token=token))
        return owner is None or owner == token


def _grant(row: Any) -> TokenGrant:
    return TokenGrant(
        row.name,
        frozenset(row.scopes.split()),
        None if row.runs is None else frozenset(row.runs.split("\n")),
        row.requests_per_minute,
        row.run_bytes_max,
        row.made_ns,
        row.end_ns,
    )


def _digest(token: str) -> str:
    return hashlib.sha256(b"tallystick token\n" + token.encode()).hexdigest()
