"""The settings of an optimizer in the spec of a run without a recipe."""

from __future__ import annotations

from typing import Literal

from tallystick.documents.document import Document
from tallystick.transcripts.recipe import Beta, Rate, Share


class GroupRule(Document):
    """The settings of one parameter group; `workloads.optimizer` computes updates with them."""

    kind: Literal["adamw", "adam", "sgd"]
    betas: tuple[Beta, Beta]
    eps: Share
    weight_decay: Rate
    momentum: Beta
    nesterov: bool
    maximize: bool
