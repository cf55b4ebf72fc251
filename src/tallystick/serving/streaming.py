"""Answers as server-sent events: chunks as they are generated, the receipt in the last one, then `[DONE]`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tallystick.http.problems import Problem
from tallystick.serving.errors import error_object
from tallystick.serving.events import DONE, event_of
from tallystick.serving.jobs import NO_PIECE, Failed, Piece
from tallystick.serving.responses import ChoiceSoFar, ResponseForm
from tallystick.serving.service import Answering


async def stream_events(answering: Answering, form: ResponseForm, has_usage: bool) -> AsyncGenerator[bytes, None]:
    """The chunks of an answer, one event each.

    The last chunk carries the receipts. If the client asked for usage, that is the chunk with `usage` and no choices.
    Otherwise it is the chunk with the last `finish_reason`: other clients do not expect a chunk without choices.
    """
    choices = [ChoiceSoFar() for _ in answering.order.samplers]
    no_usage = {"usage": None} if has_usage else {}
    for number in range(len(choices)):
        yield event_of(form.first_chunk(number) | no_usage)
    held: dict[int, Piece] = {}
    async for number, event in answering.events():
        if isinstance(event, Failed):
            yield event_of(error_object(Problem(500, "internal_error", event.reason)))
            yield DONE
            return
        waiting = held.pop(number, NO_PIECE)
        if isinstance(event, Piece):
            choices[number].add(event)
            joined = waiting.followed_by(event)
            if joined.text and answering.order.calls is None:
                yield event_of(form.piece_chunk(number, joined.text, joined.ids, None, joined.logprobs) | no_usage)
            else:
                held[number] = joined
        else:
            choices[number].answered = event
            chunk = form.piece_chunk(number, waiting.text, waiting.ids, event.finish, waiting.logprobs)
            if answering.order.calls is not None:
                chunk = form.calls_chunk(number, choices[number], waiting.ids, event.finish)
            is_last = all(each.answered for each in choices)
            yield event_of(chunk | (form.closing(choices, usage=False) if is_last and not has_usage else no_usage))
    if has_usage:
        yield event_of(form.last_chunk() | form.closing(choices))
    yield DONE
