"""Rows of tokens with labels: how conversations lie in them, and the recipe that a spec states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Hash, digest, digest_bytes, leaf_hash, tree_root
from tallystick.core.documents import Count, DigestText, Document, Positive
from tallystick.core.errors import ProofError
from tallystick.core.files import FILE_BYTES_MAX, read_document
from tallystick.core.tensors import State
from tallystick.formats.data.corpus import split_hashes
from tallystick.formats.data.tokens import TOKENIZER_FILE as TOKENIZER_FILE
from tallystick.programs.random_words import permutation

# The rows recipe: how the conversations of a corpus became rows of tokens, and the root over the rows.

LENGTH_MAX = 1 << 20


class RowsRecipe(Document):
    """Row j is conversation `order[j]` of the corpus in the chat template, cut or padded to `length` tokens.

    `order` is the permutation that corpus and `seed` key. Labels are −100 outside of the turns that are `trained` and
    on padding. `root` is the RFC 6962 root over the rows (`formats.data.rows`). With `packing` a row holds as many of
    the `conversations` as fit: `apart`, where positions begin anew with each, or `joined`, where all are one text.
    `starts` is the blob digest of the number of the first conversation of each row.
    """

    digest_noun: ClassVar[str] = "rows"

    rows: Literal["chat"] = "chat"
    version: Literal[1] = 1
    corpus: DigestText
    field: Annotated[str, Field(min_length=1, max_length=256)] = "messages"
    tokenizer: DigestText
    template: DigestText
    trained: Literal["assistant", "all"] = "assistant"
    length: Annotated[int, Field(ge=2, le=LENGTH_MAX)]
    pad: Count
    seed: Count = 0
    packing: Literal["apart", "joined"] | None = None
    conversations: Positive | None = None
    starts: DigestText | None = None
    count: Positive
    root: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _is_packed_or_not(self) -> Self:
        stated = {setting is not None for setting in (self.packing, self.conversations, self.starts)}
        if len(stated) != 1:
            raise ValueError("packing, conversations and starts belong together")
        if self.total < self.count:
            raise ValueError("more rows than conversations")
        return self

    @property
    def total(self) -> int:
        """The number of conversations."""
        return self.conversations or self.count


# How conversations of tokens lie in rows: one in each, or as many as fit.

TOKENS, LABELS, MASK, POSITIONS = "input_ids", "labels", "attention_mask", "position_ids"
UNTRAINED: Final = -100
Row = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Labelled:
    """A conversation cut to the length of a row: tokens and labels, of one length."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]


def parts_of(recipe: RowsRecipe) -> tuple[str, str, str]:
    """The names of the tensors of a row, in the order in which they are hashed."""
    return (TOKENS, LABELS, POSITIONS if recipe.packing == "apart" else MASK)


def starts_of(lengths: Iterable[int], recipe: RowsRecipe) -> list[int]:
    """The place of the first conversation of each row, and behind them the number of all: count + 1 numbers.

    A conversation that does not fit behind those before it begins the next row.
    """
    starts, used, number = list[int](), 0, 0
    for number, length in enumerate(lengths, 1):
        if not starts or recipe.packing is None or used + length > recipe.length:
            starts.append(number - 1)
            used = 0
        used += length
    return [*starts, number]


def lay_row(conversations: Sequence[Labelled], recipe: RowsRecipe) -> Row:
    """One row, int64[length] each; the conversations fit into it.

    With `apart` positions begin at 0 in each conversation and in the padding, so that a model which reads them attends
    inside of one; its first token has no label, as the last token of another would have to predict it.
    """
    tokens = np.concatenate([conversation.tokens for conversation in conversations])
    labels = np.concatenate([conversation.labels for conversation in conversations])
    left = recipe.length - tokens.size
    row = {
        TOKENS: np.pad(tokens, (0, left), constant_values=recipe.pad),
        LABELS: np.pad(labels, (0, left), constant_values=UNTRAINED),
    }
    if recipe.packing != "apart":
        return row | {MASK: np.pad(np.ones(tokens.size, np.int64), (0, left))}
    sizes = [*(conversation.tokens.size for conversation in conversations), left]
    positions = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    row[LABELS][positions == 0] = UNTRAINED
    return row | {POSITIONS: positions}


# Rows of tokens with labels, as another kind of samples of a corpus.
#
# rows.json                the rows recipe
# rows.leaves              the leaf hash of each row, 32 bytes each
# rows.starts              of packed rows: the place of the first conversation of each, I64
# rows.safetensors         input_ids and labels I32[count, length], attention_mask U8 or position_ids I32 likewise
# tokenizer.json chat_template.jinja
#
# The leaf of a row is that of the bytes of its three parts in this order, each as I64[length].

RECIPE_FILE: Final = "rows.json"
LEAVES_FILE: Final = "rows.leaves"
STARTS_FILE: Final = "rows.starts"
COMMITTED_FILES: Final = (RECIPE_FILE, LEAVES_FILE, STARTS_FILE)
"""What commits to rows, as far as it is there: the last one is there for packed rows alone."""
ROWS_FILE: Final = "rows.safetensors"
TEMPLATE_FILE: Final = "chat_template.jinja"
NAMED_MAX: Final = 8
"""How many conversations of a row are named where it is not theirs."""


