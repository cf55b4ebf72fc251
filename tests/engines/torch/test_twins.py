"""Other forms of a model over the same weights: they change nothing of it, and compute what they are named after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.audits.answers.likelihoods import CHEAPER
from tallystick.engines.torch.generation.twins import FORMATS
from tallystick.tally.attacks.provers import integer_weights

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)


def test_the_formats_that_verifiers_try_are_those_of_the_twins() -> None:
    assert tuple(FORMATS) == CHEAPER


def test_a_coarse_twin_computes_what_a_rounded_model_does(language_model: Any) -> None:
    before = language_model.prefill(TOKENS, 0).logits
    coarse = language_model.in_fewer_bits("int8 by row").prefill(TOKENS, 0).logits
    rounded = replace(language_model, model=integer_weights(language_model, bits=8)).prefill(TOKENS, 0).logits
    assert np.allclose(coarse, rounded, atol=1e-4)
    assert not np.allclose(coarse, before, atol=1e-4)
    assert np.array_equal(language_model.prefill(TOKENS, 0).logits, before)


def test_layers_run_again_from_the_ones_before_are_those_of_one_pass(language_model: Any) -> None:
    layers = range(language_model.card.layers)
    hidden = language_model.prefill(TOKENS, 0, layers).hidden
    given = {layer - 1: hidden[max(layer - 1, 0)] for layer in layers}
    fused, eager = language_model.reruns(TOKENS, given)
    last = language_model.card.layers - 1
    for found in (fused, eager):
        assert all(np.allclose(found[layer], hidden[layer], atol=1e-4) for layer in layers if layer < last)
    other = {**given, 0: hidden[0] + 1.0}
    moved, _ = language_model.reruns(TOKENS, other)
    assert not np.allclose(moved[1], fused[1], atol=1e-2)
    assert np.array_equal(moved[0], fused[0]), "only the layer behind reads the rows"


def test_a_twin_holds_no_weights_of_its_own(language_model: Any) -> None:
    coarse = language_model.in_fewer_bits("int8 in groups of 64, steps in 16 bits").model
    own = {id(each) for each in language_model.model.parameters()}
    assert all(id(each) in own for each in coarse.parameters())
    with pytest.raises(KeyError):
        language_model.in_fewer_bits("int3")
    assert torch.is_grad_enabled()
