"""`tallystick.wrap`: a client of the `openai` library whose answers are verified in the background.

Every request gets a fresh nonce, and a random seed where it has none. The answer is returned unchanged. Its verdict
appears in `verdicts` later, and a warning tells of an answer that is not accepted; only a client that raises waits for
it. An error while checking is an inconclusive verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tallystick.audits.answers.background import Action, BackgroundChecks, Checked, OnVerdict, Unverified
from tallystick.audits.answers.sampler import SamplerEvidence
from tallystick.audits.answers.stream import combined
from tallystick.audits.answers.verification import ModelSource, PolicySource, policy_of
from tallystick.audits.answers.watching import WatchedPart

COPIES: Final = ("with_options", "copy")
"""What makes another client of one."""


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
    """A client that answers as `client` does, and verifies the answers of its completions in the background.

    These are `chat.completions`, `completions` and `responses`: `create`, `parse`, `stream`, also with
    `with_raw_response` and `with_streaming_response`. A client with `"raise"` waits for the verdict before it hands an
    answer on, and raises at the end of a stream.

    Args:
        client: an `openai.OpenAI` or `AsyncOpenAI`, or anything with its `chat.completions.create` and
            `completions.create`.
        model: the promised model, or its directory; it is loaded at the first answer, in the precision that the
            receipt names, if the policy's `dtypes` list it.
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
    return VerifyingClient(client, BackgroundChecks(model, policy_of(policy, trusted_keys), follows, on_verdict))


class VerifyingClient:
    """Wraps `client` and verifies its answers; `close`, or the end of `with`, waits for all verdicts.

    Copies by `copy` and `with_options` are verified too, and share the verdicts.
    """

    def __init__(self, client: Any, checks: BackgroundChecks) -> None:
        self._client, self._checks = client, checks

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(WatchedPart(self._client, self._checks), name)
        if name not in COPIES:
            return attribute
        return lambda *given, **named: VerifyingClient(attribute(*given, **named), self._checks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._checks.end)
        await self._client.close()

    @property
    def verdicts(self) -> tuple[Checked, ...]:
        """The verdicts so far, in the order of the answers; the last 10,000 are kept."""
        return self._checks.verdicts

    @property
    def evidence(self) -> tuple[SamplerEvidence, ...]:
        """The evidence about the sampler, summed over all kept answers."""
        reports = [report for each in self.verdicts for report in each.reports]
        return combined(report.evidence for report in reports if report.evidence)

    def wait(self) -> tuple[Checked, ...]:
        """Wait until every answer that was read is checked, and return the verdicts."""
        return self._checks.wait()

    def close(self) -> Any:
        """Wait for every verdict, and close the client; returns what its `close` does, to be awaited if it is async."""
        self._checks.end()
        closing = getattr(self._client, "close", None)
        return None if closing is None else closing()
