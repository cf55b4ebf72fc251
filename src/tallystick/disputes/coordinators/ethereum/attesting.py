"""A board's word over HTTP: `POST /v1/attestations` with the turn and its data, answered with the board's signature.

Anybody may ask: the board says no more than that it keeps what everybody can fetch from it.
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
from tallystick.disputes.coordinators.local.bodies import read_body
from tallystick.disputes.coordinators.local.problems import PROBLEM_BYTES_MAX, Problem, error_of
from tallystick.disputes.coordinators.local.wire import RequestLimits, Wire
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError, ProofError, UnavailableError

PATH: Final = "/v1/attestations"
QUESTION_BYTES_MAX: Final = 1024
SECONDS_MAX: Final = 10.0
_JSON: Final = {"Content-Type": "application/json"}


class AttestationRequest(Document):
    """The turn for whose data a board is asked for its word."""

    kind: Literal["attestation"] = "attestation"
    version: Literal[1] = 1
    chain: Count
    contract: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    dispute: Count
    turn: Count
    data: DigestText


class Word(Document):
    """A board's signature."""

    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]


def create_app(board: AttestingBoard) -> FastAPI:
    """The application over one board, for one contract."""
    app = FastAPI(title="tally board", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post(PATH)
    async def attest(request: Request) -> Response:
        try:
            question = AttestationRequest.from_bytes(
                await read_body(request, QUESTION_BYTES_MAX, SECONDS_MAX), "question"
            )
            word = await asyncio.to_thread(_word, board, question)
        except Problem as problem:
            return problem.to_response()
        except MalformedError as error:
            return Problem(400, "malformed", str(error)).to_response()
        except UnavailableError as error:
            return Problem(404, "data", str(error)).to_response()
        return Response(word.to_bytes(), media_type="application/json")

    return app


@dataclass(frozen=True)
class RemoteAttester:
    """A board behind HTTP, asked for its word about the turns of one contract."""

    url: str
    board: str
    chain: int
    contract: str
    effort: RequestLimits | None = None

    def attest(self, dispute: int, turn: int, data: Digest) -> bytes:
        """The board's signature, checked.

        Raises:
            UnavailableError: The board does not answer, does not keep the data, or gives a signature of another.
        """
        question = AttestationRequest(chain=self.chain, contract=self.contract, dispute=dispute, turn=turn, data=data)
        wire = Wire(self.url, self.effort)
        try:
            answer = wire.ask("POST", PATH, PROBLEM_BYTES_MAX, question.to_bytes(), _JSON)
        finally:
            wire.close()
        if answer.status != 200:
            raise UnavailableError(f"the board gives no word: {error_of(answer.status, answer.body, self.url)}")
        try:
            signature = bytes.fromhex(Word.from_bytes(answer.body, f"{self.url}: attestation").signature)
            check_attestation(signature, self.board, self.chain, self.contract, dispute, turn, data)
        except (MalformedError, ProofError) as error:
            raise UnavailableError(str(error)) from None
        return signature


def _word(board: AttestingBoard, question: AttestationRequest) -> Word:
    if (question.chain, question.contract) != (board.chain, board.contract):
        raise MalformedError("question: about another contract than this board's")
    return Word(signature=board.attest(question.dispute, question.turn, question.data).hex())
