"""Answers of OpenAI's Responses API, server-sent events, and the reader for each form of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tallystick.core.canonical_json import parse
from tallystick.core.errors import MalformedError
from tallystick.formats.completions import (
    DETAILS,
    ITEM,
    PART,
    RESPONSE,
    CompletionReader,
    Fields,
    ReadCall,
    ReadChoice,
    Remark,
    is_nothing,
    texts_in,
)
from tallystick.formats.requests import Form

# Server-sent events, read strictly: what readers would split or skip in different ways is refused.

BYTES_MAX: Final = 64 << 20
DONE: Final = "[DONE]"
BOM: Final = "\ufeff"


class StreamEvent(NamedTuple):
    """The name of an event, empty if it has none, and its object."""

    name: str
    data: dict[str, Any]


def events_of(stream: bytes) -> Iterator[StreamEvent]:
    """The events up to `[DONE]`.

    Raises `MalformedError` for a byte order mark, a carriage return alone, what is no UTF-8 or no JSON object, an event
    behind `[DONE]`, and one that the stream breaks off.
    """
    try:
        text = stream.decode()
    except UnicodeDecodeError:
        raise MalformedError("stream: no UTF-8") from None
    lines = text.replace("\r\n", "\n")
    if "\r" in lines or lines.startswith(BOM):
        raise MalformedError("stream: a carriage return alone, or a byte order mark: readers differ about these")
    is_done = False
    *events, rest = lines.split("\n\n")
    if _fields_of(rest)[1] not in (None, DONE):
        raise MalformedError("stream: it breaks off inside an event")
    for event in events:
        name, data = _fields_of(event)
        if data is None:
            continue
        if is_done:
            raise MalformedError(f"stream: an event behind {DONE}")
        is_done = data == DONE
        if not is_done:
            value = parse(data.encode(), "stream", bytes_max=BYTES_MAX)
            if not isinstance(value, Mapping):
                raise MalformedError("stream: an event that is no object")
            yield StreamEvent(name, dict(value))


def _fields_of(event: str) -> tuple[str, str | None]:
    """The name of an event, and the lines of its data; None without data. Comments are skipped."""
    name, data = "", list[str]()
    for line in event.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return name, "\n".join(data).strip() if data else None


# Answers of OpenAI's Responses API, whole or in events: what was shown while they came is compared with the end.

Place = tuple[Any, Any]
"""The numbers of an item and of its part."""
FRAMES: Final = ("response.created", "response.queued", "response.in_progress")
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
CONTENT: Final[Mapping[str, str]] = {
    **{f"response.{name}.delta": "delta" for name in ("output_text", "reasoning_text", "function_call_arguments")},
    "response.output_text.done": "text",
    "response.reasoning_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.content_part.added": "part",
    "response.content_part.done": "part",
    "response.output_item.added": "item",
    "response.output_item.done": "item",
}
"""The field with the content of an event, by the type of the event."""
IDLE: Final = ("type", "sequence_number", "item_id", "output_index", "content_index", "obfuscation")


class ResponsesReader(CompletionReader):
    """Reads one response: the whole object by `add`, or the events of a stream by `add_event`."""

    def __init__(self) -> None:
        super().__init__("responses")
        self._shown: dict[Place, str] = {}
        self._whole: dict[Place, str] = {}
        self._last = -1
        self._ends = 0

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Add an event; the last one has the whole response."""
        kind, number = str(event.get("type")), event.get("sequence_number")
        if isinstance(number, int):
            if number <= self._last:
                self._refuse("sequence_number", f"{number} behind {self._last}")
            self._last = number
        if kind in ENDS or kind in FRAMES:
            self._frame(kind, event.get("response"))
        elif kind in CONTENT:
            self._add_content(kind, event)
        elif any(texts_in({name: content for name, content in event.items() if name not in IDLE})):
            is_foreign = "refusal" in kind or "annotation" in kind
            detail = "an event that no token of the answer speaks for"
            self.remarks[Remark("foreign" if is_foreign else "open", kind[:64], detail)] = None

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the whole response."""
        kept = self._scanned(RESPONSE, part)
        if kept.get("object") not in (None, "response"):
            self._refuse("object", f"{str(kept['object'])[:60]!r}, and a response was read")
        if kept.get("usage") is not None:
            self.fields["usage"] = self._usage(kept["usage"])
        for name in ("id", "model", "system_fingerprint", "receipt", "prompt_token_ids"):
            self._once(name, kept.get(name))
        choice = self.choices[0] = ReadChoice(ids=kept.get("token_ids"), finish=self._finish(kept))
        output = kept.get("output")
        if not isinstance(output, list):
            raise MalformedError("response: output: a list of items is needed")
        for place, item in enumerate(output):
            self._add_item(choice, item, place)
        if kept.get("output_text") not in (None, choice.text):
            self._refuse("output_text", "not the text of the output")

    @property
    def is_ended(self) -> bool:
        """Whether the whole response has come."""
        return bool(self._ends)

    def _frame(self, kind: str, response: Any) -> None:
        if not isinstance(response, Mapping):
            raise MalformedError(f"response: {kind} without a response")
        if kind in FRAMES:
            if not is_nothing(response.get("output")):
                self._refuse(kind, "an output before the answer began")
            return
        self._ends += 1
        if self._ends > 1:
            self._refuse(kind, "the end of the answer, a second time")
            return
        self.add(response)
        for place, shown in self._shown.items():
            if shown != self._whole.get(place):
                self._refuse("delta", f"the stream showed {shown[:60]!r}, and the end does not")

    def _add_content(self, kind: str, event: Mapping[str, Any]) -> None:
        """Add what an event shows, at its place."""
        value, item = event.get(CONTENT[kind]), event.get("output_index")
        known = (*IDLE, CONTENT[kind], "logprobs", "name")
        strange = {name: content for name, content in event.items() if name not in known}
        if any(texts_in(strange)):
            self.remarks[Remark("open", f"{kind}: {next(iter(strange))}"[:128], "no check covers this field")] = None
        if self._ends:
            self._refuse(kind, "more of an answer that has ended")
        shown: dict[Place, str] = {}
        if CONTENT[kind] == "item":
            shown = self._item_texts(value, item)
        elif CONTENT[kind] == "part":
            shown = {(item, event.get("content_index")): self._part_text(value)}
        elif isinstance(value, str):
            shown = {(item, event.get("content_index")): value}
        else:
            raise MalformedError(f"response: {kind}: {CONTENT[kind]}: text is needed")
        for place, text in shown.items():
            before = self._shown.get(place, "")
            if kind.endswith(".delta"):
                self._shown[place] = before + text
            elif kind.endswith(".added"):
                if text:
                    self._refuse(kind, f"text before the answer began: {text[:60]!r}")
            elif self._shown.setdefault(place, text) != text:
                self._refuse(kind, f"{text[:60]!r}, and the stream showed {before[:60]!r}")

    def _item_texts(self, item: Any, place: Any) -> dict[Place, str]:
        """The texts of an item, each at its place."""
        kept = self._kept(ITEM, item, f"output.{place}.")
        if kept.get("type") == "function_call":
            return {(place, None): str(kept.get("arguments") or "")}
        parts = kept.get("content") or ()
        return {(place, number): self._part_text(part) for number, part in enumerate(parts)}

    def _part_text(self, part: Any) -> str:
        return str(self._kept(PART, part, "content.").get("text") or "")

    def _kept(self, tables: Mapping[str, Fields], value: Any, where: str) -> dict[str, Any]:
        """The kept fields of an item or part; one of an unknown type is nothing that tokens speak for."""
        if not isinstance(value, Mapping):
            raise MalformedError(f"response: {where.rstrip('.')}: an object is needed")
        kind = value.get("type")
        if kind not in tables:
            self.remarks[Remark("foreign", where.rstrip("."), f"{str(kind)[:60]!r} is no text of the answer")] = None
            return {}
        return self._scanned(tables[str(kind)], value, where)

    def _add_item(self, choice: ReadChoice, item: Any, place: int) -> None:
        where = f"output.{place}."
        kept = self._kept(ITEM, item, where)
        texts = self._item_texts(item, place)
        self._whole |= texts
        if kept.get("type") == "function_call":
            choice.calls[place] = ReadCall(str(kept.get("name") or ""), str(kept.get("arguments") or ""))
        elif kept.get("type") == "reasoning":
            choice.reasoning += "".join(texts.values())
        elif kept.get("type") == "message":
            if kept.get("role") not in (None, "assistant"):
                choice.refuse(where + "role", f"{str(kept['role'])[:60]!r}, and an answer is the assistant's")
            choice.text = (choice.text or "") + "".join(texts.values())
            for part in kept.get("content") or ():
                listed = part.get("logprobs") if isinstance(part, Mapping) else None
                logprobs = [self.logprob(entry, where + "logprobs.") for entry in listed or ()]
                choice.logprobs.setdefault("content", []).extend(logprobs)

    def _finish(self, kept: Mapping[str, Any]) -> str | None:
        """The finish reason of a completion for the status of a response."""
        status, details = kept.get("status"), kept.get("incomplete_details")
        reason = None if details is None else self._scanned(DETAILS, details, "incomplete_details.").get("reason")
        if status == "incomplete":
            return "length" if reason in (None, "max_output_tokens") else str(reason)
        if reason is not None:
            self._refuse("incomplete_details", f"{str(reason)[:60]!r}, and the response is {status!r}")
        return "stop" if status in (None, "completed") else str(status)


def reader_of(form: Form) -> CompletionReader:
    """A reader of whole answers of a form."""
    return ResponsesReader() if form == "responses" else CompletionReader(form)


def form_of_answer(body: Mapping[str, Any]) -> Form:
    """The form of an answer whose request is not at hand; where it is, the two are compared."""
    choices = body.get("choices")
    if not isinstance(choices, list):
        return "responses" if "output" in body or body.get("object") == "response" else "text"
    parts = [part.get(name) for part in choices if isinstance(part, Mapping) for name in ("message", "delta")]
    return "chat" if any(part is not None for part in parts) else "text"
