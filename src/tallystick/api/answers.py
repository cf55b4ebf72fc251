"""`tallystick.verify`: one answer of a model, in whatever form it is held, against the promised model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.answers.ladder import climb
from tallystick.answers.limits import context_length_of
from tallystick.answers.report import ReceiptReport
from tallystick.answers.verification import (
    ModelSource,
    PolicySource,
    RequestSource,
    model_of,
    policy_of,
    request_of,
    response_of,
)
from tallystick.answers.verify import ReceiptContext
from tallystick.api.rung_tools import tools_for
from tallystick.api.threads import threads_of

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
    nonce: bytes | str | None = None,
    count: int | None = None,
    environment: Environment | Path | str | None = None,
    rung: int | None = None,
    layer: int | None = None,
) -> ReceiptReport:
    """Judge one response by its receipt: what it states, one pass over its tokens, and higher rungs where needed.

    Args:
        response: a signed receipt, or a response that carries one: as JSON text, as parsed JSON, or as an object of the
            `openai` client.
        model: the promised model, or its directory.
        policy: what the verifier asks, or its file.
        trusted_keys: public keys of the provider, or files of them; a receipt that another key signed is rejected.
        request: what was asked: the arguments of the call, or a file of its JSON.
        opening: the provider's answer to a challenge of committed states, or its file.
        nonce: the nonce of that challenge: 1 to 64 bytes, or their hexadecimal digits.
        count: how many parts were challenged; by default as many as the policy says.
        environment: the provider's environment, or its file, to see where stacks differ.
        rung: go up to 1 tokens, 2 fingerprints, 3 one layer by operators, 4 exact replay; without it, as far as there
            is doubt and the material is there.
        layer: the layer to judge on rung 3; by default the nonce chooses.

    Raises:
        MalformedError: something is not what it should be; the line names the field.
        UnavailableError: the model is not there, or verifying takes more than the policy spends.
        UsageError: there is no such rung, an opening comes without its nonce, or the model has no chat template for
            the request.
    """
    read, asked = response_of(response), policy_of(policy, trusted_keys)
    subject = ReceiptContext(read, request_of(request))
    if opening is not None:
        from tallystick.api.challenges import challenged

        subject = challenged(subject, opening, nonce, asked.fingerprints.parts if count is None else count)
    promised = model_of(model)
    tools = tools_for(promised, environment, layer)
    with threads_of(tools.environment):
        return climb(replace(subject, context_length=context_length_of(promised)), promised, asked, rung, tools)