@dataclass(frozen=True)
class CommittedRows:
    """A rows recipe, the leaf hashes of its rows, and of packed rows the place of the first conversation of each."""

    recipe: RowsRecipe
    leaves: tuple[Hash, ...]
    starts: NDArray[np.int64] | None = None

    def places_of(self, row: int) -> range:
        """The places, in the order of the recipe, of the conversations of a row."""
        if self.starts is None:
            return range(row, row + 1)
        end = self.starts[row + 1] if row + 1 < len(self.starts) else self.recipe.total
        return range(int(self.starts[row]), int(end))


def read_rows(folder: Path) -> CommittedRows:
    """The rows that a folder commits to; raises `ProofError` where the leaves or starts are not those of the recipe."""
    recipe = RowsRecipe.from_bytes(read_document(folder / RECIPE_FILE), RECIPE_FILE)
    leaves = tuple(split_hashes(read_document(folder / LEAVES_FILE, FILE_BYTES_MAX)))
    if len(leaves) != recipe.count or tree_root(leaves).hex() != recipe.root:
        raise ProofError(f"{LEAVES_FILE}: not the {recipe.count} rows under the root that {RECIPE_FILE} states")
    return CommittedRows(recipe, leaves, None if recipe.packing is None else _read_starts(folder, recipe))


def _read_starts(folder: Path, recipe: RowsRecipe) -> NDArray[np.int64]:
    content = read_document(folder / STARTS_FILE, FILE_BYTES_MAX)
    if digest("blob", content) != recipe.starts or len(content) != 8 * recipe.count:
        raise ProofError(f"{STARTS_FILE}: not the {recipe.count} starts of rows that {RECIPE_FILE} states")
    starts = np.frombuffer(content, "<i8").astype(np.int64)
    counts = np.diff(starts, append=recipe.total)
    if starts[0] != 0 or counts.min() < 1 or counts.max() > recipe.length:  # every conversation has a token
        raise ProofError(f"{STARTS_FILE}: a row holds no conversation, or more of them than tokens")
    return starts


def check_row(rows: CommittedRows, row: int, conversations: Sequence[Labelled]) -> None:
    """Compare a row with the conversations from its first on, up to the first one behind it, if there is one.

    Raises `ProofError` where they give another row, or where it holds fewer or more of them than fit.
    """
    places = rows.places_of(row)
    starts = starts_of((conversation.tokens.size for conversation in conversations), rows.recipe)
    if starts[1] != len(places):
        raise ProofError(f"row {row} holds {len(places)} conversations, and {starts[1]} of them fit into it")
    if row_leaf(lay_row(conversations[: len(places)], rows.recipe), rows.recipe) != rows.leaves[row]:
        named = ", ".join(str(int(number)) for number in order_of(rows.recipe)[places.start : places.stop][:NAMED_MAX])
        raise ProofError(f"row {row} is not what conversation {named} gives")


def starts_bytes(starts: Sequence[int]) -> bytes:
    """The content of `rows.starts`."""
    return np.array(starts, "<i8").tobytes()


def order_of(recipe: RowsRecipe) -> NDArray[np.int64]:
    """The number of the conversation at each place, int64[total]."""
    named = encode({"corpus": recipe.corpus, "purpose": "rows", "seed": recipe.seed})
    return permutation(digest_bytes(digest("permutation", named)), recipe.total)


def row_leaf(row: Mapping[str, NDArray[Any]], recipe: RowsRecipe) -> Hash:
    """The leaf hash of one row, by the names of its parts."""
    return leaf_hash(b"".join(np.ascontiguousarray(row[part], "<i8").tobytes() for part in parts_of(recipe)))


def leaves_of_batch(batch: State, recipe: RowsRecipe) -> tuple[Hash, ...] | None:
    """The leaf hashes of the rows of a batch, over its micro-batches; `None` where it holds anything else.

    A number without dimensions, such as that of the trained tokens, is no part of a row.
    """
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    for name, tensor in batch.items():
        group, _, part = name.rpartition(".")
        if tensor.shape:
            groups.setdefault(group, {})[part] = tensor.array()
    wanted = parts_of(recipe)
    if not groups or any(parts.keys() != {*wanted} for parts in groups.values()):
        return None
    leaves = []
    for group in sorted(groups, key=lambda name: int(name) if name.isdigit() else -1):
        parts = groups[group]
        if len({part.shape for part in parts.values()}) > 1 or parts[wanted[0]].ndim != 2:
            return None
        rows = len(parts[wanted[0]])
        leaves += [row_leaf({part: parts[part][row] for part in wanted}, recipe) for row in range(rows)]
    return tuple(leaves)


def leaves_bytes(leaves: Sequence[Hash]) -> bytes:
    """The content of `rows.leaves`."""
    return b"".join(leaves)
