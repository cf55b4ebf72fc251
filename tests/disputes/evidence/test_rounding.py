"""What rounding does to a call is estimated for it alone: cheaper layers lie outside of it, honest kernels inside."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tallystick.audits.opening import gather_whole  # noqa: E402
from tallystick.disputes.evidence.calls import doubt_calls, unseen_in_calls  # noqa: E402
from tallystick.disputes.evidence.locate import ChallengerWork  # noqa: E402
from tallystick.disputes.evidence.rounding import drifts_of, is_wide, products_of, spread, weights_of  # noqa: E402  # noqa: E402
from tallystick.disputes.evidence.traces import torch_engine  # noqa: E402
from tallystick.disputes.game.protocols import Doubt  # noqa: E402
from tallystick.formats.store.directories import InferenceDirectory  # noqa: E402
from tallystick.programs.execution import (  # noqa: E402
    Engine,
    execute,
)
from tests.support.attacks.disputes.answers import answered, cheap_engine, layers, record  # noqa: E402
from tests.support.attacks.disputes.noise import other_kernels  # noqa: E402

DEEP = 12
FORMATS = ("BF16", "F16", "int8 by row")


@pytest.fixture(scope="module")
def deep(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls of a model of many layers, in which the first layer moves the answer little."""
    torch.manual_seed(1)
    block = (torch.nn.Linear(24, 24), torch.nn.GELU(), torch.nn.LayerNorm(24))
    parts = (torch.nn.Embedding(32, 24), *block * DEEP, torch.nn.Linear(24, 32), torch.nn.Softmax(-1))
    out = tmp_path_factory.mktemp("deep") / "calls"
    record(torch.nn.Sequential(*parts), out)
    return out


def doubted(run: Path, engine: Engine | None = None) -> Doubt | None:
    return doubt_calls(gather_whole(InferenceDirectory(run)), engine or torch_engine(), ChallengerWork())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("place", [0, DEEP // 2, -1])
def test_one_layer_in_fewer_bits_is_doubted_on_other_kernels_too(
    name: str, place: int, deep: Path, tmp_path: Path
) -> None:
    calls = gather_whole(InferenceDirectory(deep))
    forged = answered(calls, tmp_path, cheap_engine(calls.graph, name, place)).statement
    work = ChallengerWork()
    found = doubt_calls(gather_whole(InferenceDirectory(forged)), other_kernels(abs(place)), work)
    if name == "F16" and found is None:
        assert "rounding moves it by less than" in work.remarks[0]
        assert "but proven bounds reach" in work.remarks[0]
        return
    assert found is not None
    assert (found.low, found.high) == (0, 1)
    assert "rounding moves it by less than" in found.reason or "tolerances" in found.reason


@pytest.mark.parametrize("seed", range(8))
def test_honest_calls_are_not_doubted_on_other_kernels(seed: int, deep: Path) -> None:
    assert doubted(deep, other_kernels(seed)) is None


def test_the_drift_is_some_roundings_of_the_output(deep: Path) -> None:
    calls, engine = gather_whole(InferenceDirectory(deep)), torch_engine()
    inputs = {f"inputs.{name}": each for name, each in calls.inputs(calls.records[0]).items()}
    bindings = {**calls.constants, **calls.weights(), **inputs}
    [drift] = drifts_of(calls.graph, bindings, engine, execute(calls.graph, bindings, engine)).values()
    assert 2.0**-24 < drift < 1e-4
    assert is_wide(calls.graph)


def test_what_could_not_have_been_seen_is_named_by_format_and_operator(deep: Path, tmp_path: Path) -> None:
    [told] = unseen_in_calls(gather_whole(InferenceDirectory(deep)), torch_engine())
    assert told == (
        "outputs that are off within the limits; one matrix product in BF16, F16, int8 by row leaves them (8 tried)"
    )
    record(layers(48).to(torch.bfloat16), tmp_path / "short")
    calls = gather_whole(InferenceDirectory(tmp_path / "short"))
    assert not is_wide(calls.graph)
    first, *_ = unseen_in_calls(calls, torch_engine())
    assert first.startswith("one matrix product in int8 by row: 2 of 2 that were tried, the first at operator 1 (aten.")


def test_products_are_spread_from_the_first_to_the_last_and_weights_depend_on_no_input(deep: Path) -> None:
    graph = gather_whole(InferenceDirectory(deep)).graph
    products = products_of(graph)
    assert len(products) == DEEP + 1
    chosen = spread(products)
    assert (len(chosen), chosen[0], chosen[-1]) == (8, products[0], products[-1])
    assert {ref for node in products for ref in node.refs[1:]} <= weights_of(graph)
    assert not {node.refs[0] for node in products} & weights_of(graph)
