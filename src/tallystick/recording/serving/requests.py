"""Requests of the OpenAI API as our own server reads them: strictly, with the few fields that this project adds.

An unknown field is refused. A field that would change the answer but is not offered is refused, unless its value has no
effect. Fields that only label a request (`user`, `metadata`, …) are accepted and have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tallystick.core.canonical_json import INTEGER_MAX
from tallystick.core.documents import complaint
from tallystick.core.errors import MalformedError
from tallystick.core.http.problems import Problem
from tallystick.formats.receipt import (
    LAYERS_MAX,
    LISTED_MAX,
    Bias,
    Nonce,
    Penalty,
    Sampler,
    Share,
    Shift,
    Temperature,
    Token,
    TokenIds,
)
from tallystick.formats.requests import chat_body, listed, stated_settings
from tallystick.recording.serving.errors import invalid, refused

MESSAGES_MAX: Final = 1024
PARTS_MAX: Final = 64
STOPS_MAX: Final = 16
STOP_CHARACTERS_MAX: Final = 256
CHOICES_MAX: Final = 8
CHALLENGES_MAX: Final = 64
CALLS_MAX: Final = 128
TOOLS_MAX: Final = 64
LOGPROBS_MAX: Final = 20

Text = Annotated[str, Field(min_length=1, max_length=1 << 20)]
Stop = Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS_MAX)]
Limit = Annotated[int, Field(ge=1, le=1 << 20)]
Nothing = Annotated[list[Any] | dict[str, Any], Field(max_length=0)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
BiasedToken = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,6})$")]
BIASES_MAX: Final = 1024


class RequestBody(BaseModel):
    """A JSON object from a client."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Kind = TypeVar("Kind", bound=RequestBody)


class _TextPart(RequestBody):
    """One part of a message's content; only text is offered."""

    type: Literal["text"]
    text: str


class _CalledFunction(RequestBody):
    """The function of a call, its arguments as JSON text."""

    name: FunctionName
    arguments: str


class _ToolCall(RequestBody):
    """A call in an earlier answer."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: _CalledFunction


class Message(RequestBody):
    """One message. Fields that must be empty are those that clients copy from an earlier answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_TextPart], Field(min_length=1, max_length=PARTS_MAX)] | None = None
    refusal: None = None
    audio: None = None
    annotations: Nothing | None = None
    function_call: None = None
    tool_calls: Annotated[list[_ToolCall], Field(max_length=CALLS_MAX)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    @property
    def as_sent(self) -> dict[str, Any]:
        """The message with its parts joined, fields that are null left out."""
        message = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            message["content"] = "".join(part.text for part in self.content)
        return message

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("a message has content")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id goes with the role tool")
        return self


class _StreamOptions(RequestBody):
    """What a stream carries in addition to text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _NamedSchema(RequestBody):
    """A JSON schema; name, description and `strict` change nothing: answers always follow the schema."""

    name: FunctionName
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(RequestBody):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _NamedSchema | None = None


class _Function(RequestBody):
    """A function that the model may call; `strict` changes nothing."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(RequestBody):
    """A tool; only functions are offered."""

    type: Literal["function"]
    function: _Function


class _NamedFunction(RequestBody):
    """The name of a function."""

    name: FunctionName


class ToolChoice(RequestBody):
    """The function that has to be called."""

    type: Literal["function"]
    function: _NamedFunction


class _SampledRequest(RequestBody):
    """The fields that requests of all three forms share."""

    model: Annotated[str, Field(max_length=256)]
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, le=INTEGER_MAX)] | None = None
    min_p: Share | None = None
    repetition_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=0, le=INTEGER_MAX - CHOICES_MAX)] | None = None
    stream: bool | None = None
    tally_nonce: Nonce | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None


