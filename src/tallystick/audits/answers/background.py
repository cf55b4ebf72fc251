"""Calls of a wrapped client, checked in a thread of its own, and what is done where a check fails."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import UnreadReport
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.statements import context_length_of
from tallystick.audits.answers.stream import StreamReport, is_sampled
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verification import (
    ModelSource,
    judge_answer,
    model_for,
    precision_taken,
    request_of,
    responses_of,
)
from tallystick.core.errors import InconclusiveError, RejectedError, UsageError, VerdictError
from tallystick.formats.requests import Form, form_of_request
from tallystick.verdicts.verdict import Judgement, Outcome, Verdict

# What a wrapped client does where an answer is rejected or could not be verified: warn, raise, or nothing.

Action = Literal["warn", "raise", "ignore"]
ERRORS: Final[dict[str, type[VerdictError]]] = {"rejected": RejectedError, "inconclusive": InconclusiveError}
SAID: Final = {"rejected": "was rejected", "inconclusive": "could not be verified"}
REASON_MAX: Final = 300


class UnverifiedAnswerWarning(RuntimeWarning):
    """An answer of a wrapped client was rejected, or could not be verified."""


@dataclass(frozen=True, repr=False)
class Checked(Judgement):
    """The verdict on the answer, or the answers, to one request, which `nonce` identifies.

    `reports` has the report on each answer; it is empty if nothing could be checked.
    """

    nonce: str
    verdict: Verdict
    reports: tuple[ReceiptReport, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was judged, and of which request."""
        return f"{self.verdict.gist}, nonce {self.nonce}"


@dataclass(frozen=True)
class Unverified:
    """What follows an answer that is not accepted. An answer that the policy leaves out of its sample is none."""

    on_reject: Action
    on_inconclusive: Action

    def __post_init__(self) -> None:
        for name, chosen in (("on_reject", self.on_reject), ("on_inconclusive", self.on_inconclusive)):
            if chosen not in get_args(Action):
                raise UsageError(f"{name}={chosen!r}: 'warn', 'raise' or 'ignore'")

    @property
    def can_raise(self) -> bool:
        """Whether a call has to wait for its verdict."""
        return "raise" in (self.on_reject, self.on_inconclusive)

    def warn(self, checked: Checked, file: str, line: int) -> None:
        """Warn of an answer where that is what follows; the warning names the line that asked for it."""
        if self._action(checked) == "warn":
            warnings.warn_explicit(_sentence(checked), UnverifiedAnswerWarning, file, line)

    def raise_for(self, checked: Checked, answer: object) -> None:
        """Raise `RejectedError` or `InconclusiveError` where that is what follows."""
        if self._action(checked) == "raise":
            raise ERRORS[checked.verdict.outcome](_sentence(checked), checked, answer)

    def _action(self, checked: Checked) -> Action:
        if checked.verdict.outcome == "rejected":
            return self.on_reject
        return self.on_inconclusive if checked.verdict.unavailable else "ignore"


def _sentence(checked: Checked) -> str:
    """One line: which answer, what became of it, and the first reason."""
    verdict = checked.verdict
    reasons = [" ".join(filter(None, (each.name, each.where, each.detail))) for each in verdict.objections]
    reason = [*reasons, *verdict.unavailable][0]
    line = f"the answer to the request with nonce {checked.nonce} {SAID[verdict.outcome]}: {reason[:REASON_MAX]}"
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


# One call of a wrapped client: what is asked, with a nonce and a seed, and which line of the program asks it.

NONCE_BYTES: Final = 16
SEED_LIMIT: Final = 1 << 52
LIBRARIES: Final = ("openai", "tallystick")
"""A warning names the line of the program that calls these, and none of theirs."""


@dataclass(frozen=True)
class AskedCall:
    """The arguments of one call, and the line of the program that made it."""

    body: dict[str, Any]
    file: str
    line: int

    @property
    def nonce(self) -> str:
        """By which the request is known."""
        return str({**self.body, **(self.body.get("extra_body") or {})}["tally_nonce"])

    @property
    def form(self) -> Form:
        """The form of the answer that is asked for."""
        return form_of_request(self.body)

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in chunks."""
        return self.body.get("stream") is True

    def as_sent(self, body: dict[str, Any]) -> AskedCall:
        """The call with the body that was sent: arguments may be objects of the client's library."""
        return replace(self, body=body)

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments that are JSON values; the client's marker for an omitted argument is none."""
        kinds = (str, int, float, list, tuple, Mapping)
        return {name: value for name, value in self.body.items() if value is None or isinstance(value, kinds)}


