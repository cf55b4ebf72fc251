"""The settings of an optimizer as a spec states them, for a run that has no recipe."""

from __future__ import annotations

from typing import Literal

from tallystick.documents.document import Document
from tallystick.transcripts.recipe import Beta, Rate, Share


class GroupRule(Document):
    """The settings of one parameter group in a spec; `workloads.optimizer` computes with them."""

    kind: Literal["adamw", "adam", "sgd"]
    betas: tuple[Beta, Beta]
    eps: Share
    weight_decay: Rate
    momentum: Beta
    nesterov: bool
    maximize: bool
