"""A graph with a sampler gives the token that `choose` takes from its logits, on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.jax.engine import JaxEngine
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.decoding import capture_decode
from tallystick.formats.receipt import Sampler
from tallystick.programs.admission import read_graph
from tallystick.programs.decoding import cache_specs, fed
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.random_words import seed_words
from tallystick.programs.transforms.sampling import with_sampler
from tallystick.verdicts.sampling.choice import choose

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: list[dict[str, Any]] = [
    {},
    {"form": "cdf", "temperature": 0.7},
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3},
]
ENGINES = {"reference": Reference, "torch": TorchEngine, "jax": JaxEngine}


def doubling(shape: tuple[int, ...], dialect: str = "aten", dtype: str = "F32") -> Graph:
    """The logits are twice the input."""
    spec = TensorSpec(dtype, shape)
    nodes = {
        "aten": Node(3, "aten.add.Tensor", {"self": "inputs.x", "other": "inputs.x"}, {"alpha": 1}, (spec,)),
        "stablehlo": Node(3, "stablehlo.add", {"lhs": "inputs.x", "rhs": "inputs.x"}, {}, (spec,)),
    }
    output = Output("outputs.logits", "n3")
    return Graph(dialect, GraphForm.LOGICAL, (Input("inputs.x", Role.INPUT, spec),), (), (nodes[dialect],), (output,))


def given(x: Any, seed: int, position: int, seen: Any) -> dict[str, Tensor]:
    return {
        "inputs.x": Tensor.of(x),
        "sampler.seed": Tensor.of(seed_words(seed)),
        "sampler.position": Tensor.of(np.array(position)),
        "sampler.seen": Tensor.of(seen),
    }


@pytest.mark.parametrize(
    ("engine", "dialect"),
    [("reference", "aten"), ("reference", "stablehlo"), ("torch", "aten"), ("jax", "stablehlo")],
)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_token_of_a_graph_is_the_token_of_the_choice(engine: str, settings: dict[str, Any], dialect: str) -> None:
    x = np.random.default_rng(0).normal(0, 2, (2, 1, 40)).astype(np.float32)
    seen, graph = np.zeros((2, 1, 40), np.bool_), with_sampler(doubling((2, 1, 40), dialect), **settings)
    seen[:, :, ::3] = True
    runner: Any = ENGINES[engine]()
    for position in (0, 7) if engine != "jax" else (7,):
        outputs = execute(graph, given(x, 5, position, seen), runner)
        sampler = Sampler(seed=5, **settings)
        history = list(range(0, 40, 3))
        expected = choose(2 * x[:, 0], sampler, [position] * 2, [history] * 2)
        assert outputs["token"].array().tolist() == expected[:, None].tolist()


def test_a_graph_with_a_sampler_is_a_graph_like_any_other() -> None:
    graph = with_sampler(doubling((2, 1, 40)), **SETTINGS[3])
    assert read_graph(graph_bytes(graph)) == graph
    assert graph_root(graph) != graph_root(with_sampler(doubling((2, 1, 40)), **{**SETTINGS[3], "top_k": 8}))
    assert [each.name for each in graph.inputs] == ["inputs.x", "sampler.position", "sampler.seed", "sampler.seen"]
    assert [each.name for each in graph.outputs] == ["outputs.logits", "token", "sampler.seen"]


def test_what_was_seen_goes_on_with_the_token_in_it() -> None:
    graph = with_sampler(doubling((1, 40)), repetition_penalty=1.2)
    x, seen = np.random.default_rng(1).normal(size=(1, 40)).astype(np.float32), np.zeros((1, 40), np.bool_)
    outputs = execute(graph, given(x, 1, 0, seen), Reference())
    (token,) = outputs["token"].array().tolist()
    assert np.flatnonzero(outputs["sampler.seen"].array()).tolist() == [token]


def test_a_chain_of_steps_is_an_answer() -> None:
    """State goes from step to step; the tokens are those of the choice with the history so far."""
    sampler = Sampler(seed=3, repetition_penalty=5.0, temperature=0.5)
    graph = with_sampler(doubling((1, 12)), repetition_penalty=5.0, temperature=0.5)
    x, seen, answer = np.random.default_rng(2).normal(size=(1, 12)).astype(np.float32), np.zeros((1, 12), np.bool_), []
    for position in range(8):
        outputs = execute(graph, given(x, 3, position, seen), Reference())
        expected = choose(2 * x, sampler, [position], [answer])
        answer.append(int(outputs["token"].array()[0]))
        assert answer[-1] == expected[0]
        seen = outputs["sampler.seen"].array()
    assert len(set(answer)) > 3


@pytest.mark.parametrize("dialect", ["aten", "stablehlo"])
def test_of_a_whole_sequence_the_last_row_is_chosen_from(dialect: str) -> None:
    x = np.random.default_rng(3).normal(size=(1, 5, 30)).astype(np.float32)
    graph = with_sampler(doubling((1, 5, 30), dialect), repetition_penalty=2.0)
    outputs = execute(graph, given(x, 2, 4, np.zeros((1, 1, 30), np.bool_)), Reference())
    expected = choose(2 * x[:, -1], Sampler(seed=2, repetition_penalty=2.0), [4], [[]])
    assert outputs["token"].array().tolist() == [expected.tolist()]


def test_a_decode_graph_of_a_model_gives_the_token_itself(language_model: Any) -> None:
    """The same token on PyTorch and on the reference: the logits differ by rounding, the choice does not."""
    step = capture_decode(language_model.model, cache=2)
    settings = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.5}
    graph = with_sampler(step.graph, **settings)
    seen = np.zeros((1, 1, 256), np.bool_)
    seen[0, 0, [4, 5, 6]] = True
    rng = np.random.default_rng(4)
    cache = {name: Tensor.of(rng.normal(size=spec.shape).astype("f4")) for name, spec in cache_specs(graph).items()}
    bound = {**step.bindings, **cache, **fed(graph, np.array([[6]]), 2)}
    sampled = {name: each for name, each in given(seen, 9, 1, seen).items() if name.startswith("sampler.")}
    outputs = execute(graph, {**bound, **sampled}, TorchEngine())
    logits = outputs["outputs.logits"].array()[:, -1]
    expected = choose(logits, Sampler(seed=9, **settings), [1], [[4, 5, 6]])
    assert outputs["token"].array().tolist() == [expected.tolist()]
    assert execute(graph, {**bound, **sampled}, Reference())["token"].array().tolist() == [expected.tolist()]


def test_a_greedy_graph_reads_neither_seed_nor_position() -> None:
    graph = with_sampler(doubling((1, 7)), temperature=0.0)
    assert [each.name for each in graph.inputs] == ["inputs.x"]
    x = np.array([[0, 3, 1, 3, -1, 2, 0]], np.float32)
    assert execute(graph, {"inputs.x": Tensor.of(x)}, Reference())["token"].array().tolist() == [1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": -1}, "k is -1"),
        ({"top_p": 1.5}, "no share"),
        ({"min_p": -0.5}, "no share"),
        ({"repetition_penalty": 0.0}, "penalty"),
    ],
)
def test_settings_outside_their_ranges_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        with_sampler(doubling((1, 7)), **settings)


def test_logits_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="no output 'logits'"):
        with_sampler(doubling((1, 7)), "logits")
    with pytest.raises(MalformedError, match="not logits"):
        with_sampler(doubling((7,)))
    with pytest.raises(MalformedError, match="no floats"):
        with_sampler(doubling((1, 7), dtype="I64"))
    with pytest.raises(MalformedError, match="taken"):
        with_sampler(with_sampler(doubling((1, 7))))
