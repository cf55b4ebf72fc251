"""The conversations of a corpus, read one after the other from its shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tallystick.datasets.names import shown
from tallystick.datasets.shard_values import READERS, holds_surrogate, read_values
from tallystick.datasets.shards import list_shards
from tallystick.errors import MalformedError

Conversation = list[dict[str, str]]
MEMBERS = ("role", "content")
KINDS = tuple(suffix for suffix in READERS if suffix != ".txt")


def read_conversations(directory: Path, field: str) -> Iterator[Conversation]:
    """The conversations below a directory, in the order of its shards and of their records.

    Raises:
        MalformedError: naming the record whose `field` is no list of turns with `role` and `content` as strings.
        UnavailableError: a shard cannot be read, or a library that reads it is missing.
    """
    files = list_shards(directory)
    for file in files:
        if not file.name.endswith(KINDS):
            raise MalformedError(f"{shown(file.name)}: a shard with conversations ends with one of {', '.join(KINDS)}")
    for file in files:
        for value, where in read_values(file, field):
            yield _conversation(value, field, where)


def _conversation(turns: object, field: str, where: str) -> Conversation:
    if not isinstance(turns, list) or not turns or not all(_is_turn(each) for each in turns):
        raise MalformedError(f"{where}: {field!r} is no list of turns, each with `role` and `content` as strings")
    return [{name: each[name] for name in MEMBERS} for each in turns]


def _is_turn(value: object) -> bool:
    parts = [value.get(name) for name in MEMBERS] if isinstance(value, dict) else [None]
    return all(isinstance(each, str) and not holds_surrogate(each) for each in parts)
