"""The sampling settings of a request to vLLM: which ones the canonical sampler honours, and which are refused."""

from __future__ import annotations

from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.transcripts.sampler import Sampler

ASKS: Final = "tally"
"""The name in `extra_args` (`vllm_xargs` in an HTTP request) by which a request asks for canonical sampling."""
HONOURED: Final = ("temperature", "top_p", "min_p", "repetition_penalty")
REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "min_tokens": (0,),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
    "trace_decode_token_ids": (None, []),
    "stop_token_ids": (None, []),
    "ignore_eos": (False,),
    "repetition_detection": (None,),
}
"""Settings that change which token is chosen, or where the answer ends, and the values at which they change nothing.

No receipt states them, so a request that sets one of them is refused when it arrives.
"""


def sampler_of(params: Any, choice: int = 0) -> Sampler | None:
    """The sampler of one choice of a request's `SamplingParams`; `None` if the request does not ask for one.

    Choice i has seed + i, as vLLM numbers the seeds of `n` choices too. Raises `ValueError` for settings that the
    canonical sampler does not have.
    """
    if not (params.extra_args or {}).get(ASKS):
        return None
    if params.seed is None:
        raise ValueError("tally: canonical sampling needs a seed")
    fields = {name: float(getattr(params, name)) for name in HONOURED}
    try:
        return Sampler.from_json({**fields, "top_k": max(0, params.top_k), "seed": params.seed + choice}, "tally")
    except MalformedError as error:
        raise ValueError(str(error)) from None


def check_settings(params: Any) -> None:
    """Raise `ValueError` for a request of canonical sampling that sets something no receipt can state."""
    if sampler_of(params) is None:
        return
    for name, neutral in REFUSED.items():
        if getattr(params, name, neutral[0]) not in neutral:
            raise ValueError(f"tally: {name} is not supported with canonical sampling; leave it out")
