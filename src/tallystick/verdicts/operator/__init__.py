"""Judges one operator: compares its claimed results with the bounds that follow from its claimed operands."""
