"""Errors as the OpenAI API words them: `{"error": {"message", "type", "param", "code"}}` under a 4xx or 5xx status."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi.responses import JSONResponse

from tallystick.commitments.encoding import Json

MESSAGE_MAX = 500


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818  the noun of what the client gets
    """A request that is not answered: status, message, the field at fault and a code for programs."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        """The error object."""
        return {
            "error": {
                "message": self.message[:MESSAGE_MAX],
                "type": _type_of(self.status),
                "param": self.param,
                "code": self.code,
            }
        }

    def to_response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.to_json(), self.status, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """What the client asked makes no sense, or is not offered."""
    return Refusal(400, message, param, code)


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
