"""The request of a customer, from the customer's own copy of its body in OpenAI's form.

Nothing here comes from the provider. Settings that the body leaves out were left to the provider and are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from tallystick.core.canonical_json import Json, parse
from tallystick.core.documents import Count, Document
from tallystick.core.errors import MalformedError
from tallystick.core.files import read_document
from tallystick.formats.completions import call_form
from tallystick.formats.receipt import (
    ADJUSTING,
    TOKENS_MAX,
    Biases,
    Nonce,
    Penalty,
    SamplerTokens,
    Share,
    Shift,
    Temperature,
    TokenCount,
)
from tallystick.formats.requests import (
    DRAWING,
    Form,
    chat_body,
    form_of_request,
    listed,
    shown_tools,
    stated_settings,
    wanted_schema,
)
from tallystick.verdicts.language_model import LanguageModel

IDLE: Final = frozenset(
    {
        *("stream", "stream_options", "user", "metadata", "store", "service_tier", "timeout"),
        *("safety_identifier", "prompt_cache_key", "logprobs", "top_logprobs", "extra_headers"),
        *("tools", "tool_choice", "parallel_tool_calls", "return_token_ids"),
    }
)
"""Fields of a request that have no effect on the tokens, or that `wanted` and `tools` speak for."""
NEUTRAL: Final[Mapping[str, tuple[Json, ...]]] = {
    "best_of": (1,),
    **{name: ([], {}, "") for name in ("functions", "suffix")},
    "response_format": ({"type": "text"},),
    "echo": (False,),
}
"""Fields that could change the tokens, and their values that change nothing."""

OWN: Final = frozenset({"others", "form"})
"""Fields of an `ExpectedRequest` that no body has."""
Ids = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...], Field(max_length=TOKENS_MAX)]
Texts = Annotated[tuple[str, ...], Field(max_length=64)]
Message = dict[str, Any]


class ExpectedRequest(Document):
    """One request: a conversation or a prompt (text or tokens), limits, settings of the sampler, nonce.

    `model` is the requested name, `n` the number of requested answers, `form` that of the answer. `wanted` is the
    kind and the text of the schema that answers follow, `tools` are the tools as JSON, `calls`
    is the form of calls in an answer (`formats.completions`). `others` names fields that may
    have changed the answer and that no check covers.
    """

    model: Annotated[str, Field(max_length=256)] | None = None
    n: Annotated[int, Field(ge=1, le=TOKENS_MAX)] | None = None
    messages: tuple[Message, ...] | None = None
    prompt: str | Ids | None = None
    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    repetition_penalty: Penalty | None = None
    seed: Count | None = None
    presence_penalty: Shift = 0.0
    frequency_penalty: Shift = 0.0
    logit_bias: Biases = ()
    allowed_token_ids: SamplerTokens = ()
    bad_token_ids: SamplerTokens = ()
    stop_token_ids: SamplerTokens = ()
    min_tokens: Count = 0
    wanted: tuple[str, str] | None = None
    tools: str | None = None
    calls: str | None = None
    stop: Texts = ()
    tally_nonce: Nonce | None = None
    others: Texts = ()
    form: Form | None = None

    @classmethod
    def from_body(cls, body: Json, what: str = "request") -> ExpectedRequest:
        """Read the body of a completion or of a chat completion; raises `MalformedError` naming the field."""
        if not isinstance(body, Mapping):
            raise MalformedError(f"{what}: a request is an object")
        extra = body.get("extra_body") or {}
        if not isinstance(extra, Mapping):
            raise MalformedError(f"{what}.extra_body: an object is needed")
        flat = {**{name: value for name, value in body.items() if name != "extra_body"}, **extra}
        fields: dict[str, Any] = {name: value for name, value in flat.items() if value is not None}
        form = form_of_request(fields) if fields.keys() & {"messages", "prompt", "input"} else None
        fields = chat_body(fields) if form == "responses" else fields
        if "max_completion_tokens" in fields:
            fields["max_tokens"] = fields.pop("max_completion_tokens")
        if fields.get("top_k") == -1:
            fields["top_k"] = 0
        if isinstance(fields.get("stop"), str):
            fields["stop"] = [fields["stop"]]
        fields |= stated_settings(fields)
        if "stop_token_ids" in fields:
            fields["stop_token_ids"] = listed(fields["stop_token_ids"])
        if isinstance(messages := fields.get("messages"), list):
            fields["messages"] = [_message(each, f"{what}.messages") for each in messages]
        fields = _shaped(fields)
        known = {name: fields[name] for name in (cls.model_fields.keys() & fields.keys()) - OWN}
        covered = cls.model_fields.keys() - OWN | IDLE
        others = sorted(name for name in fields if name not in covered and fields[name] not in NEUTRAL.get(name, ()))
        own: dict[str, Any] = {"others": [name[:100] for name in others]} | ({"form": form} if form else {})
        return cls.from_json({**known, **own}, what)

    def settings_of(self, answer: int = 0) -> dict[str, float]:
        """The requested settings of the sampler; answer `answer` of several has seed + answer."""
        settings = {name: value for name in DRAWING if (value := getattr(self, name)) is not None}
        return settings | {"seed": settings["seed"] + answer} if "seed" in settings else settings

    def adjustments(self, end_tokens: Collection[int]) -> dict[str, object]:
        """The adjustments of logits that the sampler has to state; those that the body leaves out are off.

        `end_tokens` are the model's, which `min_tokens` holds back beside those that the request names.
        """
        held_back = tuple(sorted({*end_tokens, *self.stop_token_ids})) if self.min_tokens else ()
        return {name: getattr(self, name, held_back) for name in ADJUSTING if name != "grammar"}

    def prompt_tokens(self, model: LanguageModel) -> tuple[int, ...] | None:
        """The tokens of the prompt by the verifier's own tokenizer and template; None if the body has no prompt."""
        if self.messages is not None:
            return tuple(model.encode_chat(self.messages, self.tools))
        if isinstance(self.prompt, str):
            return tuple(model.encode_text(self.prompt))
        return self.prompt


def read_request(path: Path) -> ExpectedRequest:
    """Read the JSON body of a request from a file; raises `MalformedError` naming the field."""
    return ExpectedRequest.from_body(parse(read_document(path), path.name), path.name)


def _shaped(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with what answers have to be: the kind and text of a schema, and the tools as text."""
    wanted, tools = wanted_schema(fields), shown_tools(fields)
    left = {name: value for name, value in fields.items() if name not in ("wanted", "tools", "calls")}
    if (calls := call_form(fields)) is not None:
        left["calls"] = calls
    if wanted is not None:
        left["wanted"] = list(wanted)
        if wanted[0] != "tool_choice":
            del left["response_format"]
    return left if tools is None else {**left, "tools": tools}


def _message(message: Json, what: str) -> Json:
    """A message with its text parts joined, without fields that say nothing; raises `MalformedError` for other parts.

    Clients send an earlier answer back with every field that it might have had.
    """
    if not isinstance(message, dict):
        return message
    message = {name: value for name, value in message.items() if value not in (None, [], {})}
    if not isinstance(parts := message.get("content"), list):
        return message
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    joined = [text for text in texts if isinstance(text, str)]
    if len(joined) < len(parts):
        raise MalformedError(f"{what}.content: only text is understood")
    return {**message, "content": "".join(joined)}
