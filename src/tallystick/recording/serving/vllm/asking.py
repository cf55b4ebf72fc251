"""A request on its way into vLLM: what it asks for, and what makes its answer canonical."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tallystick.core.canonical_json import INTEGER_MAX, loose_json
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.generation.grammars import LIBRARY, grammar_of, installed_version
from tallystick.formats.completions import call_form
from tallystick.formats.receipt import TOKENS_MAX, Sampler
from tallystick.formats.requests import DRAWING, listed, nonce_of, shown_tools, stated_settings, wanted_schema
from tallystick.recording.serving.errors import invalid, refused
from tallystick.recording.serving.schemas import complaint_about

# The sampling settings of a request to vLLM: which ones the canonical sampler honours, and which are refused.

ASKS: Final = "tally"
"""The name in `extra_args` (`vllm_xargs` in an HTTP request) by which a request asks for canonical sampling."""
OWN: Final = {name: f"{ASKS}_{name}" for name in ("temperature", "top_k", "top_p", "min_p")}
"""Settings that extra arguments named `tally_…` can state instead, so that vLLM draws nothing of its own."""
ENDS: Final = f"{ASKS}_end_token_ids"
"""The extra argument with the model's end tokens as text, such as `2,7`, which `min_tokens` and schemas need."""
GRAMMAR: Final = (f"{ASKS}_grammar", f"{ASKS}_schema")
"""The extra arguments with the kind and the text of a schema that the answer follows."""
PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")
LISTS: Final = ("logit_bias", "allowed_token_ids")
HONOURED: Final = (*DRAWING, *PENALTIES[1:], *LISTS)
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
    fields = stated_settings({name: settings.get(name) for name in HONOURED})
    fields["top_k"] = max(0, fields.get("top_k", 0))
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
    text = extra.get(ENDS)
    if not isinstance(text, str):
        return None
    numbers = text.split(",") if text else []
    return tuple(int(number) for number in numbers) if all(number.isdecimal() for number in numbers) else None


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


