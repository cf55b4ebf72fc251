"""Receipts for the outputs of vLLM's `LLM.generate`, and what processes of vLLM send each other for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tallystick.core.errors import UsageError
from tallystick.formats.claims import ModelCard
from tallystick.formats.completions import Finish
from tallystick.formats.receipt import Answer, BatchStatement, EngineStatement, Request, Tokens
from tallystick.formats.signing import SigningKey
from tallystick.recording.receipts import Issued, ReceiptIssuer, RecordSettings
from tallystick.recording.serving.vllm.asking import sampler_of

# What is kept of an answer as plain data: what vLLM sends between its processes without pickling it.

DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Kept:
    """What a worker kept of an answer: rows [tokens, width] by layer, and the largest batch it was computed in."""

    rows: Mapping[int, torch.Tensor]
    batch: BatchStatement

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Kept:
        """What `TallyWorkerExtension.tally_take` told."""
        return cls(unpack_rows(told["rows"]), BatchStatement(largest=told["largest"]))


def pack_rows(rows: Mapping[int, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Rows [tokens, width] by layer as bytes, little-endian, under the layer's number as text."""
    return {
        str(layer): {
            "dtype": NAMES[each.dtype],
            "width": each.shape[1],
            "data": each.contiguous().view(torch.uint8).numpy().tobytes(),
        }
        for layer, each in rows.items()
    }


def unpack_rows(packed: Mapping[str, Mapping[str, Any]]) -> dict[int, torch.Tensor]:
    """The rows that `pack_rows` packed."""
    return {
        int(layer): torch.frombuffer(bytearray(each["data"]), dtype=DTYPES[each["dtype"]]).view(-1, each["width"])
        for layer, each in packed.items()
    }


# Receipts for the outputs of vLLM's `LLM.generate`.

EXTENSION: Final = "tallystick.recording.serving.vllm.worker.TallyWorkerExtension"
"""For `vllm serve --worker-extension-cls`."""
PROCESSOR: Final = "tallystick.recording.serving.vllm.logits_processor:CanonicalLogitsProcessor"
"""For `vllm serve --logits-processors`."""
VLLM_OPTIONS: Final[Mapping[str, Any]] = {"logits_processors": [PROCESSOR], "worker_extension_cls": EXTENSION}
"""What `vllm.LLM` takes: `LLM(model, **VLLM_OPTIONS)`."""


def vllm_issuer(
    llm: Any, card: ModelCard, key: SigningKey, settings: RecordSettings, journal: Path | None = None
) -> ReceiptIssuer:
    """An issuer of receipts of `llm`, a `vllm.LLM`, that states the engine as it runs; the rows are kept from now on.

    Raises as `ReceiptIssuer`, and what vLLM makes of `MalformedError` for a layer that a compiled model does not show.
    """
    described = llm.collective_rpc("tally_describe")[0]
    engine = EngineStatement.from_json(described["engine"], "vllm")
    llm.collective_rpc("tally_watch", args=(list(settings.layers), settings.seed))
    return ReceiptIssuer(card, key, settings, journal, engine=engine)


def issue_receipts(
    llm: Any, outputs: Sequence[Any], params: Sequence[Any], issuer: ReceiptIssuer, nonce: str | None = None
) -> list[Issued]:
    """One receipt for each answer of each `RequestOutput`; `params` are the `SamplingParams` of the requests.

    `issuer` is a `vllm_issuer` from before the generation. Choice i of `n` answers has seed + i, and its receipt the
    request's id with `-i`. Raises `UsageError` for a request that did not ask for canonical sampling,
    `UnavailableError` if some of its rows are missing.
    """
    pairs = zip(outputs, params, strict=True)
    return [issued for output, asked in pairs for issued in _issue(llm, output, asked, issuer, nonce)]


def _issue(llm: Any, output: Any, params: Any, issuer: ReceiptIssuer, nonce: str | None) -> Iterator[Issued]:
    if output.prompt_token_ids is None:
        raise UsageError(f"request {output.request_id}: its prompt is not tokens")
    prompt, context = list(output.prompt_token_ids), int(llm.model_config.max_model_len)
    limit = min(context if params.max_tokens is None else params.max_tokens, context - len(prompt))
    for answer in output.outputs:
        sampler = sampler_of(params, answer.index)
        if sampler is None:
            raise UsageError(f"request {output.request_id}: not sampled canonically; give it extra_args {{'tally': 1}}")
        tokens = Tokens.of(list(answer.token_ids))
        name, inside = (output.request_id,) * 2
        if params.n > 1:
            name, inside = f"{output.request_id}-{answer.index}", f"{answer.index}_{output.request_id}"
        kept = Kept.of(llm.collective_rpc("tally_take", args=(inside, tokens.count))[0])
        request = Request(id=name, prompt=Tokens.of(prompt), max_tokens=limit, nonce=nonce)
        finish = finish_of(answer.finish_reason, answer.stop_reason, params.stop_token_ids or ())
        stated = Answer(tokens=tokens, finish=finish)
        yield issuer.issue(request, stated, sampler, kept.rows, kept.batch)


def finish_of(reason: str | None, stop: int | str | None, asked: Collection[int] = ()) -> Finish:
    """The finish of a receipt; vLLM's `stop_reason` is the stop text, or the token, or none for the model's own end.

    A token among those that the customer asked for is a stop of the customer's.
    Raises `UsageError` for an answer that is not over, or that ended for a reason that no receipt can state.
    """
    if reason == "stop":
        return "stop" if isinstance(stop, str) or stop in asked else "end"
    if reason == "length":
        return "length"
    if reason == "abort":
        return "cancelled"
    raise UsageError(f"finish: an answer that ended with {reason} gets no receipt")
