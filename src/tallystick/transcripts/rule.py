"""The settings of an optimizer as a spec states them, for a run that has no recipe."""

from __future__ import annotations

from typing import Literal

from tallystick.documents.document import Document
from tallystick.transcripts.optimizer import UpdateRule
from tallystick.transcripts.recipe import Beta, Rate, Share


class GroupRule(Document):
    """The settings of one parameter group in a spec; the fields are those of `UpdateRule`."""

    kind: Literal["adamw", "adam", "sgd"]
    betas: tuple[Beta, Beta]
    eps: Share
    weight_decay: Rate
    momentum: Beta
    nesterov: bool
    maximize: bool

    @classmethod
    def of(cls, rule: UpdateRule) -> GroupRule:
        """The rule as a document."""
        return cls(
            kind=rule.kind,
            betas=rule.betas,
            eps=rule.eps,
            weight_decay=rule.weight_decay,
            momentum=rule.momentum,
            nesterov=rule.nesterov,
            maximize=rule.maximize,
        )

    @property
    def rule(self) -> UpdateRule:
        """The rule as it is computed with."""
        return UpdateRule(
            self.kind, self.betas, self.eps, self.weight_decay, self.momentum, self.nesterov, self.maximize
        )