# A request for completions on its way into vLLM: what it asks for, and what makes its answer canonical.

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
CHOICES_MAX: Final = 64
SEEDS: Final = 1 << 52
WARM: Final = 0.01
"""vLLM raises a temperature between 0 and this one."""
NEUTRAL: Final[Mapping[str, float]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""The settings for which a model's generation configuration may have another default, and vLLM's own default."""
REFUSED_FIELDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "use_beam_search": (False,),
    "echo": (False,),
    "suffix": ("",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "include_reasoning": (True,),
    "prompt_embeds": (),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({}, {ASKS: 1}),
    "structured_outputs": ({},),
    "functions": ([],),
    "truncate_prompt_tokens": (),
    "watermarking": (False,),
}
"""Fields that decide which text is delivered, or hide its tokens, and the values at which they do nothing."""
SHAPING: Final = ("response_format", "tools", "tool_choice", "parallel_tool_calls")
"""What a chat says of the form of its answer; vLLM itself does nothing of it but put the tools into the prompt."""
LIMITING: Final = ("min_tokens", "allowed_token_ids", "bad_words")


@dataclass(frozen=True)
class Asked:
    """What a client asked for; `body` is what vLLM gets, and `key` the id that it is told to use.

    `sampler` is that of the first choice; `limit` the most tokens of an answer, None if the request has none.
    `stop_tokens` end an answer besides the model's own end tokens. `tools` are those of the prompt as JSON text, and
    `calls` says how an answer calls them (`formats.completions`).
    """

    path: str
    body: Mapping[str, Any]
    key: str
    sampler: Sampler
    choices: int
    limit: int | None
    nonce: str | None
    stop_tokens: tuple[int, ...] = ()
    tools: str | None = None
    calls: str | None = None
    started_ns: int = field(default_factory=time.time_ns)

    @property
    def id(self) -> str:
        """The id of the response."""
        return f"{'chatcmpl' if self.path == CHAT else 'cmpl'}-{self.key}"

    @property
    def encoded(self) -> bytes:
        """`body` as JSON."""
        return json.dumps(self.body, ensure_ascii=False).encode(errors="surrogatepass")

    def choice_id(self, choice: int) -> str:
        """The id in the receipt of a choice: that of the response, with a number if there are several."""
        return self.id if self.choices == 1 else f"{self.id}-{choice}"

    def engine_id(self, choice: int) -> str:
        """The id of a choice in vLLM's engine, which appends random characters to it."""
        name = self.id if self.path == CHAT else f"{self.id}-0"
        return name if self.choices == 1 else f"{choice}_{name}"

    def sampler_of(self, choice: int) -> Sampler:
        """The sampler of a choice: vLLM gives choice i the seed of the request plus i."""
        return self.sampler.model_copy(update={"seed": self.sampler.seed + choice})


def read_asked(path: str, body: bytes, defaults: Mapping[str, Any], ends: Collection[int] = ()) -> Asked | None:
    """The request in a body, None if vLLM has to say what is wrong with it.

    `defaults` are the sampling settings of the model's generation configuration, `ends` its end tokens. Raises
    `Problem` for a request that can have no receipt. A schema is tried in a process of its own.
    """
    try:
        fields = loose_json(body)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    _check_covered(fields)
    shaping = {name: fields[name] for name in SHAPING if path == CHAT and fields.get(name) is not None}
    own, tools = _own_arguments(fields, shaping, ends), _tools(shaping)
    left_out = ("tally_nonce", "request_id", *(("response_format",) if GRAMMAR[1] in own else ()), *SHAPING[1:])
    sent = {name: value for name, value in fields.items() if name not in left_out}
    sent |= {} if tools is None else {"tools": json.loads(tools), "tool_choice": "none"}
    for name, neutral in NEUTRAL.items():
        sent[name] = _first(fields.get(name), defaults.get(name), neutral)
    choices = _count(_first(fields.get("n"), 1), "n", 1, CHOICES_MAX)
    drawn = secrets.randbelow(SEEDS)
    sent["seed"] = _count(_first(fields.get("seed"), drawn), "seed", 0, INTEGER_MAX - CHOICES_MAX)
    sampler = _sampler(sent, own)
    drawing = _drawn_by_us(sampler) if choices == 1 else {}
    sent |= {"return_token_ids": True, **drawing, "vllm_xargs": {ASKS: 1, **own, **drawing.get("vllm_xargs", {})}}
    stop_tokens = listed(fields.get("stop_token_ids") or ())
    name = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    limit = None if fields.get(name) is None else _count(fields[name], name, 0, TOKENS_MAX)
    try:
        nonce = nonce_of(fields)
    except MalformedError as error:
        raise refused(error) from None
    key, calls = secrets.token_hex(16), call_form(shaping)
    return Asked(path, sent, key, sampler, choices, limit, nonce, stop_tokens, tools, calls)


def _tools(shaping: Mapping[str, Any]) -> str | None:
    """The tools of the prompt as JSON text. vLLM writes null for a part that is left out, which no customer would."""
    try:
        tools = shown_tools(shaping)
    except MalformedError as error:
        raise refused(error) from None
    for tool in json.loads(tools or "[]"):
        if tool["function"].keys() != {"name", "description", "parameters"}:
            raise invalid("tools: a function has a name, a description and parameters, and nothing else", "tools")
    return tools


def _own_arguments(fields: Mapping[str, Any], shaping: Mapping[str, Any], ends: Collection[int]) -> dict[str, Any]:
    """The extra arguments of what vLLM itself does in another way: the schema of an answer, and end tokens."""
    own = {ENDS: ",".join(map(str, sorted(ends)))}
    try:
        wanted = wanted_schema(shaping)
    except MalformedError as error:
        raise refused(error) from None
    if wanted is None:
        return own if fields.get("min_tokens") else {}
    if any(fields.get(name) for name in LIMITING):
        raise invalid("min_tokens and lists of tokens are not offered together with a schema", "response_format")
    kind, schema = wanted
    if installed_version() is None or (complaint := complaint_about(schema)):
        why = f"the server lacks {LIBRARY}" if installed_version() is None else complaint
        raise invalid(why, "response_format")
    return {**own, GRAMMAR[0]: kind, GRAMMAR[1]: schema}


def _drawn_by_us(sampler: Sampler) -> dict[str, Any]:
    """Fields by which vLLM takes the largest logit, which is the only one that its logits processor leaves.

    It would sort and draw in vain. Of several choices vLLM makes one greedy one, so they keep their fields.
    """
    stated: dict[str, Any] = {own: getattr(sampler, name) for name, own in OWN.items()}
    greedy = {name: NEUTRAL[name] for name in OWN} | {"temperature": 0.0}
    return greedy | {"vllm_xargs": stated}


def _check_covered(fields: Mapping[str, Any]) -> None:
    for name, neutral in REFUSED_FIELDS.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise invalid(f"{name}: no receipt covers what it does; leave it out", name)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(token, int) for token in prompt):
        raise invalid("prompt: a receipt is for one prompt; send each in a request of its own", "prompt")
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else ()
        if not all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in parts):
            raise invalid("messages: a receipt covers text only; leave out parts of other types", "messages")


def _sampler(sent: Mapping[str, Any], own: Mapping[str, Any]) -> Sampler:
    try:
        sampler = sampler_from(sent, own)
    except (MalformedError, TypeError) as error:
        raise invalid(str(error)) from None
    if 0 < sampler.temperature < WARM:
        raise invalid(f"temperature: vLLM has none between 0 and {WARM}; give one of these", "temperature")
    return sampler


def _count(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise invalid(f"{name}: a whole number from {least} to {most}", name)
    return value


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
