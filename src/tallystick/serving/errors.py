"""Errors as the OpenAI API words them: `{"error": {"message", "type", "param", "code"}}` under a 4xx or 5xx status."""

from __future__ import annotations

from typing import Final

from fastapi.responses import JSONResponse

from tallystick.commitments.encoding import Json
from tallystick.http.problems import Problem

MESSAGE_MAX: Final = 500
CODES: Final = {"malformed": None, "size": "request_too_large", "slow": "timeout"}
"""The codes of refused bodies (`http.bodies`) in the words of the API."""


def error_response(problem: Problem) -> JSONResponse:
    """The whole response."""
    return JSONResponse(error_object(problem), problem.status, problem.headers)


def error_object(problem: Problem) -> Json:
    """The error object."""
    return {
        "error": {
            "message": problem.detail[:MESSAGE_MAX],
            "type": _type_of(problem.status),
            "param": problem.parameter,
            "code": CODES.get(problem.code, problem.code) if problem.code else None,
        }
    }


def invalid(message: str, field: str | None = None, code: str | None = None) -> Problem:
    """What the client asked makes no sense, or is not offered."""
    return Problem(400, code, message, field)


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
