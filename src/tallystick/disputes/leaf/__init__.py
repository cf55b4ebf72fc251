"""The leaf of a dispute: one operator in a portable bundle, and the check that rules on it."""

from tallystick.disputes.leaf.bundle import LeafBundle
from tallystick.disputes.leaf.judge import rule_leaf
from tallystick.disputes.leaf.question import Ground, Limits, Question, Ruling, Work

__all__ = ["Ground", "LeafBundle", "Limits", "Question", "Ruling", "Work", "rule_leaf"]
