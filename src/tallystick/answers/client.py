"""`tallystick.wrap`: a client of the `openai` library whose answers are verified in the background.

Every request gets a fresh nonce, and a random seed where it has none. The answer is returned unchanged. Its verdict
appears in `verdicts` later, and a warning tells of an answer that is not accepted; only a client that raises waits for
it. An error while checking is an inconclusive verdict.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tallystick.answers.asked_calls import NONCE_BYTES, AskedCall, with_nonce
from tallystick.answers.limits import context_length_of
from tallystick.answers.policy import ReceiptPolicy
from tallystick.answers.report import ReceiptReport
from tallystick.answers.sampler import SamplerEvidence
from tallystick.answers.stream import combined, is_sampled
from tallystick.answers.unverified import Action, Checked, Unverified
from tallystick.answers.verification import (
    ModelSource,
    PolicySource,
    json_of,
    model_of,
    policy_of,
    request_of,
    response_of,
)
from tallystick.answers.verify import verify_receipt
from tallystick.answers.watched_streams import AsyncWatchedStream, WatchedStream
from tallystick.judging.verdict import Verdict

HELD: Final = 10_000
WAITING_MAX: Final = 1_000
CALL: Final[Mapping[str, Any]] = {"create": None}
PATHS: Final[Mapping[str, Any]] = {"chat": {"completions": CALL}, "completions": CALL}
"""The attributes of a client that lead to the calls that are watched."""
COPIES: Final = ("with_options", "copy")
"""What makes another client of one; that is watched too."""

Found = ReceiptReport | Verdict
OnVerdict = Callable[[Checked], object]


def wrap(
    client: Any,
    *,
    model: ModelSource,
    policy: PolicySource = None,
    trusted_keys: Sequence[str | Path] = (),
    on_verdict: OnVerdict | None = None,
    on_reject: Action = "warn",
    on_inconclusive: Action = "warn",
) -> VerifyingClient:
    """A client that answers as `client` does, and verifies the answers of `create` in the background.

    A client with `"raise"` waits for the verdict before it hands an answer on, and raises at the end of a stream.

    Args:
        client: an `openai.OpenAI` or `AsyncOpenAI`, or anything with its `chat.completions.create` and
            `completions.create`.
        model: the promised model, or its directory; it is loaded at the first answer.
        policy: the verifier's policy, or its file; its `audit_sample` is the share of answers that are computed.
        trusted_keys: public keys of the provider, or files of them; an answer that another key signed is rejected.
        on_verdict: called with every verdict, in the thread that checks.
        on_reject: what follows a rejected answer: `"warn"` (an `UnverifiedAnswerWarning`), `"raise"` (a
            `RejectedError`) or `"ignore"`.
        on_inconclusive: the same for an answer that could not be verified (`InconclusiveError`).

    Raises:
        MalformedError: a file is not a policy, or holds no public keys.
        UsageError: there is no such action, or a file of keys is not there.
    """
    follows = Unverified(on_reject, on_inconclusive)
    return VerifyingClient(client, model, policy_of(policy, trusted_keys), follows, on_verdict)


class VerifyingClient:
    """Wraps `client` and verifies the answers of `create`; `close`, or the end of `with`, waits for all verdicts."""

    def __init__(
        self, client: Any, model: ModelSource, policy: ReceiptPolicy, follows: Unverified, on_verdict: OnVerdict | None
    ) -> None:
        self._client, self._model, self._policy = client, model, policy
        self._follows, self._on_verdict = follows, on_verdict
        self._pool = ThreadPoolExecutor(1, "verdicts")
        self._lock = threading.Lock()
        self._waiting, self._is_closed = 0, False
        self._checked: deque[Checked] = deque(maxlen=HELD)

    def __getattr__(self, name: str) -> Any:
        return getattr(_Watched(self._client, self, PATHS), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)
        await self._client.close()

    @property
    def verdicts(self) -> tuple[Checked, ...]:
        """The verdicts so far, in the order of the answers; the last `HELD` are kept."""
        return tuple(self._checked)

    @property
    def evidence(self) -> tuple[SamplerEvidence, ...]:
        """The evidence about the sampler, summed over all kept answers."""
        return combined(
            each.report.evidence for each in self.verdicts if each.report is not None and each.report.evidence
        )

    def wait(self) -> tuple[Checked, ...]:
        """Wait until every answer so far is checked, and return the verdicts."""
        self._pool.submit(tuple).result()
        return self.verdicts

    def close(self) -> Any:
        """Wait for every verdict, and close the client; returns what its `close` does, to be awaited if it is async."""
        self._end()
        closing = getattr(self._client, "close", None)
        return None if closing is None else closing()

    def watch(self, call: AskedCall, answer: Any) -> Any:
        """The answer to a call, checked; raises what the verdict asks for, where a call waits for it."""
        if call.is_stream:
            return WatchedStream(answer, partial(self._check, call), self._settle)
        self._settle(self._check(call, answer), answer)
        return answer

    async def watch_coming(self, call: AskedCall, coming: Awaitable[Any]) -> Any:
        """The same for an answer that has to be awaited."""
        answer = await coming
        if call.is_stream:
            return AsyncWatchedStream(answer, partial(self._check, call), self._settle_coming)
        await self._settle_coming(self._check(call, answer), answer)
        return answer

    def _settle(self, told: Future[Checked], answer: object) -> None:
        if self._follows.can_raise:
            self._follows.raise_for(told.result(), answer)

    async def _settle_coming(self, told: Future[Checked], answer: object) -> None:
        if self._follows.can_raise:
            self._follows.raise_for(await asyncio.wrap_future(told), answer)

    def _end(self) -> None:
        with self._lock:
            self._is_closed = True
        self._pool.shutdown()

    def _check(self, call: AskedCall, answer: object) -> Future[Checked]:
        """Check the answer to a call in the background."""
        told: Future[Checked] = Future()
        with self._lock:
            if self._is_closed:
                told.set_result(Checked(call.nonce, Verdict((), ("could not check: the client is closed",))))
                return told
            self._waiting += 1
            is_full = self._waiting > WAITING_MAX
        dropped = Verdict((), (f"could not check: more than {WAITING_MAX} answers were waiting",))
        judge = (lambda: dropped) if is_full else partial(self._judge, call, answer)
        task: Future[Found] = self._pool.submit(judge)
        task.add_done_callback(lambda done: self._collect(call, done, told))
        return told

    def _judge(self, call: AskedCall, answer: object) -> Found:
        response = response_of(answer if isinstance(answer, Mapping) else json_of(answer))
        share = self._policy.audit_sample
        if not is_sampled(secrets.token_bytes(NONCE_BYTES), response.receipt.receipt.identity, share):
            return Verdict((), not_checked=(f"not in the sample of {share:g} of all answers",))
        model = model_of(self._model)
        asked, places = request_of(call.asked), context_length_of(model)
        return verify_receipt(response.receipt, model, self._policy, asked, response=response, context_length=places)

    def _collect(self, call: AskedCall, done: Future[Found], told: Future[Checked]) -> None:
        error = done.exception()
        found = Verdict((), (f"could not check: {error or type(error).__name__}",)) if error else done.result()
        report = None if isinstance(found, Verdict) else found
        checked = Checked(call.nonce, found if isinstance(found, Verdict) else found.verdict, report)
        with self._lock:
            self._waiting -= 1
            self._checked.append(checked)
        try:
            if self._on_verdict is not None:
                self._on_verdict(checked)
            self._follows.warn(checked, call.file, call.line)
        finally:
            told.set_result(checked)


class _Watched:
    """A client, or an attribute of one on the path to `create`; other attributes are passed through."""

    def __init__(self, part: Any, owner: VerifyingClient, paths: Mapping[str, Any]) -> None:
        self._part, self._owner, self._paths = part, owner, paths

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if self._paths is PATHS and name in COPIES:
            return lambda *given, **named: _Watched(found(*given, **named), self._owner, PATHS)
        if name not in self._paths:
            return found
        return self._create if self._paths is CALL else _Watched(found, self._owner, self._paths[name])

    def _create(self, **asked: Any) -> Any:
        here = inspect.currentframe()
        caller = here and here.f_back
        file, line = (caller.f_code.co_filename, caller.f_lineno) if caller else ("tallystick", 0)
        call = AskedCall(with_nonce(asked), file, line)
        answer = self._part.create(**call.body)
        follow = self._owner.watch_coming if inspect.isawaitable(answer) else self._owner.watch
        return follow(call, answer)
