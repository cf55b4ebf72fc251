"""A layer in 16 bits is told from one with weights of 8 bits by the direction of what the weights change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers.layer import CHEAPER, HALFWAY, compare_with_cheaper, finding_of, matrices_of, project
from tallystick.core.tensors import FEWER_BITS, Tensor, in_fewer_bits
from tallystick.programs.execution import execute
from tallystick.programs.graph import Ref

TOKENS, WIDTH = 96, 32
RANDOM = np.random.default_rng(0)
PROMISED = RANDOM.normal(size=(TOKENS, WIDTH))
CHEAP = PROMISED + 0.004 * RANDOM.normal(size=PROMISED.shape)


def rounded(rows: np.ndarray, seed: int = 1) -> np.ndarray:
    """Rows with honest noise as large as the change."""
    return rows * (1 + 0.004 * np.random.default_rng(seed).normal(size=rows.shape))


@pytest.mark.parametrize("seed", range(20))
def test_rounding_lies_near_the_promised_layer_and_a_cheaper_layer_near_itself(seed: int) -> None:
    honest, cheap = (project(rounded(rows, seed), PROMISED, CHEAP) for rows in (PROMISED, CHEAP))
    assert abs(honest.place) < 0.15
    assert abs(cheap.place - 1) < 0.15
    assert honest.tells
    assert cheap.tells
    assert finding_of("layer 1", "int8 by row", honest).agrees
    assert not finding_of("layer 1", "int8 by row", cheap).agrees


def test_few_or_equal_rows_tell_nothing() -> None:
    assert not project(rounded(PROMISED[:1]), PROMISED[:1], CHEAP[:1]).tells
    assert project(PROMISED, PROMISED, PROMISED).error == math.inf


def test_one_large_row_does_not_decide() -> None:
    claimed = rounded(PROMISED)
    claimed[0], promised, cheap = 1e4 * CHEAP[0], PROMISED.copy(), CHEAP.copy()
    promised[0], cheap[0] = 1e4 * PROMISED[0], 1e4 * CHEAP[0]
    assert project(claimed, promised, cheap).place < HALFWAY / 2


@pytest.mark.parametrize("name", [None, *CHEAPER])
def test_a_captured_layer_in_bf16_is_told_from_cheaper_ones(name: str | None, short_layer: Any) -> None:
    """The promised layer agrees with itself; with other weights it lies at the end of its own line."""
    from tallystick.audits.answers.layer import bounded_outputs
    from tallystick.engines.torch.engine import TorchEngine

    graph, bindings = short_layer
    [output] = graph.outputs

    def exactly(values: Mapping[Ref, Tensor]) -> np.ndarray:
        return bounded_outputs(graph, values)[output.name].centre[0]

    weights = matrices_of(graph, bindings)
    assert len(weights) == 7
    used = {ref: in_fewer_bits(bindings[ref], FEWER_BITS[name]) for ref in weights} if name else {}
    claimed = execute(graph, {**bindings, **used}, TorchEngine())[output.name].values()[0].astype(np.float64)
    found = dict(compare_with_cheaper(claimed, exactly(bindings), graph, bindings, exactly))
    assert list(found) == list(CHEAPER)
    if name is None:
        assert all(each.tells and abs(each.place) < 0.2 for each in found.values())
    else:
        assert found[name].tells
        assert found[name].place == pytest.approx(1.0, abs=0.2)


@pytest.fixture(scope="module")
def short_layer(one_thread: None) -> Any:
    """A layer of a small Llama in BF16 on the states of the layer before."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from types import SimpleNamespace

    from tallystick.engines.torch.generation.language_models import capture_layer
    from tallystick.engines.torch.tensors import to_tensor

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, vocab_size=128, max_position_embeddings=128)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3 if parameter.dim() > 1 else 0.0).add_(parameter.dim() == 1)
    tokens = np.random.default_rng(3).integers(0, 128, TOKENS).tolist()
    with torch.no_grad():
        hidden = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    layer = capture_layer(SimpleNamespace(model=model), tokens, 1)  # type: ignore[arg-type]
    return layer.graph, {**layer.bindings, str(layer.given): to_tensor(hidden[0])}
