"""Attestations over HTTP: `POST /v1/attestations` with a turn and its data; the response is the board's signature.

Anybody may ask, because the board only confirms that it keeps data that everybody can fetch from it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.ethereum.board import AttestingBoard, check_attestation
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.http.bodies import read_body
from tallystick.http.client import HttpClient, RequestLimits
from tallystick.http.problems import PROBLEM_BYTES_MAX, Problem, answer_errors, error_of, problem_of, problem_response

PATH: Final = "/v1/attestations"
QUESTION_BYTES_MAX: Final = 1024
SECONDS_MAX: Final = 10.0
_JSON: Final = {"Content-Type": "application/json"}


class AttestationRequest(Document):
    """A request for an attestation of the data of one turn."""

    kind: Literal["attestation"] = "attestation"
    version: Literal[1] = 1
    chain: Count
    contract: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    dispute: Count
    turn: Count
    data: DigestText


class Attestation(Document):
    """A board's signature."""

    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]


def create_app(board: AttestingBoard) -> FastAPI:
    """The application over one board, for one contract."""
    app = FastAPI(title="tally board", docs_url=None, redoc_url=None, openapi_url=None)

    answer_errors(
        app,
        problem_response,
        {
            MalformedError: lambda _, error: problem_of(error),
            UnavailableError: lambda _, error: Problem(404, "data", str(error)),
        },
    )

    @app.post(PATH)
    async def attest(request: Request) -> Response:
        question = AttestationRequest.from_bytes(await read_body(request, QUESTION_BYTES_MAX, SECONDS_MAX), "question")
        attestation = await asyncio.to_thread(_attestation, board, question)
        return Response(attestation.to_bytes(), media_type="application/json")

    return app


@dataclass(frozen=True)
class RemoteAttester:
    """A board behind HTTP that attests data for the turns of one contract."""

    url: str
    board: str
    chain: int
    contract: str
    effort: RequestLimits | None = None

    def attest(self, dispute: int, turn: int, data: Digest) -> bytes:
        """The board's signature, checked.

        Raises:
            UnavailableError: The board does not answer, does not keep the data, or another key made the signature.
        """
        question = AttestationRequest(chain=self.chain, contract=self.contract, dispute=dispute, turn=turn, data=data)
        client = HttpClient(self.url, self.effort)
        try:
            answer = client.ask("POST", PATH, PROBLEM_BYTES_MAX, question.to_bytes(), _JSON)
        finally:
            client.close()
        if answer.status != 200:
            raise UnavailableError(f"the board does not attest: {error_of(answer.status, answer.body, self.url)}")
        try:
            signature = bytes.fromhex(Attestation.from_bytes(answer.body, f"{self.url}: attestation").signature)
            check_attestation(signature, self.board, self.chain, self.contract, dispute, turn, data)
        except (MalformedError, ProofError) as error:
            raise UnavailableError(str(error)) from None
        return signature


def _attestation(board: AttestingBoard, question: AttestationRequest) -> Attestation:
    if (question.chain, question.contract) != (board.chain, board.contract):
        raise MalformedError("question: about another contract than this board's")
    return Attestation(signature=board.attest(question.dispute, question.turn, question.data).hex())
