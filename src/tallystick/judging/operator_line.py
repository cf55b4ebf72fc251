"""Writes and reads the line of an operator record without a JSON library, for speed.

Besides digests, a record holds nothing that its node does not hold, and the digests of a node's operands are known from
the nodes before. So a reader that follows the operators in order knows each line except the digests of the results. It
compares bytes instead of parsing them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as _quoted
from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.graphs.graph import Node, Ref

_GIVEN: Final = re.compile(r'"([^"\\]+)":"(sha256:[0-9a-f]{64})"')
_OUTPUTS: Final = '"outputs":'


def operator_line(node: Node, read: Mapping[Ref, Digest], given: Mapping[Ref, Digest]) -> bytes:
    """The canonical bytes of the `OperatorRecord` of a node of a checked graph.

    `read` and `given` hold the digests of the values that it reads and gives, and may hold more.
    """
    inputs = _object(set(node.refs), read)
    outputs = _object((ref for ref in node.outputs if ref is not None), given)
    operator = _quoted(node.operator)
    return (
        f'{{"inputs":{inputs},"kind":"operator","node":{node.number},"operator":{operator},"outputs":{outputs}}}'
    ).encode()


def _object(refs: Iterable[Ref], digests: Mapping[Ref, Digest]) -> str:
    return "{" + ",".join([f'{_quoted(ref)}:"{digests[ref]}"' for ref in sorted(refs)]) + "}"


def given_in(line: bytes, node: Node, read: Mapping[Ref, Digest]) -> dict[Ref, Digest] | None:
    """The digests of the results of `node`, if `line` is its record over the digests in `read`; else `None`.

    For the reason, parse the line with `OperatorRecord.from_bytes` and compare the fields.
    """
    text = line.decode("ascii", "replace")
    found = {ref: Digest(name) for ref, name in _GIVEN.findall(text, max(text.rfind(_OUTPUTS), 0))}
    is_known = read.keys() >= set(node.refs) and found.keys() == {ref for ref in node.outputs if ref is not None}
    return found if is_known and operator_line(node, read, found) == line else None
