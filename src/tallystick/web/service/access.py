"""Who asks, what they may do, and how often."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from shlex import quote
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from tallystick.http.guarding import origin_of
from tallystick.http.problems import Problem
from tallystick.store.database.tokens import SCOPES, TokenGrant, grant_of
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.web.service.settings import PUBLIC, ServiceOptions

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
        found = await gate.caller(request)
        for scope in scopes:
            found.require(scope, request.path_params.get("name"))
        return found

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
