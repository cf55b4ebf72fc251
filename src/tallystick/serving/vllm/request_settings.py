"""The sampling settings of a request to vLLM: which ones the canonical sampler honours, and which are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.generation.grammars import grammar_of
from tallystick.transcripts.requested import biases, listed
from tallystick.transcripts.sampler import Sampler

ASKS: Final = "tally"
"""The name in `extra_args` (`vllm_xargs` in an HTTP request) by which a request asks for canonical sampling."""
OVERRIDDEN: Final = ("temperature", "top_k", "top_p", "min_p")
"""Settings that extra arguments named `tally_…` can state instead, so that vLLM draws nothing of its own."""
PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")
OWN: Final = {name: f"{ASKS}_{name}" for name in OVERRIDDEN}
LISTS: Final = ("logit_bias", "allowed_token_ids")
ENDS: Final = f"{ASKS}_end_token_ids"
"""The extra argument with the model's end tokens as text, such as `2,7`, which `min_tokens` and schemas need."""
GRAMMAR: Final = (f"{ASKS}_grammar", f"{ASKS}_schema")
"""The extra arguments with the kind and the text of a schema that the answer follows."""
HONOURED: Final = (*OVERRIDDEN, *PENALTIES, *LISTS, "seed")
REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "bad_words": (None, []),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
    "trace_decode_token_ids": (None, []),
    "ignore_eos": (False,),
    "repetition_detection": (None,),
}
"""Settings that change which token is chosen, or where the answer ends, and the values at which they change nothing.

No receipt states them, so a request that sets one of them is refused when it arrives.
"""


def sampler_from(settings: Mapping[str, Any], extra: Mapping[str, Any]) -> Sampler:
    """The sampler of settings under vLLM's names, and of the extra arguments for `min_tokens` and schemas.

    Raises `MalformedError` naming a setting that it does not have, `UnavailableError` where schemas need a library.
    """
    fields = {name: settings[name] for name in HONOURED if settings.get(name) is not None}
    fields["top_k"] = max(0, fields.get("top_k", 0))
    fields |= {"logit_bias": biases(fields.get("logit_bias", {}))}
    fields |= {"allowed_token_ids": listed(fields.get("allowed_token_ids", []))}
    if settings.get("min_tokens"):
        ends = end_tokens_of(extra)
        if ends is None:
            line = f"{ASKS}: min_tokens needs the model's end tokens, such as '2,7', as {ENDS!r} in the extra arguments"
            raise MalformedError(line)
        held_back = listed([*ends, *(settings.get("stop_token_ids") or ())])
        fields |= {"min_tokens": settings["min_tokens"], "end_token_ids": held_back}
    if GRAMMAR[1] in extra:
        fields["grammar"] = grammar_of(extra[GRAMMAR[0]], extra[GRAMMAR[1]]).to_json()
    sampler = Sampler.from_json(fields, ASKS)
    if sampler.repetition_penalty != 1.0 and (sampler.presence_penalty or sampler.frequency_penalty):
        raise MalformedError(
            f"{ASKS}: repetition_penalty and another penalty: vLLM's order of them is not the sampler's"
        )
    return sampler


def end_tokens_of(extra: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The model's end tokens in the extra arguments; None if they are not there."""
    told = extra.get(ENDS)
    if not isinstance(told, str):
        return None
    numbers = told.split(",") if told else []
    return tuple(int(each) for each in numbers) if all(each.isdecimal() for each in numbers) else None


def sampler_of(params: Any, choice: int = 0) -> Sampler | None:
    """The sampler of one choice of a request's `SamplingParams`; `None` if the request does not ask for one.

    Choice i has seed + i, as vLLM numbers the seeds of `n` choices too. Raises `ValueError` for settings that the
    canonical sampler does not have.
    """
    if not (params.extra_args or {}).get(ASKS):
        return None
    if params.seed is None:
        raise ValueError("tally: canonical sampling needs a seed")
    stated = {name: params.extra_args[own] for name, own in OWN.items() if own in params.extra_args}
    names = (*HONOURED, "min_tokens", "stop_token_ids")
    fields = {name: getattr(params, name) for name in names} | stated | {"seed": params.seed + choice}
    try:
        return sampler_from(fields, params.extra_args)
    except (MalformedError, UnavailableError) as error:
        raise ValueError(str(error)) from None


def without(sampler: Sampler, names: Collection[str]) -> Sampler:
    """A sampler in which the settings of `names`, which somebody else applies, are off."""
    return sampler.model_copy(update={name: Sampler.model_fields[name].default for name in names})


def check_settings(params: Any) -> None:
    """Raise `ValueError` for a request of canonical sampling that sets something no receipt can state."""
    if sampler_of(params) is None:
        return
    for name, neutral in REFUSED.items():
        if getattr(params, name, neutral[0]) not in neutral:
            raise ValueError(f"tally: {name} is not supported with canonical sampling; leave it out")
