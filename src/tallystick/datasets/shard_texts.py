"""The documents of a shard, read one after the other: the strings that its records hold."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.datasets.shard_values import holds_surrogate, read_values
from tallystick.datasets.shards import ShardFile
from tallystick.errors import MalformedError


def read_texts(file: ShardFile, field: str) -> Iterator[str]:
    """The documents of one shard in their order; raises what `read_values` raises, also where a record holds none."""
    for value, where in read_values(file, field):
        if not isinstance(value, str) or holds_surrogate(value):
            raise MalformedError(f"{where}: no string of Unicode characters in the field {field!r}")
        yield value
