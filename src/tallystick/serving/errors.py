"""Errors in the form of the OpenAI API: `{"error": {"message", "type", "param", "code"}}` with status 4xx or 5xx."""

from __future__ import annotations

from typing import Final

from fastapi.responses import JSONResponse

from tallystick.commitments.encoding import Json
from tallystick.http.problems import Problem

MESSAGE_MAX: Final = 500
CODES: Final = {"malformed": None, "size": "request_too_large", "slow": "timeout"}
"""The API's codes for those of `http.bodies`."""


def error_response(problem: Problem) -> JSONResponse:
    """The HTTP response to a problem."""
    return JSONResponse(error_object(problem), problem.status, problem.headers)


def error_object(problem: Problem) -> Json:
    """The JSON body for a problem; its message is cut to `MESSAGE_MAX` characters."""
    return {
        "error": {
            "message": problem.detail[:MESSAGE_MAX],
            "type": _type_of(problem.status),
            "param": problem.parameter,
            "code": CODES.get(problem.code, problem.code) if problem.code else None,
        }
    }


def invalid(message: str, field: str | None = None, code: str | None = None) -> Problem:
    """A problem with status 400: the request is wrong, or asks for something that is not offered."""
    return Problem(400, code, message, field)


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
