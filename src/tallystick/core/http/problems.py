"""Refused requests (RFC 9457), and the keys by which clients are admitted."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.errors import MalformedError, ProofError, RuleError, TallyError, UnavailableError, UsageError

# Refused requests: what the server raises, what it answers (RFC 9457), and which error a client raises from it.

DETAIL_MAX: Final = 500
PROBLEM_BYTES_MAX: Final = 1 << 16
MEDIA_TYPE: Final = "application/problem+json"


@dataclass(eq=False)
class Problem(Exception):  # noqa: N818  RFC 9457's noun
    """A refused request: HTTP status, code for programs, one line for people, and the wrong parameter if any."""

    status: int
    code: str | None
    detail: str
    parameter: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_response(problem: Problem) -> Response:
    """A problem as `application/problem+json`."""
    body: Json = {
        "code": problem.code,
        "detail": "".join(sign if sign.isprintable() else "\ufffd" for sign in problem.detail[:DETAIL_MAX]),
        "status": problem.status,
        "title": HTTPStatus(problem.status).phrase,
        "type": "about:blank",
    }
    return Response(encode(body), problem.status, problem.headers, MEDIA_TYPE)


def answer_errors(
    app: FastAPI,
    form: Callable[[Problem], Response],
    problems: Mapping[type[Exception], Callable[[Request, Any], Problem]],
) -> None:
    """Answer every `Problem` as `form` writes it, and every error type in `problems` likewise."""
    for kind, problem_of_kind in ({Problem: lambda _, problem: problem} | dict(problems)).items():
        app.add_exception_handler(kind, _handler(form, problem_of_kind))


def problem_of(error: TallyError) -> Problem:
    """The problem with which a server answers an error: 409, 401, 503, 413 or 400 by its type."""
    if isinstance(error, RuleError):
        return Problem(409, error.code, str(error))
    if isinstance(error, ProofError):
        return Problem(401, "signature", str(error))
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", str(error), headers={"Retry-After": "1"})
    return Problem(413, "size", str(error)) if isinstance(error, UsageError) else Problem(400, "malformed", str(error))


def error_of(status: int, body: bytes, where: str) -> TallyError:
    """The error that a client raises for a refusal; `UnavailableError` if the body has no known form."""
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


def _handler(
    form: Callable[[Problem], Response], problem_of_kind: Callable[[Request, Any], Problem]
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        return form(problem_of_kind(request, error))

    return answer


# API keys: the bearer tokens by which clients are admitted, and the files that hold them.

KEYS_MAX: Final = 10_000


def check_key(request: Request, keys: Collection[str]) -> None:
    """Raise `Problem` with status 401 unless the request carries one of `keys` as its bearer token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.encode("latin-1")  # the bytes on the wire: headers are read as Latin-1
    if scheme.lower() != "bearer" or not any(hmac.compare_digest(token, key.encode()) for key in keys):
        message = "a valid key is needed: Authorization: Bearer KEY"
        raise Problem(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})


def read_keys(path: Path) -> frozenset[str]:
    """The lines of a file; raises `UsageError` if there are none, too many, or blanks in one."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path}: byte {error.start} is not UTF-8") from None
    if not lines or len(lines) > KEYS_MAX or any(len(line.split()) > 1 for line in lines):
        raise UsageError(f"{path}: not 1 to {KEYS_MAX} keys, one a line, without blanks")
    return frozenset(lines)
