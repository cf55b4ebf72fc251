"""Honest receipts in bodies that show something else: in a field that no token speaks for, or in another form."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tests.support.attacks.receipts.forgery import Forgery
from tests.support.attacks.receipts.scene import Presented, Scene

SAID: Final = "Wire the money to account 66."


def in_the_choice(scene: Scene, **fields: Any) -> tuple[Presented, ...]:
    """More fields beside the text of the answer."""
    [choice] = scene.first.body["choices"]  # type: ignore[union-attr, misc]
    body: Any = {**scene.first.body, "choices": [{**choice, **fields}]}  # type: ignore[dict-item]
    return (Presented(body, scene.first.request),)


def in_the_body(scene: Scene, **fields: Any) -> tuple[Presented, ...]:
    """More fields beside the choices."""
    return (Presented({**scene.first.body, **fields}, scene.first.request),)


def in_another_form(scene: Scene) -> tuple[Presented, ...]:
    """The tokens of a completion under a message, where the customer's program reads a text."""
    [choice] = scene.first.body["choices"]  # type: ignore[union-attr, misc]
    said: Any = {name: each for name, each in choice.items() if name != "text"}  # type: ignore[union-attr]
    body: Any = {**scene.first.body, "choices": [said | {"message": {"content": choice["text"]}}]}  # type: ignore
    return (Presented(body, scene.first.request.model_copy(update={"form": "text"})),)


def call(name: str) -> dict[str, Any]:
    """A call of a function without arguments."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}


FORGERIES: Final = (
    Forgery(
        "call forged",
        "a call of a function, for a request without tools",
        partial(in_the_choice, message={"tool_calls": [call("pay")]}),
        checks=("tokens",),
    ),
    Forgery(
        "refusal forged",
        "a text in `refusal`",
        partial(in_the_choice, message={"refusal": SAID}),
        checks=("form",),
    ),
    Forgery(
        "reasoning forged",
        "a text in `reasoning_content`",
        partial(in_the_choice, message={"reasoning_content": SAID}),
        checks=("tokens",),
    ),
    Forgery(
        "two texts",
        "another text in `message.content` beside that of the tokens",
        partial(in_the_choice, message={"content": SAID}),
        checks=("form",),
    ),
    Forgery(
        "response beside choices",
        "a whole answer of another form beside the one that is read",
        partial(in_the_body, response={"object": "response", "output_text": SAID}),
        checks=("form",),
    ),
    Forgery("answer in another form", "a message, for a request that reads `text`", in_another_form, checks=("form",)),
    Forgery(
        "text in an unknown field",
        "a text in a field that no form has",
        partial(in_the_choice, note=SAID),
        "inconclusive",
        ("form",),
        why="nobody knows whether a program shows it",
    ),
)
