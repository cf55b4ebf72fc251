"""The opening of hidden states under the root of a receipt: the parts that a nonce selects, or those of one layer."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.documents.document import Count, DigestText, Document
from tallystick.transcripts.receipt import LAYERS_MAX, PARTS_MAX, Nonce

PART_CHARACTERS_MAX: Final = 12 << 20
PROOF_MAX: Final = 32
HashText = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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
