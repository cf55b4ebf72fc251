"""Receipts with other statements, signed by whoever owns the key: JSON in, JSON out, nothing read on the way.

A field is named by its path, such as `answer.tokens.count`; `None` takes it away.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tallystick.core.canonical_json import Json, encode
from tallystick.formats.completions import FINISH_REASONS
from tallystick.formats.fingerprints import Rows
from tallystick.formats.hidden_states import CommittedStates, commit_states
from tallystick.formats.receipt import SIGNED, Fingerprint, Tokens
from tallystick.formats.signing import SigningKey
from tallystick.verdicts.fingerprints import make_fingerprint, settings_of
from tests.support.attacks.receipts.scene import Answered, Scene, choice_of

Changes = Mapping[str, Json]
Body = dict[str, Json]
ABSENT: Final = None


def changed(value: Json, changes: Changes) -> Any:
    """A copy of `value` with other fields."""
    result: Any = copy.deepcopy(value)
    for path, field in changes.items():
        *parents, name = path.split(".")
        place = result
        for parent in parents:
            place = place[int(parent) if isinstance(place, list) else parent]
        key: Any = int(name) if isinstance(place, list) else name
        if field is not ABSENT:
            place[key] = field
        elif isinstance(place, list) or key in place:
            del place[key]
    return result


def sign(receipt: Json, key: SigningKey) -> dict[str, Json]:
    """A receipt under a signature, whether or not it is one."""
    return {"receipt": receipt, "key": key.public, "signature": key.sign(SIGNED + encode(receipt))}


def restate(answered: Answered, key: SigningKey, changes: Changes) -> Body:
    """The response with other statements in its receipt, signed."""
    return {**answered.body, "receipt": sign(changed(answered.receipt, changes), key)}


def edit(answered: Answered, changes: Changes) -> Body:
    """The response with other statements in its receipt, under the old signature."""
    held: Any = answered.body["receipt"]
    return {**answered.body, "receipt": {**held, "receipt": changed(held["receipt"], changes)}}


def claim_request(asked: Answered) -> Changes:
    """The changes by which a receipt says that it is of the request that `asked` answers."""
    return {"request": asked.receipt["request"], "sampler": asked.receipt["sampler"]}


def deliver_as(body: Body, other: Answered) -> Body:
    """The response under the name, and with the prompt and its bill, of another one."""
    renamed = {**body, "id": other.body["id"], "prompt_token_ids": other.body["prompt_token_ids"]}
    return billed(renamed, prompt_tokens=usage_of(other.body)["prompt_tokens"])


def cut(scene: Scene, answered: Answered, count: int, finish: str) -> Body:
    """The response with the first `count` tokens alone, as if it had ended there."""
    kept = {layer: rows[:count] for layer, rows in answered.rows.items()}
    tokens = answered.tokens[:count]
    changes = {"answer": {"tokens": Tokens.of(tokens).to_json(), "finish": finish}, **evidence(answered, kept)[0]}
    choice: Json = choice_of(scene.promised, tokens, FINISH_REASONS[finish])
    return billed({**restate(answered, scene.key, changes), "choices": [choice]}, completion_tokens=count)


def evidence(answered: Answered, rows: Rows) -> tuple[Changes, CommittedStates]:
    """The changes that put fingerprints and commitment of other rows into a receipt, and the states committed to."""
    prints = [make_fingerprint(rows, settings_of(each)).to_json() for each in fingerprints_of(answered)]
    held = answered.states.statement
    states = commit_states(dict(rows), held.layers, held.block)
    return {"fingerprints": list(prints), "states": states.statement.to_json()}, states


def fingerprints_of(answered: Answered) -> Sequence[Fingerprint]:
    """The fingerprints of a receipt."""
    return [Fingerprint.from_json(each, "fingerprint") for each in answered.receipt["fingerprints"]]


def usage_of(body: Body) -> dict[str, Any]:
    """What is billed."""
    usage: Any = body["usage"]
    return dict(usage)


def billed(body: Body, **counts: int) -> Body:
    """The response with another bill."""
    return {**body, "usage": {**usage_of(body), **counts}}
