"""A request for completions on its way into vLLM: what it asks for, and what makes its answer canonical."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tallystick.commitments.nesting import loose_json
from tallystick.documents.document import SAFE_INTEGER_MAX
from tallystick.errors import MalformedError
from tallystick.frameworks.torch.generation.grammars import LIBRARY, installed_version
from tallystick.serving.errors import invalid
from tallystick.serving.schemas import complaint_about
from tallystick.serving.vllm.request_settings import ASKS, ENDS, GRAMMAR, OWN, sampler_from
from tallystick.transcripts.receipt import TOKENS_MAX
from tallystick.transcripts.requested import listed, shown_tools, wanted_schema
from tallystick.transcripts.sampler import Sampler
from tallystick.transcripts.tool_calls import call_form

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
CHOICES_MAX: Final = 64
SEEDS: Final = 1 << 52
WARM: Final = 0.01
"""vLLM raises a temperature between 0 and this one."""
NONCE: Final = re.compile(r"([0-9a-f]{2}){1,64}")
NEUTRAL: Final[Mapping[str, float]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""The settings for which a model's generation configuration may have another default, and vLLM's own default."""
REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
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
    `calls` says how an answer calls them (`transcripts.tool_calls`).
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
    fields = _object(body)
    if fields is None:
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
    sent["seed"] = _count(_first(fields.get("seed"), drawn), "seed", 0, SAFE_INTEGER_MAX - CHOICES_MAX)
    sampler = _sampler(sent, own)
    drawing = _drawn_by_us(sampler) if choices == 1 else {}
    sent |= {"return_token_ids": True, **drawing, "vllm_xargs": {ASKS: 1, **own, **drawing.get("vllm_xargs", {})}}
    stop_tokens = listed(fields.get("stop_token_ids") or ())
    name = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    limit = None if fields.get(name) is None else _count(fields[name], name, 0, TOKENS_MAX)
    nonce = _nonce(fields.get("tally_nonce"))
    key, calls = secrets.token_hex(16), call_form(shaping)
    return Asked(path, sent, key, sampler, choices, limit, nonce, stop_tokens, tools, calls)


def _tools(shaping: Mapping[str, Any]) -> str | None:
    """The tools of the prompt as JSON text. vLLM writes null for a part that is left out, which no customer would."""
    try:
        tools = shown_tools(shaping)
    except MalformedError as error:
        raise invalid(str(error), "tools") from None
    for each in json.loads(tools or "[]"):
        if each["function"].keys() != {"name", "description", "parameters"}:
            raise invalid("tools: a function has a name, a description and parameters, and nothing else", "tools")
    return tools


def _own_arguments(fields: Mapping[str, Any], shaping: Mapping[str, Any], ends: Collection[int]) -> dict[str, Any]:
    """The extra arguments of what vLLM itself does in another way: the schema of an answer, and end tokens."""
    told = {ENDS: ",".join(map(str, sorted(ends)))}
    try:
        wanted = wanted_schema(shaping)
    except MalformedError as error:
        raise invalid(str(error), str(error).partition(":")[0].partition(".")[0]) from None
    if wanted is None:
        return told if fields.get("min_tokens") else {}
    if any(fields.get(name) for name in LIMITING):
        raise invalid("min_tokens and lists of tokens are not offered together with a schema", "response_format")
    kind, schema = wanted
    if installed_version() is None or (complaint := complaint_about(schema)):
        why = f"the server lacks {LIBRARY}" if installed_version() is None else complaint
        raise invalid(why, "response_format")
    return {**told, GRAMMAR[0]: kind, GRAMMAR[1]: schema}


def _drawn_by_us(sampler: Sampler) -> dict[str, Any]:
    """Fields by which vLLM takes the largest logit, which is the only one that its logits processor leaves.

    It would sort and draw in vain. Of several choices vLLM makes one greedy one, so they keep their fields.
    """
    stated: dict[str, Any] = {own: getattr(sampler, name) for name, own in OWN.items()}
    greedy = {name: NEUTRAL[name] for name in OWN} | {"temperature": 0.0}
    return greedy | {"vllm_xargs": stated}


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = loose_json(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _check_covered(fields: Mapping[str, Any]) -> None:
    for name, neutral in REFUSED.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise invalid(f"{name}: no receipt covers what it does; leave it out", name)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(each, int) for each in prompt):
        raise invalid("prompt: a receipt is for one prompt; send each in a request of its own", "prompt")
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(not _is_text(part) for part in content):
            raise invalid("messages: a receipt covers text only; leave out parts of other types", "messages")


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")


def _sampler(sent: Mapping[str, Any], own: Mapping[str, Any]) -> Sampler:
    try:
        sampler = sampler_from(sent, own)
    except (MalformedError, TypeError) as error:
        raise invalid(str(error)) from None
    if 0 < sampler.temperature < WARM:
        raise invalid(f"temperature: vLLM has none between 0 and {WARM}; give one of these", "temperature")
    return sampler


def _nonce(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and NONCE.fullmatch(value)):
        raise invalid("tally_nonce: 1 to 64 bytes in lower-case hexadecimal", "tally_nonce")
    return value


def _count(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise invalid(f"{name}: a whole number from {least} to {most}", name)
    return value


def _first(*values: Any) -> Any:
    return next((each for each in values if each is not None), None)
