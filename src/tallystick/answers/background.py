"""Checks the answers of a wrapped client in a thread of its own, so that no answer waits for its verdict."""

from __future__ import annotations

import asyncio
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from tallystick.answers.asked_calls import NONCE_BYTES, AskedCall
from tallystick.answers.limits import context_length_of
from tallystick.answers.one_answer import judge_answer
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.stream import StreamReport, is_sampled
from tallystick.answers.unread_receipt import UnreadReport
from tallystick.answers.unverified import Checked, Unverified
from tallystick.answers.verification import ModelSource, model_for, precision_taken, request_of, responses_of
from tallystick.answers.verify import ReceiptContext
from tallystick.judging.verdict import Verdict

HELD: Final = 10_000
WAITING_MAX: Final = 1_000
UNREAD: Final = "could not check: the answer was not read to its end"
LATE: Final = "could not check: the program was about to end"
OnVerdict = Callable[[Checked], object]


class BackgroundChecks:
    """The answers of one wrapped client and its copies, and their verdicts.

    Python waits at its end for the answers that are still to be checked. An answer that nobody read to its end is
    reported as not checked, at the latest then.
    """

    def __init__(
        self, model: ModelSource, policy: ReceiptPolicy, follows: Unverified, on_verdict: OnVerdict | None
    ) -> None:
        self._model, self._policy = model, policy
        self._follows, self._on_verdict = follows, on_verdict
        self._pool = ThreadPoolExecutor(1, "verdicts")
        self._lock, self._waiting = threading.Lock(), 0
        self._checked: deque[Checked] = deque(maxlen=HELD)
        self._unread: dict[str, AskedCall] = {}
        weakref.finalize(self, _warn_of_unread, self._unread, follows)
        # Not `atexit`: by then Python has closed the thread pools, without which no model is loaded.
        threading._register_atexit(_end, weakref.ref(self))  # type: ignore[attr-defined]

    @property
    def verdicts(self) -> tuple[Checked, ...]:
        """The verdicts so far, in the order of the answers; the last `HELD` are kept."""
        with self._lock:
            return tuple(self._checked)

    def wait(self) -> tuple[Checked, ...]:
        """Wait until every answer that has been read is checked, and return the verdicts."""
        self._pool.submit(tuple).result()
        return self.verdicts

    def end(self) -> None:
        """Wait for every verdict; an answer that was not read to its end becomes inconclusive."""
        for call in [*self._unread.values()]:
            self.check(call, Verdict((), (UNREAD,)))
        self.wait()

    def begin(self, call: AskedCall) -> None:
        """Note that the answer to a call is being read."""
        self._unread[call.nonce] = call

    def check(self, call: AskedCall, answer: object) -> Future[Checked]:
        """Check an answer, or what a function reads it from, in the background; a `Verdict` stands as it is."""
        told: Future[Checked] = Future()
        self._unread.pop(call.nonce, None)
        with self._lock:
            self._waiting += 1
            is_full = self._waiting > WAITING_MAX
        if is_full:
            answer = Verdict((), (f"could not check: more than {WAITING_MAX} answers were waiting",))
        try:
            task = self._pool.submit(self._judge, call, answer)
        except RuntimeError:  # a thread that outlives the main one: Python takes no more work
            self._collect(Checked(call.nonce, Verdict((), (LATE,))), call, told)
        else:
            task.add_done_callback(lambda done: self._collect(_checked(call.nonce, done), call, told))
        return told

    def settle(self, told: Future[Checked] | None, answer: object) -> None:
        """Raise what the verdict asks for, where a call waits for it; `None` is a verdict that comes later."""
        if told is not None and self._follows.can_raise:
            self._follows.raise_for(told.result(), answer)

    async def settle_coming(self, told: Future[Checked] | None, answer: object) -> None:
        """The same, waiting without blocking other tasks."""
        if told is not None and self._follows.can_raise:
            self._follows.raise_for(await asyncio.wrap_future(told), answer)

    def _judge(self, call: AskedCall, answer: object) -> Checked:
        if isinstance(answer, Verdict):
            return Checked(call.nonce, answer)
        found = responses_of(answer() if callable(answer) else answer)
        if isinstance(found, UnreadReport):
            return Checked(call.nonce, found.verdict)
        receipt, share = found[0].receipt.receipt, self._policy.audit_sample
        if not is_sampled(secrets.token_bytes(NONCE_BYTES), receipt.identity, share):
            return Checked(call.nonce, Verdict((), not_checked=(f"not in the sample of {share:g} of all answers",)))
        model = model_for(self._model, receipt.model, self._policy)
        asked, places = request_of(call.asked), context_length_of(model)
        contexts = [ReceiptContext(each, asked, context_length=places) for each in found]
        notes = precision_taken(self._model, model, self._policy)
        report = judge_answer(contexts, model, self._policy, not_checked=notes)
        return Checked(call.nonce, report.verdict, report.reports if isinstance(report, StreamReport) else (report,))

    def _collect(self, checked: Checked, call: AskedCall, told: Future[Checked]) -> None:
        with self._lock:
            self._waiting -= 1
            self._checked.append(checked)
        try:
            if self._on_verdict is not None:
                self._on_verdict(checked)
            self._follows.warn(checked, call.file, call.line)
        finally:
            told.set_result(checked)


def _checked(nonce: str, done: Future[Checked]) -> Checked:
    error = done.exception()
    line = f"could not check: {error or type(error).__name__}"
    return done.result() if error is None else Checked(nonce, Verdict((), (line,)))


def _end(held: weakref.ref[BackgroundChecks]) -> None:
    checks = held()
    if checks is not None:
        checks.end()


def _warn_of_unread(unread: dict[str, AskedCall], follows: Unverified) -> None:
    for call in unread.values():
        follows.warn(Checked(call.nonce, Verdict((), (UNREAD,))), call.file, call.line)
