"""How a challenger finds what it contests: by an audit in its own process, or in a separate one."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol, Self, cast

from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import write_atomically
from tallystick.disputes.evidence.doubting import doubter_for
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Ground
from tallystick.disputes.game.state import PostedClaim, Status
from tallystick.disputes.parties.game_view import claim_name
from tallystick.disputes.parties.player import FAILURES, Workspace

# How long claims have to be open to contests: a window that follows from an audit as it was timed on a machine.
#
# The window is part of the rules, which are the same for everybody and never change. So a prover cannot shorten it, and
# a challenger cannot hold a bond by asking for more time.

AUDITS: Final = 40
"""So many audits, one after the other, fit into a window: other claims come first, and machines become busy."""


def window_for(run: Path) -> int:
    """Seconds in which a claim like `run` can be contested: `AUDITS` times what auditing it takes here and now.

    Raises `UsageError` for a run that is not right, and what an audit raises.
    """
    statement, started = statement_at(run), time.perf_counter()
    doubter = doubter_for()
    try:
        doubt = doubter.doubt_of(statement)
    except ProofError as error:
        raise UsageError(f"{run}: no claim to time an audit with: {error}") from None
    if doubt is not None:
        raise UsageError(f"{run}: no claim to time an audit with: {doubt.reason}")
    doubter.unseen_in(statement)
    return math.ceil(AUDITS * (time.perf_counter() - started))


@dataclass(frozen=True)
class AuditFinding:
    """The result of an audit: a doubt, or `None` and what could not have been seen."""

    doubt: Doubt | None
    unseen: tuple[str, ...] = ()

    @classmethod
    def by(cls, doubter: Doubter, claim: PostedClaim, statement: Path) -> AuditFinding:
        """Audit a claim in this process."""
        doubt = doubter.doubt(claim, statement)
        return cls(doubt, () if doubt is not None else doubter.unseen(claim, statement))

    @classmethod
    def read(cls, form: Mapping[str, Json] | None) -> AuditFinding | None:
        """The finding in a note that `to_json` wrote; `None` if there is none that can be read."""
        if form is None or "doubt" not in form:
            return None
        doubt, unseen = read_doubt(form["doubt"]), form.get("unseen", [])
        if (doubt is None and form["doubt"] is not None) or not isinstance(unseen, list):
            return None
        return cls(doubt, tuple(str(each) for each in unseen))

    def to_json(self) -> dict[str, Json]:
        """The finding as a note."""
        return {"doubt": None if self.doubt is None else asdict(self.doubt), "unseen": list(self.unseen)}


class Auditor(Protocol):
    """A challenger's audits of claims, and its choices in disputes over them."""

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """The result of the audit of a claim; `None` while another process computes it. Raises the audit's failure."""
        ...

    def is_pending(self, claim: PostedClaim) -> bool:
        """Whether a requested audit of a claim is in progress in another process, or waits for one."""
        ...

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """End the audits of all other claims, because their results are not needed any more."""
        ...

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """As `Doubter.choose`."""
        ...


@dataclass(frozen=True)
class InlineAuditor:
    """Audits in the challenger's own process, which makes no move until an audit ends."""

    doubters: Callable[[PostedClaim], Doubter]

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding:
        """See `Auditor`."""
        return AuditFinding.by(self.doubters(claim), claim, statement)

    def is_pending(self, claim: PostedClaim) -> bool:
        """Never: an audit ends before `find` returns."""
        return False

    def keep(self, claims: Collection[PostedClaim]) -> None:
        """Do nothing: no audit runs between calls."""

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """See `Auditor`."""
        return self.doubters(answered.claim).choose(answered, children)


def read_doubt(form: Json) -> Doubt | None:
    """The doubt in a JSON value that `AuditFinding.to_json` wrote; `None` if there is none that can be read."""
    if not isinstance(form, dict):
        return None
    low, high, reason = (form.get(name) for name in ("low", "high", "reason"))
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(reason, str)):
        return None
    return Doubt(low, high, reason)


# Audits in a separate process, so that a program can answer its disputes during an audit of many hours.
#
# The program starts the process, and reads from its workspace what the process wrote there. If either is killed, only
# the audit in progress is lost. The process ends with the program, however that ends.

REASON_MAX: Final = 4096


class RecallingDoubter(Doubter, Protocol):
    """A doubter that accepts the findings of another process."""

    def recall(self, claim: PostedClaim, statement: Path, doubt: Doubt | None) -> None:
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
    requested: set[str] = field(default_factory=set)

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
        self.requested.clear()

    def find(self, claim: PostedClaim, statement: Path) -> AuditFinding | None:
        """What was found about a claim; `None` if its audit begins now, is in progress or waits for another audit.

        Raises `UnavailableError` if the audit failed; the next call starts it again.
        """
        self._let_go()
        if (finding := self._recall(claim, statement)) is not None:
            return AuditFinding(self.doubter.doubt(claim, statement), finding.unseen)
        self._raise_failure(claim)
        self.requested.add(_note(claim))
        if self.worker is None:
            self.worker = self._begun(claim, statement)
        return None

    def is_pending(self, claim: PostedClaim) -> bool:
        """See `Auditor`."""
        self._let_go()
        is_asked = self.worker is not None and _note(claim) in self.requested
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
