"""`tallystick.verify`: one answer of a model, in whatever form it is held, against the promised model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.answers.ladder import check_rung, climb_from
from tallystick.answers.limits import context_length_of
from tallystick.answers.one_answer import judge_answer
from tallystick.answers.report import ReceiptReport
from tallystick.answers.stream import StreamReport
from tallystick.answers.unread_receipt import UnreadReport
from tallystick.answers.verification import (
    ModelSource,
    PolicySource,
    RequestSource,
    model_for,
    policy_of,
    precision_taken,
    request_of,
    responses_of,
)
from tallystick.answers.verify import ReceiptContext
from tallystick.api.rung_tools import tools_for
from tallystick.api.threads import threads_of
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.api.challenges import OpeningSource
    from tallystick.transcripts.environment import Environment


def verify(
    response: object,
    *,
    model: ModelSource,
    policy: PolicySource = None,
    trusted_keys: Sequence[str | Path] = (),
    request: RequestSource = None,
    opening: OpeningSource | None = None,
    challenge: str | None = None,
    nonce: bytes | str | None = None,
    count: int | None = None,
    environment: Environment | Path | str | None = None,
    rung: int | None = None,
    layer: int | None = None,
) -> ReceiptReport | StreamReport | UnreadReport:
    """Judge one response by its receipt: what it states, one pass over its tokens, and higher rungs where needed.

    A response with several answers (`n`) has a report on all of its receipts, and a signed receipt that has not the
    form of one a report without findings about the answer.

    Args:
        response: a signed receipt, or a response that carries one: as JSON text, as parsed JSON, or as an object of the
            `openai` client.
        model: the promised model, or its directory. A directory is loaded in the precision in which it has the
            receipt's model root, if the policy's `dtypes` list it.
        policy: what the verifier asks, or its file.
        trusted_keys: public keys of the provider, or files of them; a receipt that another key signed is rejected.
        request: what was asked: the arguments of the call, or a file of its JSON.
        opening: the provider's answer to a challenge of committed states, or its file.
        challenge: the provider's address, to ask it for an opening: of `count` parts, or of the states around a layer.
        nonce: the nonce of that challenge: 1 to 64 bytes, or their hexadecimal digits.
        count: how many parts were challenged; by default as many as the policy says.
        environment: the provider's environment, or its file, to see where stacks differ.
        rung: go up to 1 tokens, 2 fingerprints, 3 one layer by operators, 4 exact replay; without it, as far as there
            is doubt and the material is there.
        layer: the layer to judge on rung 3, and to challenge; by default the nonce chooses.

    Raises:
        MalformedError: something is not what it should be; the line names the field.
        UnavailableError: the model is not there, or verifying takes more than the policy spends.
        UsageError: there is no such rung, an opening comes without its nonce, or the model has no chat template for
            the request.
    """
    check_rung(rung)
    found, asked = responses_of(response), policy_of(policy, trusted_keys)
    if isinstance(found, UnreadReport):
        return found
    subjects = [ReceiptContext(each, request_of(request)) for each in found]
    if opening is not None or challenge is not None:
        from tallystick.api.challenges import challenge_provider, challenged

        if len(subjects) > 1:
            raise UsageError("opening, challenge: of one receipt; give that one alone")
        if challenge is not None:
            subjects = [challenge_provider(subjects[0], challenge, nonce, count, layer)[0]]
        elif opening is not None:
            subjects = [challenged(subjects[0], opening, nonce, count or asked.fingerprints.parts, layer)]
    promised = model_for(model, found[0].receipt.receipt.model, asked)
    notes, places = precision_taken(model, promised, asked), context_length_of(promised)
    tools = tools_for(promised, environment, layer)
    with threads_of(tools.environment):
        placed = [replace(each, context_length=places) for each in subjects]
        return judge_answer(placed, promised, asked, lambda each: climb_from(each, rung, tools), notes)
