"""The rows recipe: how the conversations of a corpus became rows of tokens, and the root over the rows."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Count, DigestText, Document, Positive

LENGTH_MAX = 1 << 20


class RowsRecipe(Document):
    """Row j is conversation `order[j]` of the corpus in the chat template, cut or padded to `length` tokens.

    `order` is the permutation that corpus and `seed` key. Labels are −100 outside of the turns that are `trained` and
    on padding. `root` is the RFC 6962 root over the rows (`datasets.rows`). With `packing` a row holds as many of the
    `conversations` as fit: `apart`, where positions begin anew with each, or `joined`, where all are one text. `starts`
    is the blob digest of the number of the first conversation of each row.
    """

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
        stated = {each is not None for each in (self.packing, self.conversations, self.starts)}
        if len(stated) != 1:
            raise ValueError("packing, conversations and starts belong together")
        if self.total < self.count:
            raise ValueError("more rows than conversations")
        return self

    @property
    def total(self) -> int:
        """The number of conversations."""
        return self.conversations or self.count

    @property
    def identity(self) -> Digest:
        """The digest by which a spec names these rows."""
        return self.digest_as("rows")
