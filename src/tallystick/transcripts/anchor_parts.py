"""The list beside an anchor of which some tensors are in the files of earlier anchors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.documents.document import Count, Document

TensorName = Annotated[str, Field(min_length=1, max_length=1024)]


class AnchorParts(Document):
    """`elsewhere`: the names of the tensors that did not change, and the anchor in whose file each of them is."""

    anchor: Literal["parts"] = "parts"
    version: Literal[2] = 2
    elsewhere: dict[TensorName, Count]


def parts_file(index: int) -> str:
    """The path of the list of anchor `index` inside a run directory."""
    return f"anchors/step_{index:08d}.json"


def part_file(index: int) -> str:
    """The path of those tensors of anchor `index` that are kept in a file of its own."""
    return f"anchors/step_{index:08d}.part.safetensors"
