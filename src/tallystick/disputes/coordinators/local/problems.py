"""Refusals over HTTP: `application/problem+json` (RFC 9457) with the code by which the game refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from fastapi.responses import Response

from tallystick.commitments.encoding import Json, decode, encode
from tallystick.errors import MalformedError, ProofError, RuleError, TallyError, UnavailableError, UsageError

DETAIL_MAX: Final = 500
PROBLEM_BYTES_MAX: Final = 1 << 16
MEDIA_TYPE: Final = "application/problem+json"
NEVER: Final = frozenset({"cuts", "child", "range", "value", "proof", "evidence", "commitment", "seal", "level"})
"""Codes of moves that say something wrong; of the others the time or the phase is wrong."""
FORBIDDEN: Final = frozenset({"actor", "self", "standing"})


@dataclass(eq=False)
class Problem(Exception):  # noqa: N818  the noun of what the client gets
    """A request that is not answered: status, code for programs, and a line for people."""

    status: int
    code: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    def to_response(self) -> Response:
        """The whole response."""
        body: Json = {
            "code": self.code,
            "detail": "".join(each if each.isprintable() else "\ufffd" for each in self.detail[:DETAIL_MAX]),
            "status": self.status,
            "title": HTTPStatus(self.status).phrase,
            "type": "about:blank",
        }
        return Response(encode(body), self.status, self.headers, MEDIA_TYPE)


def problem_of(error: TallyError) -> Problem:
    """How an error of the coordinator is told to a client."""
    if isinstance(error, RuleError):
        return Problem(_status(error.code), error.code, str(error))
    if isinstance(error, ProofError):
        return Problem(401, "signature", str(error))
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", str(error), {"Retry-After": "1"})
    return Problem(413, "size", str(error)) if isinstance(error, UsageError) else Problem(400, "malformed", str(error))


def error_of(status: int, body: bytes, where: str) -> TallyError:
    """What a client raises for a response that is no answer: whatever comes from elsewhere is `UnavailableError`."""
    try:
        problem = decode(body, "problem")
    except MalformedError:
        problem = None
    code = problem.get("code") if isinstance(problem, dict) else None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    if not isinstance(code, str) or not isinstance(detail, str) or not 400 <= status < 500:
        return UnavailableError(f"{where}: answered with status {status}")
    known = {"malformed": MalformedError, "signature": ProofError, "size": UsageError, "absent": UnavailableError}
    return known[code](detail[:DETAIL_MAX]) if code in known else RuleError(code[:40], detail[:DETAIL_MAX])


def _status(code: str) -> int:
    if code in FORBIDDEN:
        return 403
    if code == "quota":
        return 413
    return 422 if code in NEVER or code == "data" else 409
