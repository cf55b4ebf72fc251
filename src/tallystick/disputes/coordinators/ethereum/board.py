"""Boards for moves at a contract: a folder of blobs, and one that attests over HTTP what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from tallystick.core.digests import Digest, digest, parse_digest
from tallystick.core.documents import Count, DigestText, Document
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import read_document, write_atomically
from tallystick.core.http.client import HttpClient, RequestLimits
from tallystick.core.http.problems import (
    PROBLEM_BYTES_MAX,
    Problem,
    answer_errors,
    error_of,
    problem_of,
    problem_response,
)
from tallystick.core.http.server import read_body
from tallystick.disputes.coordinators.coordinator import BLOB_BYTES_MAX, BlobIndex, whole_manifests
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey, kept_data, signer_of

# Boards for moves at a contract: a folder of blobs, and a board that attests the data that it keeps.


@dataclass(frozen=True)
class FolderBoard:
    """Blobs in files named by their digests, for parties that share a folder."""

    folder: Path

    def put(self, data: bytes) -> Digest:
        """Keep `data` durably; raises `UsageError` if it is too large."""
        if len(data) > BLOB_BYTES_MAX:
            raise UsageError(f"a blob of {len(data)} bytes: the board takes {BLOB_BYTES_MAX} at most")
        name = digest("blob", data)
        if not self._path(name).exists():
            write_atomically(self._path(name), data)
        return name

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest; raises `UnavailableError` if they are not there, or are others."""
        data = read_document(self._path(parse_digest(name, "blob")), BLOB_BYTES_MAX)
        if digest("blob", data) != name:
            raise UnavailableError(f"{name}: other bytes lie in its place")
        return data

    def missing(self, names: Iterable[Digest]) -> list[Digest]:
        """Those digests without matching bytes; all files are read, because anybody may write into the folder."""
        return [name for name in names if not self._has(name)]

    def _has(self, name: Digest) -> bool:
        try:
            self.get(name)
        except UnavailableError:
            return False
        return True

    def _path(self, name: Digest) -> Path:
        hexadecimal = name.removeprefix("sha256:")
        return self.folder / hexadecimal[:2] / hexadecimal


@dataclass(frozen=True)
class AttestingBoard:
    """A board whose attestations a contract requires: it signs after a check that it keeps the data of a turn."""

    board: BlobIndex
    key: EthereumKey
    chain: int
    contract: str

    @cached_property
    def _check_manifest(self) -> Callable[[Digest], None]:
        """Kept for all attestations, because it remembers complete manifests."""
        return whole_manifests(self.board)

    def attest(self, dispute: int, turn: int, data: Digest) -> bytes:
        """The 65 bytes of a signature over typed data.

        Raises:
            UnavailableError: The manifest, or a file that it lists, does not lie at the board.
            MalformedError: What lies under `data` is no manifest.
        """
        self._check_manifest(data)
        return self.key.sign_typed(kept_data(self.chain, self.contract, dispute, turn, data))


def check_attestation(
    signature: bytes, board: str, chain: int, contract: str, dispute: int, turn: int, data: Digest
) -> None:
    """Raise `ProofError` unless `signature` is the attestation of the address `board` for the data of this turn."""
    try:
        signer = signer_of(kept_data(chain, contract, dispute, turn, data), signature)
    except MalformedError as error:
        raise ProofError(str(error)) from None
    if signer != board:
        raise ProofError(f"the signature is not one of the board {board} over this data")


# Attestations over HTTP: `POST /v1/attestations` with a turn and its data; the response is the board's signature.
#
# Anybody may ask, because the board only confirms that it keeps data that everybody can fetch from it.

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