class CompletionRequest(_SampledRequest):
    """The fields that chat and text completions share."""

    max_tokens: Limit | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS_MAX)] | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX)] | None = None
    stream_options: _StreamOptions | None = None
    presence_penalty: Shift | None = None
    frequency_penalty: Shift | None = None
    logit_bias: Annotated[dict[BiasedToken, Bias], Field(max_length=BIASES_MAX)] | None = None
    allowed_token_ids: Annotated[list[Token], Field(min_length=1, max_length=LISTED_MAX)] | None = None
    bad_token_ids: Annotated[list[Token], Field(max_length=LISTED_MAX)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = None

    @property
    def limit(self) -> int | None:
        """The requested limit of tokens of the answer."""
        return self.max_tokens

    @property
    def shaping(self) -> dict[str, Any]:
        """The fields that say what the answer has to be, as they were sent."""
        return {}

    @property
    def top(self) -> int | None:
        """The number of most likely tokens to report beside each token; None reports nothing."""
        return None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampler(self, seed: int, end_tokens: Collection[int] = ()) -> Sampler:
        """The sampler settings, with `seed` if the request has none; a `top_k` of −1 counts as 0.

        `end_tokens` are the model's; they are stated with `min_tokens`.
        """
        held_back = {"end_token_ids": listed(tuple(end_tokens))} if self.min_tokens else {}
        settings = {"seed": seed, **stated_settings(dict(self)), "top_k": max(0, self.top_k or 0)}
        return Sampler(**settings, **held_back)

    @model_validator(mode="after")
    def _streams_to_have_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options go with stream: true")
        return self


class ChatRequest(CompletionRequest):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Limit | None = None

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    response_format: _ResponseFormat | None = None
    tools: Annotated[list[_Tool], Field(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Nothing | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def shaping(self) -> dict[str, Any]:
        """The fields that say what the answer has to be, as they were sent."""
        names = ("response_format", "tools", "tool_choice", "parallel_tool_calls")
        sent = self.model_dump(include=set(names), by_alias=True, exclude_unset=True)
        return {name: value for name, value in sent.items() if value is not None}

    @property
    def limit(self) -> int | None:
        """`max_completion_tokens`, or its older name `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int | None:
        """The number of most likely tokens to report beside each token; None reports nothing."""
        return self.top_logprobs or 0 if self.logprobs else None

    @model_validator(mode="after")
    def _top_of_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs go with logprobs: true")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; the second is the newer name of the first")
        return self


class _TextSettings(RequestBody):
    """The form of the text in a response."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(_SampledRequest):
    """A request to `/v1/responses`, as far as no state is kept; it is answered as a chat completion."""

    input: Text | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)]
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    text: _TextSettings | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    parallel_tool_calls: bool | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    include: Nothing | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None

    def as_chat(self) -> ChatRequest:
        """The same request for a chat completion; raises `Problem` that names the wrong field."""
        sent = self.model_dump(exclude_none=True, exclude={"tools", "include", "background"})
        try:
            body = chat_body(sent)
        except MalformedError as error:
            raise refused(error) from None
        return read_request(ChatRequest, json.dumps(body).encode())


class TextRequest(CompletionRequest):
    """A request to `/v1/completions` with one prompt: text, or token ids."""

    prompt: str | TokenIds | Annotated[list[str], Field(max_length=1)] | Annotated[list[TokenIds], Field(max_length=1)]

    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    suffix: Literal[""] | None = None

    @property
    def top(self) -> int | None:
        """The number of most likely tokens to report beside each token; None reports nothing."""
        return self.logprobs

    @property
    def only_prompt(self) -> str | tuple[int, ...]:
        """The prompt as text or token ids; a list with one prompt is unpacked."""
        if isinstance(self.prompt, str):
            return self.prompt
        first = self.prompt[0] if self.prompt else ()
        return tuple(self.prompt) if isinstance(first, int) else first  # type: ignore[arg-type]


class ChallengeBody(RequestBody):
    """A request to open committed hidden states: `count` parts that the nonce selects, or one layer and its input."""

    nonce: Nonce
    count: Annotated[int, Field(ge=1, le=CHALLENGES_MAX)] | None = None
    layer: Annotated[int, Field(ge=0, le=LAYERS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if (self.count is None) == (self.layer is None):
            raise ValueError("a count of parts or a layer, and not both")
        return self


def read_request(kind: type[Kind], body: bytes) -> Kind:
    """A request from JSON; raises `Problem` that names the wrong field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _problem(error) from None


def _problem(error: ValidationError) -> Problem:
    errors = error.errors(include_url=False)
    # an unknown field is named before a missing one: often it is that one, misspelt
    first = max(errors, key=lambda one: one["type"] == "extra_forbidden") if len(errors[0]["loc"]) < 2 else errors[0]
    field = str(first["loc"][0]) if first["loc"] else None
    place = ".".join(str(part) for part in first["loc"][:3])
    if first["type"] == "extra_forbidden":
        return invalid(f"{place}: this server knows no such field", field, "unknown_parameter")
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return invalid(f"{place}: {complaint(first)}" if place else complaint(first), field, code)
