"""The verdict on a kept answer and on its beginnings, under the default policy with the customer's own request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Final

import torch

from research.real.serving import Answered
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.verify import verify_receipt
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.generation.layer_tap import logit_rows
from tallystick.formats.fingerprints import PUBLIC_SEED, standard_fingerprints
from tallystick.formats.receipt import Answer, Request, Tokens
from tallystick.formats.signing import SigningKey
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
from tallystick.verdicts.language_model import Prefill

LENGTHS: Final = (8, 16, 32, 64, 128, 256, 512)
KEY: Final = SigningKey(bytes(range(32)))
UNSEEDED: Final = ReceiptPolicy(sampler=SamplerRule(seed="unknown"))


def with_one_pass(source: TorchLanguageModel, passed: Prefill) -> TorchLanguageModel:
    """The promised model with a pass already made: what a verifier computes for beginnings of the same answer."""

    class OnePass(TorchLanguageModel):
        """Answers every pass with the first rows of that one."""

        def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
            assert first == passed.first
            count = len(tokens) - first
            hidden = {layer: passed.hidden[layer][:count] for layer in layers}
            return Prefill(first, passed.logits[:count], hidden)

    return OnePass(**{each.name: getattr(source, each.name) for each in fields(source)})


def verdicts(
    model: TorchLanguageModel,
    found: Answered,
    lengths: Sequence[int],
    policies: Sequence[ReceiptPolicy | None] = (None,),
) -> list[dict[int, ReceiptReport]]:
    """For each policy, the reports on the answer's beginnings of these numbers of tokens; one pass for all."""
    final, prompt = model.card.layers, found.asked.prompt
    layers = (final // 3, final)
    passed = model.prefill([*prompt, *found.answer[:-1]], len(prompt) - 1, layers)
    rows = rows_of(model, found)
    one = with_one_pass(model, passed)
    return [{length: _verdict(one, found, rows, length, policy) for length in lengths} for policy in policies]


def rows_of(model: TorchLanguageModel, found: Answered) -> dict[int, torch.Tensor]:
    """The kept rows by layer; logits that were not kept follow from the final norm, bit by bit."""
    final, rows = model.card.layers, dict(found.rows)
    if final + 1 not in rows:
        with torch.inference_mode():
            rows[final + 1] = logit_rows(model.model.get_output_embeddings()(rows[final]), PUBLIC_SEED)
    return rows


def _verdict(
    model: TorchLanguageModel,
    found: Answered,
    rows: Mapping[int, torch.Tensor],
    length: int,
    policy: ReceiptPolicy | None,
) -> ReceiptReport:
    settings = RecordSettings(fingerprints=standard_fingerprints(model.card.layers, model.card.dtype))
    asked, tokens = found.asked, found.answer[:length]
    is_whole = length == len(found.answer) and tokens[-1] in model.end_tokens
    limit = asked.max_tokens if is_whole else length
    issued = ReceiptIssuer(model, KEY, settings).issue(
        Request(id="0", prompt=Tokens.of(asked.prompt), max_tokens=limit),
        Answer(tokens=Tokens.of(tokens), finish="end" if is_whole else "length"),
        asked.sampler,
        {layer: each[:length] for layer, each in rows.items()},
    )
    request = ExpectedRequest(prompt=asked.prompt, seed=asked.sampler.seed, max_tokens=limit)
    return verify_receipt(issued.signed, model, policy, request)
