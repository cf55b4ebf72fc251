"""Audits in a process of their own, so that a program whose audit takes days answers its disputes meanwhile.

The program starts the process, and reads from its workspace what the process wrote there: nothing is lost when either
is killed but the audit that was going on. The process ends with the program, however that ends.
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
from tallystick.disputes.parties.auditing import AuditFinding, doubt_form, read_doubt
from tallystick.disputes.parties.game_view import claim_name
from tallystick.disputes.parties.task import FAILURES
from tallystick.disputes.parties.workspace import Workspace
from tallystick.documents.files import write_atomically
from tallystick.errors import MalformedError, ProofError, UnavailableError

REASON_MAX: Final = 4096


class RecallingDoubter(Doubter, Protocol):
    """A doubter that takes the finding of another one of its kind for its own."""

    def recall(self, claim: PostedClaim, statement: Path, found: Doubt | None) -> None:
        """Take over what was found of a claim, so that it is not computed again."""
        ...


@dataclass(frozen=True)
class Worker:
    """A process that audits one claim, and the note that it leaves when it is done."""

    process: SpawnProcess
    note: str


@dataclass
class AuditProcess:
    """Audits claims in a process of their own, one at a time; implements `Auditor`.

    `make` makes the doubter of that process there: a function or class of a module, or a `partial` of one, that takes
    no more. `doubter` is that of this process, and never audits. A script that uses this needs the line
    `if __name__ == "__main__":`, as everything that starts Python processes does.
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
        """End the audit that is going on."""
        if self.worker is not None:
            self.worker.process.kill()
            self.worker.process.join()
        self.worker = None
        self.asked.clear()

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """What was found of a claim; otherwise its audit begins, or waits until the one that is going on has ended.

        Raises `UnavailableError` where the audit failed; asked again, it begins anew.
        """
        self._let_go()
        if self._recall(claim, statement):
            return AuditFinding(self.doubter.doubt(claim, statement))
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

    def _recall(self, claim: PostedClaim, statement: Path) -> bool:
        """Whether there is a finding, which the doubter of this process now has too."""
        noted = self.workspace.note(_note(claim)) or {}
        doubt = read_doubt(noted.get("doubt"))
        if "doubt" not in noted or (doubt is None and noted["doubt"] is not None):
            return False
        self.doubter.recall(claim, statement, doubt)
        return True

    def _let_go(self) -> None:
        """Part with a process that has written its note, or has ended without one and so failed."""
        if self.worker is None:
            return
        is_alive = self.worker.process.is_alive()  # asked first: it may write its note and end now
        if self.workspace.note(self.worker.note) is None:
            if is_alive:
                return
            sentence = f"the process of the audit ended with exit code {self.worker.process.exitcode} before it found"
            self.workspace.put_note(self.worker.note, {"failed": sentence})
        self.close()

    def _raise_failure(self, claim: PostedClaim) -> None:
        """Raise what an audit failed by, once."""
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
    """Audit a claim, given as JSON, and write down what was found, or what the audit failed by.

    What this process is given comes from its own program alone; of the prover's it reads files, and unpickles nothing.
    """
    Thread(target=_end_with_parent, daemon=True).start()
    fields = cast(dict[str, Any], decode(claim, "claim"))
    posted = PostedClaim(**fields | {"status": Status(fields["status"])})
    write_atomically(Path(note), encode(_audited(make, posted, Path(statement))))


def _audited(make: Callable[[], Doubter], claim: PostedClaim, statement: Path) -> Json:
    try:
        return {"doubt": doubt_form(make().doubt(claim, statement))}
    except (MalformedError, ProofError) as error:
        return {"doubt": doubt_form(Doubt(0, claim.size, str(error)))}
    except UnavailableError as error:
        return {"failed": str(error)[:REASON_MAX]}
    except FAILURES as error:
        return {"failed": f"the audit failed by {type(error).__name__}: {error}"[:REASON_MAX]}


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is for the program alone, which then ends the process: what starts here inherits that it is held off."""
    resource_tracker.ensure_running()  # starts with the first process, and lets interrupts in again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _end_with_parent() -> None:
    """However the program ended: nobody would read what is found."""
    parent = parent_process()
    assert parent is not None  # this runs in a process that was started by one
    parent.join()
    os._exit(1)


def _note(claim: PostedClaim) -> str:
    return f"audits/{claim_name(claim)}"