def asked_here(arguments: Mapping[str, Any], has_seed: bool = True) -> AskedCall:
    """The call that the program makes with these arguments, now; `has_seed` as for `with_nonce`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame = frame.f_back
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("tallystick", 0)
    return AskedCall(with_nonce(arguments, has_seed), file, line)


def with_nonce(arguments: Mapping[str, Any], has_seed: bool = True) -> dict[str, Any]:
    """The arguments of a call with a fresh random nonce, and with a seed; in `extra_body`, where calls have none."""
    extra = dict(arguments.get("extra_body") or {})
    extra.setdefault("tally_nonce", secrets.token_hex(NONCE_BYTES))
    body = {**arguments, "extra_body": extra}
    if not isinstance(arguments.get("seed"), int) and "seed" not in extra:
        (body if has_seed else extra)["seed"] = secrets.randbelow(SEED_LIMIT)
    return body


# Checks the answers of a wrapped client in a thread of its own, so that no answer waits for its verdict.

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
        checked: Future[Checked] = Future()
        self._unread.pop(call.nonce, None)
        with self._lock:
            self._waiting += 1
            is_full = self._waiting > WAITING_MAX
        if is_full:
            answer = Verdict((), (f"could not check: more than {WAITING_MAX} answers were waiting",))
        try:
            task = self._pool.submit(self._judge, call, answer)
        except RuntimeError:  # a thread that outlives the main one: Python takes no more work
            self._collect(Checked(call.nonce, Verdict((), (LATE,))), call, checked)
        else:
            task.add_done_callback(lambda done: self._collect(_checked(call.nonce, done), call, checked))
        return checked

    def settle(self, checked: Future[Checked] | None, answer: object) -> None:
        """Raise what the verdict asks for, where a call waits for it; `None` is a verdict that comes later."""
        if checked is not None and self._follows.can_raise:
            self._follows.raise_for(checked.result(), answer)

    async def settle_coming(self, checked: Future[Checked] | None, answer: object) -> None:
        """The same, waiting without blocking other tasks."""
        if checked is not None and self._follows.can_raise:
            self._follows.raise_for(await asyncio.wrap_future(checked), answer)

    def _judge(self, call: AskedCall, answer: object) -> Checked:
        if isinstance(answer, Verdict):
            return Checked(call.nonce, answer)
        responses = responses_of(answer() if callable(answer) else answer)
        if isinstance(responses, UnreadReport):
            return Checked(call.nonce, responses.verdict)
        receipt, share = responses[0].receipt.receipt, self._policy.audit_sample
        if not is_sampled(secrets.token_bytes(NONCE_BYTES), receipt.identity, share):
            return Checked(call.nonce, Verdict((), not_checked=(f"not in the sample of {share:g} of all answers",)))
        model = model_for(self._model, receipt.model, self._policy)
        request, places = request_of(call.asked), context_length_of(model)
        contexts = [ReceiptContext(each, request, context_length=places) for each in responses]
        notes = precision_taken(self._model, model, self._policy)
        report = judge_answer(contexts, model, self._policy, not_checked=notes)
        return Checked(call.nonce, report.verdict, report.reports if isinstance(report, StreamReport) else (report,))

    def _collect(self, checked: Checked, call: AskedCall, waited: Future[Checked]) -> None:
        with self._lock:
            self._waiting -= 1
            self._checked.append(checked)
        try:
            if self._on_verdict is not None:
                self._on_verdict(checked)
            self._follows.warn(checked, call.file, call.line)
        finally:
            waited.set_result(checked)


def _checked(nonce: str, done: Future[Checked]) -> Checked:
    error = done.exception()
    line = f"could not check: {error or type(error).__name__}"
    return done.result() if error is None else Checked(nonce, Verdict((), (line,)))


def _end(reference: weakref.ref[BackgroundChecks]) -> None:
    checks = reference()
    if checks is not None:
        checks.end()


def _warn_of_unread(unread: dict[str, AskedCall], follows: Unverified) -> None:
    for call in unread.values():
        follows.warn(Checked(call.nonce, Verdict((), (UNREAD,))), call.file, call.line)
