"""Hidden states under a root: committed to, opened where a nonce selects, and checked."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import (
    LEAF_PREFIX,
    Hash,
    LeafHashes,
    check_inclusion,
    digest,
    digest_bytes,
    digest_from,
    hashes_from,
    prove_inclusion,
    tree_root,
)
from tallystick.core.documents import Count, DigestText, Document, HashText, decode_base64
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.core.tensors import Tensor, item_size
from tallystick.formats.receipt import LAYERS_MAX, PARTS_MAX, Nonce, StatesCommitment
from tallystick.programs.random_words import sample

# The opening of hidden states under the root of a receipt: the parts that a nonce selects, or those of one layer.

PART_CHARACTERS_MAX: Final = 12 << 20
PROOF_MAX: Final = 32


class StatesPart(Document):
    """The rows of one block and layer, row-major and little-endian in base64, and their inclusion proof."""

    block: Count
    layer: Annotated[int, Field(ge=0, le=LAYERS_MAX)]
    data: Annotated[str, Field(max_length=PART_CHARACTERS_MAX)]
    proof: Annotated[tuple[HashText, ...], Field(max_length=PROOF_MAX)]


class StatesOpening(Document):
    """The answer to a challenge: the selected parts of the states under root `states`, in the order of the leaves.

    With `layer` these are all parts of that layer and of the one before it.
    """

    opening: Literal[1] = 1
    states: DigestText
    nonce: Nonce
    layer: Annotated[int, Field(ge=0, le=LAYERS_MAX)] | None = None
    parts: Annotated[tuple[StatesPart, ...], Field(min_length=1, max_length=PARTS_MAX)]


# Hidden states under a root: committed to, opened where a nonce selects, and checked.
#
# A fingerprint whose directions are known beforehand can be met exactly by foreign states (`attacks/fingerprints`), and
# so can a root over such fingerprints. So the commitment is to the hidden states themselves, byte by byte. The nonce
# comes afterwards: it selects leaves and draws fresh directions, and what is opened was fixed before.

DOMAIN: Final = b"tallystick/hidden/v1\n"
LEAVES_MAX: Final = 1 << 22
NONCE_BYTES_MAX: Final = 64
WIDTH_MAX: Final = 1 << 20
Place: TypeAlias = tuple[int, int]
"""A block of rows and a layer."""
Rows: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CommittedStates:
    """Hidden states [rows, d] by layer under a root, kept by the provider that has to open them."""

    statement: StatesCommitment
    states: Mapping[int, Tensor]
    leaves: tuple[Hash, ...]

    def open(self, nonce: bytes, count: int = 1, layer: int | None = None) -> StatesOpening:
        """The `count` parts that `nonce` selects, or all where there are fewer; with `layer`, those that judge it.

        Raises `UsageError` as `challenged` and `places_of_layer`.
        """
        chosen = challenged(nonce, self.statement, count)
        places = chosen if layer is None else places_of_layer(self.statement, layer)
        parts = tuple(self._part(*place) for place in places)
        return StatesOpening(states=self.statement.root, nonce=nonce.hex(), layer=layer, parts=parts)

    @property
    def size_bytes(self) -> int:
        """The bytes of the states."""
        return sum(rows.nbytes for rows in self.states.values())

    def _part(self, block: int, layer: int) -> StatesPart:
        _, data = _block_of(self.states[layer], self.statement, block)
        index = _leaf_index(self.statement, block, layer)
        proof = prove_inclusion(LeafHashes(self.leaves), index, len(self.leaves))
        text = base64.b64encode(data).decode()
        return StatesPart(block=block, layer=layer, data=text, proof=tuple(node.hex() for node in proof))


def commit_states(
    rows: Mapping[int, Tensor | npt.NDArray[Any]], layers: Sequence[int], block: int, *, prompt: bool = False
) -> CommittedStates:
    """The commitment to rows [rows, d] of `layers`, F32, BF16 or F16, alike in number and dtype.

    Raises `UsageError` where they are not, or there are none.
    """
    states = {layer: given if isinstance(given := rows[layer], Tensor) else Tensor.of(given) for layer in layers}
    draft = _draft(states, block, prompt)
    leaves = tuple(
        _leaf(*_block_of(states[layer], draft, place), layer) for place in range(_blocks(draft)) for layer in layers
    )
    statement = draft.model_copy(update={"root": digest_from(tree_root(leaves))})
    return CommittedStates(statement, states, leaves)


def challenged(nonce: bytes, statement: StatesCommitment, count: int) -> list[Place]:
    """The `count` pairs of block and layer that `nonce` selects without replacement, in the order of the leaves.

    Raises:
        UsageError: the nonce is not of 1 to 64 bytes, or the count not from 1 to 1024.
        MalformedError: the statement is of no rows, of one layer twice, or of more leaves than anybody commits to.
    """
    if not 1 <= len(nonce) <= NONCE_BYTES_MAX:
        raise UsageError(f"nonce: {len(nonce)} bytes are not from 1 to {NONCE_BYTES_MAX}")
    if not 1 <= count <= PARTS_MAX:
        raise UsageError(f"count: {count} is not from 1 to {PARTS_MAX}")
    leaves = leaf_count(statement)
    key = digest_bytes(digest("challenge", encode(["states", statement.root, nonce.hex()])))
    indices = sample(key, leaves, min(count, leaves))
    return [(int(i) // len(statement.layers), statement.layers[int(i) % len(statement.layers)]) for i in indices]


def judged_layers(statement: StatesCommitment) -> list[int]:
    """The layers whose output and input are both under the root; layer 0 reads the tokens themselves."""
    return [layer for layer in statement.layers if layer == 0 or layer - 1 in statement.layers]


def drawn_layer(nonce: bytes, statement: StatesCommitment, layers: Sequence[int]) -> int | None:
    """The layer that a nonce draws from `layers`; None if there is none."""
    if not layers:
        return None
    key = digest_bytes(digest("challenge", b"layer\n" + statement.root.encode() + nonce))
    return layers[int(sample(key, len(layers), 1)[0])]


def places_of_layer(statement: StatesCommitment, layer: int) -> list[Place]:
    """All parts of `layer` and of the layer before it, in the order of the leaves.

    Raises `UsageError` where one of them is not under the root, or they are more parts than one opening may have.
    """
    if layer not in judged_layers(statement):
        raise UsageError(f"layer {layer}: its states, or those of the layer before it, are not committed to")
    blocks = leaf_count(statement) // len(statement.layers)
    places = [(block, other) for block in range(blocks) for other in statement.layers if other in (layer - 1, layer)]
    if len(places) > PARTS_MAX:
        raise UsageError(f"layer {layer}: {len(places)} parts are more than the {PARTS_MAX} of one opening")
    return places


def direction_seed(nonce: bytes, statement: StatesCommitment) -> str:
    """The seed of the directions that a nonce draws for the states under a root."""
    return digest("challenge", encode(["directions", statement.root, nonce.hex()])).removeprefix("sha256:")


def leaf_count(statement: StatesCommitment) -> int:
    """The leaves under a root; raises `MalformedError` for a number that cannot be."""
    if len(set(statement.layers)) != len(statement.layers):
        raise MalformedError("states.layers: a layer twice")
    leaves = _blocks(statement) * len(statement.layers)
    if not 1 <= leaves <= LEAVES_MAX:
        raise MalformedError(f"states: {leaves} leaves are not from 1 to {LEAVES_MAX}")
    return leaves


def check_states_opening(
    opening: StatesOpening, statement: StatesCommitment, nonce: bytes, count: int, layer: int | None = None
) -> dict[Place, Rows]:
    """The rows [rows of the block, d] of every part that `nonce` selects, or of those of `layer`, in float32.

    Raises:
        ProofError: the opening is of other states or for another nonce, a part is missing, not asked for, out of
            order, or not under the root.
        MalformedError: the bytes of a part are no rows.
    """
    if opening.states != statement.root:
        raise ProofError("states opening: of other states than the receipt's")
    if opening.nonce != nonce.hex():
        raise ProofError("states opening: answers another nonce")
    wanted = challenged(nonce, statement, count) if layer is None else places_of_layer(statement, layer)
    if opening.layer != layer or [(part.block, part.layer) for part in opening.parts] != wanted:
        what = "that the nonce selects" if layer is None else f"of layer {layer} and the one before"
        raise ProofError(f"states opening: not the {len(wanted)} parts {what}")
    return {(part.block, part.layer): _checked(part, statement) for part in opening.parts}


def _draft(states: Mapping[int, Tensor], block: int, prompt: bool) -> StatesCommitment:
    kinds = {(tensor.dtype, tensor.shape[0]) for tensor in states.values() if len(tensor.shape) == 2}
    if len(kinds) != 1 or any(len(tensor.shape) != 2 or not math.prod(tensor.shape) for tensor in states.values()):
        raise UsageError("states: no rows, or not alike in number and dtype in every layer")
    dtype, rows = next(iter(kinds))
    value: dict[str, Json] = {"root": digest("hidden", b""), "block": block, "rows": rows, "dtype": dtype}
    try:
        return StatesCommitment.from_json({**value, "layers": [*states], "prompt": prompt}, "states")
    except MalformedError as error:
        raise UsageError(str(error)) from None


def _checked(part: StatesPart, statement: StatesCommitment) -> Rows:
    what = f"states opening: block {part.block}, layer {part.layer}"
    data = decode_base64(part.data, f"{what}: data")
    rows = min(statement.block, statement.rows - part.block * statement.block)
    width, rest = divmod(len(data), rows * item_size(statement.dtype))
    if rest or not 1 <= width <= WIDTH_MAX:
        raise MalformedError(f"{what}: {len(data)} bytes are not {rows} rows of {statement.dtype}")
    tensor = Tensor(statement.dtype, (rows, width), data)
    leaf = _leaf(_header(statement, part.block, rows, width), memoryview(data), part.layer)
    index, root = _leaf_index(statement, part.block, part.layer), Hash(digest_bytes(statement.root))
    check_inclusion(hashes_from(part.proof), leaf, index, leaf_count(statement), root)
    with np.errstate(invalid="ignore"):  # a signalling NaN stays a NaN
        return np.asarray(tensor.values(), np.float32)


def _blocks(statement: StatesCommitment) -> int:
    return -(-statement.rows // statement.block)


def _leaf_index(statement: StatesCommitment, block: int, layer: int) -> int:
    return block * len(statement.layers) + statement.layers.index(layer)


def _block_of(states: Tensor, statement: StatesCommitment, block: int) -> tuple[dict[str, Any], memoryview]:
    first, width = block * statement.block, states.shape[1]
    rows = min(statement.block, statement.rows - first)
    size = width * item_size(states.dtype)
    data = memoryview(states.data)[first * size : (first + rows) * size]
    return _header(statement, block, rows, width), data


def _header(statement: StatesCommitment, block: int, rows: int, width: int) -> dict[str, Any]:
    return {"dtype": statement.dtype, "first": block * statement.block, "rows": rows, "width": width}


def _leaf(header: dict[str, Any], data: memoryview, layer: int) -> Hash:
    """The RFC 6962 hash of a leaf: domain, canonical JSON of the header, a line feed, the rows."""
    hashed = hashlib.sha256(LEAF_PREFIX + DOMAIN + encode({**header, "layer": layer}) + b"\n")
    hashed.update(data)
    return Hash(hashed.digest())
