"""Writes the anchors of a run: what did not change since the last one is not written again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.documents.files import write_atomically
from tallystick.tensors.digest import StateDigests
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import State
from tallystick.transcripts.anchor_parts import AnchorParts, part_file, parts_file
from tallystick.transcripts.record import anchor_file

LEAST_SAVED: Final = 1 << 20
"""Bytes: where less would be saved, an anchor is one file."""
LEAST_SHARE: Final = 0.25
"""Of the state."""


class AnchorWriter:
    """Writes one anchor after the other; the first is whole, and so is the first after an interruption."""

    def __init__(self, path: Path, least_saved: int = LEAST_SAVED, least_share: float = LEAST_SHARE) -> None:
        self.path, self._least_saved, self._least_share = path, least_saved, least_share
        self._held: dict[str, tuple[Digest, int]] = {}

    def write(self, mark: int, state: State, digests: StateDigests) -> None:
        """Write the state after step `mark`, whose `digests` were just computed.

        A crash leaves no anchor or a whole one: a list is written after the tensors that it does not name.

        Raises `UnavailableError` where the disk refuses it.
        """
        found = {name: each.digest for name, each in digests.entries}
        elsewhere = {name: held for name, (digest, held) in self._held.items() if found.get(name) == digest}
        elsewhere = {name: held for name, held in elsewhere.items() if held < mark}
        saved = sum(state[name].nbytes for name in elsewhere)
        if saved < max(self._least_saved, self._least_share * sum(tensor.nbytes for tensor in state.values())):
            elsewhere = {}
        self._write(mark, state, elsewhere)
        self._held = {name: (digest, elsewhere.get(name, mark)) for name, digest in found.items()}

    def _write(self, mark: int, state: State, elsewhere: dict[str, int]) -> None:
        whole = self.path / anchor_file(mark)
        if not elsewhere:
            write_state(whole, state)
            (self.path / parts_file(mark)).unlink(missing_ok=True)  # of an attempt that was interrupted
            return
        write_state(self.path / part_file(mark), {name: state[name] for name in state if name not in elsewhere})
        whole.unlink(missing_ok=True)
        write_atomically(self.path / parts_file(mark), AnchorParts(elsewhere=elsewhere).to_bytes())
