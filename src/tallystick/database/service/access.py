"""Who asks a service, what they may do, and how often: settings, tokens and limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import Depends, Request

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import origin_of
from tallystick.database.schema import TOKEN, UPLOAD
from tallystick.database.workload_database import WorkloadDatabase

# Bearer tokens of a service: who may do what. The database holds digests of them alone.
#
# A token is `tally_<number>_<secret>`: the number finds its row, and the digest of the whole is compared in constant
# time. The secret has 256 bits, so a plain hash of it can be kept.

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
    parts = _FORM.fullmatch(token)
    with database.sql.reading() as connection:
        with_number = sa.select(TOKEN).where(TOKEN.c.number == (parts[1] if parts else ""))
        row = connection.execute(with_number).one_or_none()
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


# What the operator of a service decides.

PUBLIC: Final = ("nothing", "claims", "read", "open")
"""What anybody may see without a token; each includes those before it."""


@dataclass(frozen=True)
class ServiceOptions:
    """`public` is one of `PUBLIC`; `runs` is the folder for runs that are sent here, none are taken without it.

    `requests_per_minute` limits each address without a token; a body is of JSON, or a piece of a file.
    """

    public: str = "nothing"
    runs: Path | None = None
    requests_per_minute: int = 600
    json_bytes_max: int = 1 << 20
    piece_bytes_max: int = 64 << 20
    body_seconds_max: float = 30.0
    opened_segments_max: int = 8


# Who asks, what they may do, and how often.

CALLERS_MAX: Final = 10_000
SECONDS: Final = 60.0
IMPLIED_BY: Final = {"claims": ("read", "open"), "read": ("open",)}
"""Whoever may open a run may read its rows, as with `--public`: an audit needs both.

`claims` is a word of `--public` alone; of the scopes of tokens, the least that shows claims is `read`.
"""


@dataclass(frozen=True)
class Caller:
    """Who asks: the grant of their token, or nobody known."""

    grant: TokenGrant | None
    public: str

    def require(self, scope: str, run: str | None = None) -> None:
        """Raise `Problem` 401 or 403 unless the caller may do what `scope` says, with this run if one is named."""
        if self.may(scope, run):
            return
        if self.grant is None:
            raise _unknown()
        of = "" if run is None else " for this run"
        needed = scope if scope in SCOPES else IMPLIED_BY[scope][0]
        mend = f"`tally token new NAME --scope {quote(needed)}` makes one that does"
        raise Problem(403, "scope", f"this token does not allow it: the scope {needed} is needed{of}; {mend}")

    def may(self, scope: str, run: str | None = None) -> bool:
        """Whether the caller may do what `scope` says: it is public, or the token allows it."""
        if scope in PUBLIC and PUBLIC.index(scope) <= PUBLIC.index(self.public):
            return True
        if self.grant is None or (run is not None and not self.grant.allows_run(run)):
            return False
        return bool(self.grant.scopes & {scope, *IMPLIED_BY.get(scope, ())})

    def runs_opened(self) -> frozenset[str] | None:
        """The runs whose graphs the caller may see, of all that may open any; `None` for those of every run."""
        return None if self.grant is None or self.public == "open" else self.grant.runs


@dataclass
class RequestRates:
    """Counts requests of each caller: a bucket that fills evenly and holds those of one minute; not thread-safe."""

    now: Callable[[], float]
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def count(self, caller: str, per_minute: int) -> None:
        """Count a request; raises `Problem` 429 where the bucket of the caller is empty."""
        now = self.now()
        left, last = self._buckets.pop(caller, (float(per_minute), now))
        left = min(per_minute, left + (now - last) * per_minute / SECONDS)
        self._buckets[caller] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = str(int((1 - left) * SECONDS / per_minute) + 1)
            raise Problem(429, "rate", "too many requests; come back", headers={"Retry-After": wait})


class Gate:
    """Finds out who asks, before anything else is done for a request."""

    def __init__(self, database: WorkloadDatabase, options: ServiceOptions, now: Callable[[], float]) -> None:
        self._database, self._options, self._rates = database, options, RequestRates(now)

    async def caller(self, request: Request) -> Caller:
        """The caller of a request; raises `Problem` 401 for a token that is not valid, 429 at too many requests."""
        given = request.headers.get("authorization")
        scheme, _, token = (given or "").partition(" ")
        grant = None
        if scheme.lower() == "bearer":
            grant = await asyncio.to_thread(grant_of, self._database, token.strip())
        if grant is None:
            origin = origin_of(None if request.client is None else (request.client.host, request.client.port))
            self._rates.count(f"from {origin}", self._options.requests_per_minute)
            if given is not None:  # a token that does not count is told, even where none is needed
                raise _unknown()
            return Caller(None, self._options.public)
        request.state.caller = grant.name
        self._rates.count(f"token {grant.name}", grant.requests_per_minute)
        return Caller(grant, self._options.public)


def _who_may(*scopes: str) -> Any:
    """The dependency that names the caller and refuses those who may not do what `scopes` say with the run of the path.

    Dependencies come before parameters: whoever may not ask is told so, and nothing about what they asked.
    """

    async def caller(request: Request) -> Caller:
        gate: Gate = request.app.state.gate
        named = await gate.caller(request)
        for scope in scopes:
            named.require(scope, request.path_params.get("name"))
        return named

    return Depends(caller)


AskedBy = Annotated[Caller, _who_may()]
"""The parameter of a route that says who asks; the route itself has to require what is needed."""
ClaimReader = Annotated[Caller, _who_may("claims")]
Reader = Annotated[Caller, _who_may("read")]
Opener = Annotated[Caller, _who_may("open")]
Sender = Annotated[Caller, _who_may("ingest")]
Challenger = Annotated[Caller, _who_may("challenge", "open")]


def _unknown() -> Problem:
    message = "a valid token is needed: --token-file FILE, or the header Authorization: Bearer TOKEN"
    return Problem(401, "token", message, headers={"WWW-Authenticate": "Bearer"})
