"""The files that a dispute's moves refer to, as folders: each is fetched from the board once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.coordinator import Board
from tallystick.disputes.coordinators.manifest import fetch, publish
from tallystick.disputes.game.protocols import DisputeView, Files
from tallystick.disputes.parties.game_view import GameView
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError


@dataclass(frozen=True)
class BoardCache:
    """A board, and the folder for files from it. The prover of a claim put all of them there."""

    board: Board
    folder: Path

    def publish(self, files: Files) -> Digest:
        """Put files at the board; returns the digest by which a move names them."""
        return publish(files, self.board)

    def folder_of(self, name: Digest) -> Path:
        """A folder with the files that a move or a claim names.

        Raises:
            MalformedError: the bytes under the digest are no valid manifest.
            UnavailableError: the files cannot be fetched now.
        """
        try:
            return fetch(name, self.board, self.folder / name.removeprefix("sha256:"))
        except ProofError as error:  # other bytes under a digest are the board's fault, not the prover's
            raise UnavailableError(str(error)) from None

    def answered(self, view: GameView, number: int) -> DisputeView:
        """A dispute with all files that the prover put at the board for it; raises as `folder_of` does."""
        dispute = view.state.disputes[number]
        claim = view.claim_of(dispute)
        turns = tuple(self.folder_of(data) for data in view.data_of(number))
        return DisputeView(claim, number, dispute, self.folder_of(claim.statement), turns, view.descended(number))

    def lacks(self, view: GameView, number: int) -> bool:
        """Whether the board answers but lacks files of a dispute, so that the prover withheld them."""
        dispute = view.state.disputes[number]
        return self.is_missing(view.claim_of(dispute).statement) or any(map(self.is_missing, view.data_of(number)))

    def is_missing(self, name: Digest) -> bool:
        """Whether the board answers but lacks files that `name` lists."""
        try:
            self.folder_of(name)
        except UnavailableError:
            return self._is_answering()
        except MalformedError:
            return False  # the bytes are there, although they are no manifest
        return False

    def _is_answering(self) -> bool:
        try:
            return self.board.get(self.board.put(b"")) == b""
        except UsageError:
            return True  # it answers that it keeps nothing for this party
        except UnavailableError:
            return False
