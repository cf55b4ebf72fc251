"""Audits in a separate process, so that a program can answer its disputes during an audit of many hours.

The program starts the process, and reads from its workspace what the process wrote there. If either is killed, only the
audit in progress is lost. The process ends with the program, however that ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol, Self, cast

from tallystick.commitments.encoding import Json, decode, encode
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Ground
from tallystick.disputes.game.state import PostedClaim, Status
from tallystick.disputes.parties.auditing import AuditFinding
from tallystick.disputes.parties.game_view import claim_name
from tallystick.disputes.parties.task import FAILURES
from tallystick.disputes.parties.workspace import Workspace
from tallystick.documents.files import write_atomically
from tallystick.errors import MalformedError, ProofError, UnavailableError

REASON_MAX: Final = 4096


class RecallingDoubter(Doubter, Protocol):
    """A doubter that accepts the findings of another process."""

    def recall(self, claim: PostedClaim, statement: Path, found: Doubt | None) -> None:
        """Store what was found about a claim, so that it is not computed again."""
        ...


@dataclass(frozen=True)
class Worker:
    """A process that audits one claim, and the key of the note that it writes at its end."""

    process: SpawnProcess
    note: str


@dataclass
class AuditProcess:
    """Audits claims in a separate process, one at a time; implements `Auditor`.

    `make` is called without arguments in that process and makes its doubter. It has to be picklable: a function or
    class of a module, or a `partial` of one. `doubter` belongs to this process, and never audits. A script that uses
    this class needs the line `if __name__ == "__main__":`, as every script that starts Python processes does.
    """

    workspace: Workspace
    make: Callable[[], Doubter]
    doubter: RecallingDoubter
    worker: Worker | None = None
    asked: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the audit in progress."""
        if self.worker is not None:
            self.worker.process.kill()
            self.worker.process.join()
        self.worker = None
        self.asked.clear()

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """What was found about a claim; `None` if its audit begins now, is in progress or waits for another audit.

        Raises `UnavailableError` if the audit failed; the next call starts it again.
        """
        self._let_go()
        if (finding := self._recall(claim, statement)) is not None:
            return AuditFinding(self.doubter.doubt(claim, statement), finding.unseen)
        self._raise_failure(claim)
        self.asked.add(_note(claim))
        if self.worker is None:
            self.worker = self._begun(claim, statement)
        return None

    def is_pending(self, claim: PostedClaim) -> bool:
        """See `Auditor`."""
        self._let_go()
        is_asked = self.worker is not None and _note(claim) in self.asked
        return is_asked and self.workspace.note(_note(claim)) is None

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """See `Auditor`."""
        if self.worker is not None and self.worker.note not in map(_note, claims):
            self.close()

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """See `Auditor`."""
        self._recall(answered.claim, answered.statement)
        return self.doubter.choose(answered, children)

    def _recall(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """The finding, if there is one, which is given to the doubter of this process too."""
        finding = AuditFinding.read(self.workspace.note(_note(claim)))
        if finding is not None:
            self.doubter.recall(claim, statement, finding.doubt)
        return finding

    def _let_go(self) -> None:
        """Close a process that has written its note, or that ended without one and so failed."""
        if self.worker is None:
            return
        is_alive = self.worker.process.is_alive()  # read before the note: the process may write it and end now
        if self.workspace.note(self.worker.note) is None:
            if is_alive:
                return
            sentence = f"the process of the audit ended with exit code {self.worker.process.exitcode} before it found"
            self.workspace.put_note(self.worker.note, {"failed": sentence})
        self.close()

    def _raise_failure(self, claim: PostedClaim) -> None:
        """Raise the failure of an audit, once: the note of it is dropped."""
        noted = self.workspace.note(_note(claim))
        if noted is not None:
            self.workspace.drop_note(_note(claim))
            raise UnavailableError(str(noted.get("failed", "what the audit wrote down cannot be read")))

    def _begun(self, claim: PostedClaim, statement: Path) -> Worker:
        form = encode(cast(Json, asdict(claim) | {"status": claim.status.value}))
        arguments = (self.make, form, str(statement), str(self.workspace.path(_note(claim))))
        process = get_context("spawn").Process(target=audit, args=arguments, daemon=True)
        with _uninterrupted():
            process.start()
        return Worker(process, _note(claim))


def audit(make: Callable[[], Doubter], claim: bytes, statement: str, note: str) -> None:
    """Audit a claim, given as JSON, and write the finding or the failure to the file `note`.

    All arguments come from the own program. The prover's files are only read; nothing of them is unpickled.
    """
    Thread(target=_end_with_parent, daemon=True).start()
    fields = cast(dict[str, Any], decode(claim, "claim"))
    posted = PostedClaim(**fields | {"status": Status(fields["status"])})
    write_atomically(Path(note), encode(_audited(make, posted, Path(statement))))


def _audited(make: Callable[[], Doubter], claim: PostedClaim, statement: Path) -> Json:
    try:
        return AuditFinding.by(make(), claim, statement).to_json()
    except (MalformedError, ProofError) as error:
        return AuditFinding(Doubt(0, claim.size, str(error))).to_json()
    except UnavailableError as error:
        return {"failed": str(error)[:REASON_MAX]}
    except FAILURES as error:
        return {"failed": f"the audit failed by {type(error).__name__}: {error}"[:REASON_MAX]}


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block SIGINT in processes that start inside: Ctrl-C is for the program alone, which then ends its process."""
    resource_tracker.ensure_running()  # it starts with the first process, and unblocks SIGINT again
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _end_with_parent() -> None:
    """End this process when the program has ended, because nothing would read the finding."""
    parent = parent_process()
    assert parent is not None  # this runs in a process that was started by one
    parent.join()
    os._exit(1)


def _note(claim: PostedClaim) -> str:
    return f"audits/{claim_name(claim)}"
