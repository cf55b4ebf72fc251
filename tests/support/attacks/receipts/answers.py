"""Forged statements about the answer: where it ended, how long it is, and what is billed."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Final

from tallystick.audits.answers.delivery import UNFINISHED
from tallystick.formats.completions import FINISH_REASONS
from tallystick.formats.receipt import Tokens
from tallystick.verdicts.fingerprints import make_fingerprint, settings_of
from tests.support.attacks.receipts.forgery import Forgery
from tests.support.attacks.receipts.forging import Body, billed, cut, fingerprints_of, restate, usage_of
from tests.support.attacks.receipts.scene import Presented, Scene, choice_of

EXTRA: Final = 8
COUNTS: Final = ("answer.tokens.count", "fingerprints.0.tokens", "states.rows")


def truncated(scene: Scene, finish: str) -> tuple[Presented, ...]:
    """The first two thirds of an answer, as if it had ended there."""
    count = 2 * len(scene.first.tokens) // 3
    return (Presented(cut(scene, scene.first, count, finish), scene.first.request),)


def overbilled(scene: Scene, count: str) -> tuple[Presented, ...]:
    """An honest receipt under a bill for more tokens."""
    body = scene.first.body
    return (Presented(billed(body, **{count: usage_of(body)[count] + EXTRA}), scene.first.request),)


def overbilled_in_total(scene: Scene) -> tuple[Presented, ...]:
    """An honest receipt, and a bill whose parts are right and whose sum is not."""
    total = sum(usage_of(scene.first.body).values()) + EXTRA
    return (Presented(billed(scene.first.body, total_tokens=total), scene.first.request),)


def overcounted(scene: Scene, *paths: str) -> tuple[Presented, ...]:
    """More tokens than there are in `paths` of the receipt and on the bill; the ids are left to the response."""
    more = len(scene.first.tokens) + EXTRA
    body = restate(scene.first, scene.key, {"answer.tokens.ids": None, **dict.fromkeys(paths, more)})
    return (Presented(billed(body, completion_tokens=more), scene.first.request),)


def fewer_blocks(scene: Scene, is_hidden: bool) -> tuple[Presented, ...]:
    """Fingerprints of the first tokens alone, said to be of that many or (`is_hidden`) of all."""
    first = fingerprints_of(scene.first)[0]
    kept = min(first.block, first.tokens // 2)
    rows = {layer: each[:kept] for layer, each in scene.first.rows.items()}
    short: Any = make_fingerprint(rows, settings_of(first)).to_json()
    short["tokens"] = first.tokens if is_hidden else kept
    return (Presented(restate(scene.first, scene.key, {"fingerprints": [short]}), scene.first.request),)


def unknown_token(scene: Scene) -> tuple[Presented, ...]:
    """A token that the model does not have, under a digest that agrees with it."""
    ids = [*scene.first.tokens[:-1], scene.promised.card.vocabulary]
    body = restate(scene.first, scene.key, {"answer.tokens": Tokens.of(ids).to_json()})
    return (Presented({**body, "choices": []}, scene.first.request),)


def prompt_counted_up(scene: Scene) -> tuple[Presented, ...]:
    """A longer prompt in receipt and bill; the ids are left to the customer, and their digest is right."""
    more = len(scene.first.receipt["request"]["prompt"]["ids"]) + EXTRA
    changes = {"request.prompt.ids": None, "request.prompt.count": more, "states": None}
    body = billed(restate(scene.first, scene.key, changes), prompt_tokens=more)
    return (Presented({name: each for name, each in body.items() if name != "prompt_token_ids"}, scene.first.request),)


def called_a_text(scene: Scene) -> tuple[Presented, ...]:
    """The digest of the tokens under the name of a text's, of which no count is compared, and a higher bill."""
    choices: Any = scene.first.body["choices"]
    changes = {"answer.tokens.ids": None, "answer.tokens.over": "text"}
    body: Body = {**restate(scene.first, scene.key, changes), "choices": [{**choices[0], "text": None}]}
    return (Presented(billed(body, completion_tokens=len(scene.first.tokens) + EXTRA), scene.first.request),)


def beyond_a_stop(scene: Scene, finish: str) -> tuple[Presented, ...]:
    """An answer that goes on where a stop text was to end it, delivered in part or as a whole."""
    stop, until = _stop_inside(scene)
    request = scene.first.request.model_copy(update={"stop": (stop,)})
    body = restate(scene.first, scene.key, {"answer.finish": finish})
    choice: Any = choice_of(scene.promised, scene.first.tokens, FINISH_REASONS[finish])
    return (Presented({**body, "choices": [choice | ({"text": until} if finish == "stop" else {})]}, request),)


