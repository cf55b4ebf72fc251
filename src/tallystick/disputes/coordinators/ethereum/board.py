"""Boards for moves at a contract: a folder of blobs, and a board that attests the data that it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tallystick.commitments.digests import Digest, digest, parse_digest
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey, signer_of
from tallystick.disputes.coordinators.ethereum.typed_data import kept_data
from tallystick.disputes.coordinators.manifest import BLOB_BYTES_MAX
from tallystick.disputes.coordinators.whole import BlobIndex, WholeManifests
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError


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
    def _whole(self) -> WholeManifests:
        """Kept for all attestations, because it remembers complete manifests."""
        return WholeManifests(self.board)

    def attest(self, dispute: int, turn: int, data: Digest) -> bytes:
        """The 65 bytes of a signature over typed data.

        Raises:
            UnavailableError: The manifest, or a file that it lists, does not lie at the board.
            MalformedError: What lies under `data` is no manifest.
        """
        self._whole.check(data)
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
