"""Answers that the claimed sampler did not draw: each a pure function of a model's next logits that returns tokens."""