def _stop_inside(scene: Scene) -> tuple[str, str]:
    """What one token in the first half of the answer adds to the text, in whole characters, and the text before it."""
    texts = [scene.promised.decode(scene.first.tokens[:count]) for count in range(len(scene.first.tokens) // 2)]
    added = ((now[len(before) :], now) for before, now in pairwise(texts) if now.startswith(before))
    stop, now = next((stop, now) for stop, now in added if stop and UNFINISHED not in stop)
    return stop, now[: now.index(stop)]


def stated(scene: Scene, **fields: Any) -> tuple[Presented, ...]:
    """Other fields of the receipt, `__` standing for the dot of a path."""
    changes = {path.replace("__", "."): value for path, value in fields.items()}
    return (Presented(restate(scene.first, scene.key, changes), scene.first.request),)


FORGERIES: Final = (
    Forgery(
        "cut, 'end'", "a third cut off, as if the model had ended", partial(truncated, finish="end"), checks=("finish",)
    ),
    Forgery(
        "cut, 'stop'", "a third cut off, as if at a stop text", partial(truncated, finish="stop"), checks=("finish",)
    ),
    Forgery(
        "cut, 'length'",
        "a third cut off, as if the limit were there",
        partial(truncated, finish="length"),
        checks=("finish",),
    ),
    Forgery(
        "cut, 'cancelled'",
        "a third cut off, as if the customer had left",
        partial(truncated, finish="cancelled"),
        "inconclusive",
        ("finish",),
        why="only the customer knows whether it left",
    ),
    Forgery(
        "answer overbilled",
        f"{EXTRA} tokens more on the bill",
        partial(overbilled, count="completion_tokens"),
        checks=("usage",),
    ),
    Forgery(
        "prompt overbilled",
        f"{EXTRA} tokens more on the bill",
        partial(overbilled, count="prompt_tokens"),
        checks=("usage",),
    ),
    Forgery("sum overbilled", f"{EXTRA} tokens more in the sum of the bill", overbilled_in_total, checks=("usage",)),
    Forgery(
        "count raised",
        f"{EXTRA} tokens more in answer and bill",
        lambda scene: overcounted(scene, "answer.tokens.count"),
        checks=("numbers",),
    ),
    Forgery(
        "count raised everywhere",
        f"{EXTRA} tokens more in answer, fingerprints, states and bill",
        lambda scene: overcounted(scene, *COUNTS),
        checks=("tokens",),
    ),
    Forgery(
        "prompt counted up",
        f"{EXTRA} tokens more in prompt and bill, the prompt's ids left out",
        prompt_counted_up,
        checks=("prompt",),
    ),
    Forgery(
        "tokens called a text",
        f"{EXTRA} tokens more on the bill, and a digest that is said to be of a text",
        called_a_text,
        "inconclusive",
        ("tokens",),
        why="a text has no tokens to judge",
    ),
    Forgery(
        "beyond a stop text",
        "tokens, and their bill, after a stop text",
        partial(beyond_a_stop, finish="length"),
        checks=("finish",),
    ),
    Forgery(
        "beyond a stop text, hidden",
        "the text delivered as far as the stop text, and tokens billed after it",
        partial(beyond_a_stop, finish="stop"),
        checks=("finish",),
    ),
    Forgery(
        "blocks missing",
        "fingerprints of fewer tokens than the answer has",
        partial(fewer_blocks, is_hidden=False),
        checks=("numbers",),
    ),
    Forgery(
        "blocks missing, count kept",
        "fingerprints of fewer tokens than they state",
        partial(fewer_blocks, is_hidden=True),
        checks=("fingerprint",),
    ),
    Forgery("unknown token", "a token outside the vocabulary", unknown_token, checks=("numbers",)),
    Forgery("unknown version", "a receipt of version 2", partial(stated, receipt=2), "refused", ("receipt.receipt",)),
    Forgery(
        "negative count",
        "a prompt of −1 tokens",
        partial(stated, request__prompt__count=-1),
        "refused",
        ("prompt.count",),
    ),
    Forgery(
        "length bomb", "2³⁰ tokens allowed", partial(stated, request__max_tokens=1 << 30), "refused", ("max_tokens",)
    ),
    Forgery(
        "no fingerprint", "fingerprints left out", partial(stated, fingerprints=[]), "inconclusive", ("fingerprint",)
    ),
)
