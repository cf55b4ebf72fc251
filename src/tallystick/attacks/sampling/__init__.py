"""Answers that the claimed sampler did not draw: each a pure function of a model's next logits that returns tokens."""

from tallystick.attacks.sampling.foreign import teacher_force_foreign
from tallystick.attacks.sampling.generation import NextLogits, generate, teacher_forced
from tallystick.attacks.sampling.injected import inject, post_edit
from tallystick.attacks.sampling.shortened import truncate
from tallystick.attacks.sampling.speculative import speculate
from tallystick.attacks.sampling.steered import steer
from tallystick.attacks.sampling.synthetic import drifted, synthetic_model
from tallystick.attacks.sampling.tempered import resample

__all__ = [
    "NextLogits",
    "drifted",
    "generate",
    "inject",
    "post_edit",
    "resample",
    "speculate",
    "steer",
    "synthetic_model",
    "teacher_force_foreign",
    "teacher_forced",
    "truncate",
]
