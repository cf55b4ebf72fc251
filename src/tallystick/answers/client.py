"""`tallystick.wrap`: a client of the `openai` library whose answers are verified in the background.

Every request gets a fresh nonce, and a random seed where it has none. The answer is returned unchanged and without
delay; its verdict appears in `verdicts` later. An error while checking is an inconclusive verdict.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from tallystick.answers.limits import context_length_of
from tallystick.answers.report import ReceiptReport
from tallystick.answers.sampler import SamplerEvidence
from tallystick.answers.stream import combined, is_sampled
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
from tallystick.judging.verdict import Judgement, Outcome, Verdict

NONCE_BYTES: Final = 16
SEED_LIMIT: Final = 1 << 52
HELD: Final = 10_000
WAITING_MAX: Final = 1_000
WATCHED: Final = {"chat": ("completions",), "completions": ()}
"""The attribute path to `create` in a client."""

Found = ReceiptReport | Verdict
OnVerdict = Callable[["Checked"], object]


@dataclass(frozen=True, repr=False)
class Checked(Judgement):
    """The verdict on one answer; `report` is `None` if nothing could be checked. `nonce` identifies the request."""

    nonce: str
    verdict: Verdict
    report: ReceiptReport | None = None

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was judged, and of which request."""
        return f"{self.verdict.gist}, nonce {self.nonce}"


def wrap(
    client: Any, *, model: ModelSource, policy: PolicySource = None, on_verdict: OnVerdict | None = None
) -> VerifyingClient:
    """A client that answers as `client` does, and verifies every answer in the background.

    Args:
        client: an `openai.OpenAI`, or anything with its `chat.completions.create` and `completions.create`.
        model: the promised model, or its directory; it is loaded at the first answer.
        policy: the verifier's policy, or its file; its `audit_sample` is the share of answers that are computed.
        on_verdict: called with every verdict, in the thread that checks.

    Raises `MalformedError` for a file that is not a policy.
    """
    return VerifyingClient(client, model, policy, on_verdict)


class VerifyingClient:
    """Wraps `client` and verifies the answers of `create`; `close`, or the end of `with`, waits for all verdicts."""

    def __init__(self, client: Any, model: ModelSource, policy: PolicySource, on_verdict: OnVerdict | None) -> None:
        self._client, self._model, self._policy = client, model, policy_of(policy)
        self._on_verdict = on_verdict
        self._pool = ThreadPoolExecutor(1, "verdicts")
        self._lock = threading.Lock()
        self._waiting, self._is_closed = 0, False
        self._checked: deque[Checked] = deque(maxlen=HELD)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return _Watched(found, self, WATCHED[name]) if name in WATCHED else found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def close(self) -> None:
        """Wait for every verdict, and close the client; a second call does nothing."""
        with self._lock:
            self._is_closed = True
        self._pool.shutdown()
        closing = getattr(self._client, "close", None)
        if closing is not None:
            closing()

    def check(self, body: Mapping[str, Any], answer: object) -> None:
        """Check an answer to the request `body` in the background."""
        nonce = str(body["extra_body"]["tally_nonce"])
        with self._lock:
            if self._is_closed:
                return
            self._waiting += 1
            is_full = self._waiting > WAITING_MAX
        dropped = Verdict((), (f"could not check: more than {WAITING_MAX} answers were waiting",))
        judge = (lambda: dropped) if is_full else partial(self._judge, dict(body), answer)
        task: Future[Found] = self._pool.submit(judge)
        task.add_done_callback(lambda done: self._collect(nonce, done))

    def _judge(self, body: dict[str, Any], answer: object) -> Found:
        response = response_of(answer if isinstance(answer, Mapping) else json_of(answer))
        share = self._policy.audit_sample
        if not is_sampled(secrets.token_bytes(NONCE_BYTES), response.receipt.receipt.identity, share):
            return Verdict((), not_checked=(f"not in the sample of {share:g} of all answers",))
        model = model_of(self._model)
        asked = request_of({name: value for name, value in body.items() if _is_given(value)})
        places = context_length_of(model)
        return verify_receipt(response.receipt, model, self._policy, asked, response=response, context_length=places)

    def _collect(self, nonce: str, done: Future[Found]) -> None:
        error = done.exception()
        found = Verdict((), (f"could not check: {error or type(error).__name__}",)) if error else done.result()
        checked = Checked(nonce, found) if isinstance(found, Verdict) else Checked(nonce, found.verdict, found)
        with self._lock:
            self._waiting -= 1
            self._checked.append(checked)
        if self._on_verdict is not None:
            self._on_verdict(checked)


class _Watched:
    """An attribute of the client on the path to `create`; other attributes are passed through."""

    def __init__(self, part: Any, owner: VerifyingClient, path: tuple[str, ...]) -> None:
        self._part, self._owner, self._path = part, owner, path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if self._path and name == self._path[0]:
            return _Watched(found, self._owner, self._path[1:])
        return self._create if not self._path and name == "create" else found

    def _create(self, **asked: Any) -> Any:
        body = with_nonce(asked)
        answer = self._part.create(**body)
        if body.get("stream") is True:
            return WatchedStream(answer, lambda whole: self._owner.check(body, whole))
        self._owner.check(body, answer)
        return answer


class WatchedStream:
    """Yields the chunks of a stream as they arrive, and joins them for the check."""

    def __init__(self, stream: Any, check: Callable[[object], None]) -> None:
        self._stream, self._check = stream, check
        self._whole = WholeAnswer()
        self._chunks, self._is_told = self._watched(), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream; an answer that was not read to its end cannot be checked."""
        closing = getattr(self._stream, "close", None)
        if closing is not None:
            closing()
        self._finish()

    def _finish(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._check(self._whole.body)

    def _watched(self) -> Iterator[Any]:
        try:
            for chunk in self._stream:
                self._whole.add(json_of(chunk))
                yield chunk
        finally:
            self._finish()


class WholeAnswer:
    """The response that the chunks of a stream form together."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Any) -> None:
        """Add one chunk."""
        for name in ("id", "usage", "receipt", "receipts", "prompt_token_ids"):
            if chunk.get(name) is not None:
                self._fields[name] = chunk[name]
        for part in chunk.get("choices") or ():
            self._add_choice(part)

    @property
    def body(self) -> dict[str, Any]:
        """The response so far."""
        return {**self._fields, "choices": [self._choices[number] for number in sorted(self._choices)]}

    def _add_choice(self, part: Mapping[str, Any]) -> None:
        choice = self._choices.setdefault(int(part.get("index") or 0), {})
        text = part["text"] if "text" in part else (part.get("delta") or {}).get("content")
        choice["text"] = choice.get("text", "") + (text or "")
        if part.get("token_ids") is not None:
            choice["token_ids"] = [*choice.get("token_ids", ()), *part["token_ids"]]
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]


def with_nonce(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with a fresh random nonce, and with a seed."""
    extra = dict(asked.get("extra_body") or {})
    extra.setdefault("tally_nonce", secrets.token_hex(NONCE_BYTES))
    body = {**asked, "extra_body": extra}
    if not isinstance(asked.get("seed"), int) and "seed" not in extra:
        body["seed"] = secrets.randbelow(SEED_LIMIT)
    return body


def _is_given(value: object) -> bool:
    """Whether an argument is a JSON value; the client's marker for an omitted argument is none."""
    return value is None or isinstance(value, str | int | float | list | tuple | Mapping)
