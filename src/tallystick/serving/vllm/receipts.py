"""Receipts for the outputs of vLLM's `LLM.generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from tallystick.commitments.digests import Digest
from tallystick.errors import UsageError
from tallystick.recorders.receipts import Issued, ReceiptIssuer
from tallystick.serving.vllm.logits_processor import sampler_of
from tallystick.transcripts.receipt import Answer, EngineStatement, Request, Tokens

EXTENSION: Final = "tallystick.serving.vllm.hidden_rows.TallyWorkerExtension"
"""The value for `LLM(worker_extension_cls=…)`."""


def issue_receipts(
    llm: Any, outputs: Sequence[Any], params: Sequence[Any], issuer: ReceiptIssuer, nonce: str | None = None
) -> list[Issued]:
    """One receipt for the first answer of each `RequestOutput`; `params` are the `SamplingParams` of the requests.

    Call `llm.collective_rpc("tally_watch", args=(issuer.settings.layers,))` before generating. Raises `UsageError` for
    a request that did not ask for canonical sampling, `UnavailableError` if some of its rows are missing.
    """
    return [_issue(llm, output, asked, issuer, nonce) for output, asked in zip(outputs, params, strict=True)]


def describe_vllm(version: str, device: str, attention: str, environment: Digest) -> EngineStatement:
    """The `engine` of an issuer for vLLM: version, device, attention backend and the digest of the environment.

    It states a KV cache in the model's own precision. Set `kv_cache` if vLLM runs with another `kv_cache_dtype`.
    """
    return EngineStatement(name="vllm", version=version, device=device, attention=attention, environment=environment)


def _issue(llm: Any, output: Any, params: Any, issuer: ReceiptIssuer, nonce: str | None) -> Issued:
    sampler = sampler_of(params)
    if sampler is None:
        raise UsageError(f"request {output.request_id}: not sampled canonically; give it extra_args {{'tally': 1}}")
    answer = output.outputs[0]
    ids = list(answer.token_ids)
    rows = llm.collective_rpc("tally_take", args=(output.request_id, len(ids)))[0] if issuer.settings.layers else {}
    request = Request(
        id=output.request_id, prompt=Tokens.of(list(output.prompt_token_ids)), max_tokens=params.max_tokens, nonce=nonce
    )
    return issuer.issue(request, Answer(tokens=Tokens.of(ids), finish=_finish(answer)), sampler, rows)


def _finish(answer: Any) -> Literal["end", "stop", "length"]:
    """The finish reason; vLLM's `stop_reason` is the stop text, or `None` at the end token."""
    if answer.finish_reason == "length":
        return "length"
    return "stop" if isinstance(answer.stop_reason, str) else "end"
