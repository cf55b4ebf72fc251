"""How the service answers what goes wrong: problems (RFC 9457) without a path of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tallystick.errors import MalformedError, ProofError, RuleError, TallyError, UnavailableError, UsageError
from tallystick.http.problems import Problem, answer_errors, problem_response
from tallystick.web.service.logging import write_line

CODES = {404: "absent", 405: "method"}
NO_ROUTE = "nothing is answered here; /openapi.json says what is, and `tally ui --db URL` shows it in a browser"


def answer_errors_alike(app: FastAPI) -> None:
    """Answer every error as a problem; what failed here is written to the log alone."""
    closing = {"Connection": "close"}  # uvicorn hangs up after a failure
    answer_errors(
        app,
        problem_response,
        {
            UsageError: lambda _, error: Problem(400, "usage", str(error)),
            MalformedError: lambda _, error: Problem(400, "malformed", str(error)),
            RuleError: lambda _, error: Problem(409, error.code, str(error)),
            TallyError: _failed,
            RequestValidationError: lambda _, error: Problem(400, "malformed", _first(error)),
            HTTPException: lambda _, error: Problem(
                error.status_code,
                CODES.get(error.status_code, "route"),
                NO_ROUTE if error.status_code == 404 else str(error.detail),
                headers=dict(error.headers or {}),
            ),
            ClientDisconnect: lambda _, __: Problem(400, "malformed", "the client left"),
            Exception: lambda _, error: Problem(
                500, "failed", "the service failed at this request", headers=closing | _noted(error)
            ),
        },
    )


@contextmanager
def files_of_a_run() -> Iterator[None]:
    """Turn what is wrong with the files of a run into a problem: nothing is wrong with the request."""
    try:
        yield
    except (MalformedError, ProofError) as error:
        write_line({"event": "damaged", "error": str(error)})
        raise Problem(409, "damaged", "the files of this run are not as they should be; tell its operator") from None
    except UnavailableError as error:
        write_line({"event": "missing", "error": str(error)})
        raise Problem(404, "absent", "a file of this run is not there") from None


def _failed(request: Request, error: TallyError) -> Problem:
    write_line({"event": "unavailable", "path": request.url.path, "error": str(error)})
    return Problem(503, "unavailable", "something the service needs is not there now", headers={"Retry-After": "1"})


def _noted(error: Exception) -> dict[str, str]:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
    write_line({"event": "failed", "error": f"{type(error).__name__}: {error}", "where": where})
    return {}


def _first(error: RequestValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(str(each) for each in found['loc'])}: {found['msg']}"
