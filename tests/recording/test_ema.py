"""Averages of weights beside a loop: recorded as state, updated by the step graph, stated in the spec, and replayed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallystick
from research.attacks.graphs import program_of, remake
from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import copy_run, read_anchor, replace_anchor

torch = pytest.importorskip("torch")

FULL = tallystick.Policy(full=True)
DECAY = 0.9
KINDS = ("averaged", "lerp", "sum", "difference")
LAST = 4


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Tanh(), torch.nn.Linear(16, 33))


def update(kind: str, averaged: Any, trained: Any, decay: float) -> None:
    if kind == "averaged":
        averaged.update_parameters(trained)
        return
    with torch.no_grad():
        for average, weight in zip(averaged.parameters(), trained.parameters(), strict=True):
            if kind == "lerp":
                average.lerp_(weight, 1 - decay)
            elif kind == "sum":
                average.mul_(decay).add_(weight, alpha=1 - decay)
            else:
                average.sub_((1 - decay) * (average - weight))


def record(out: Path, kind: str, stated: float = DECAY) -> Path:
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    swa = torch.optim.swa_utils
    averaged = copy.deepcopy(trained)
    if kind == "averaged":
        averaged = swa.AveragedModel(trained, multi_avg_fn=swa.get_ema_multi_avg_fn(DECAY))
    ema = tallystick.Ema(averaged, stated, "lerp" if kind == "averaged" else kind)  # type: ignore[arg-type]
    batches = torch.randint(32, (LAST, 8, 12), generator=torch.Generator().manual_seed(5))
    with tallystick.record_training(out, trained, optimizer, ema=ema, anchor_stride=2) as recorder:
        for x in batches:
            loss = torch.nn.functional.cross_entropy(trained(x).flatten(0, 1), (x.flatten() + 1) % 32)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update(kind, averaged, trained, DECAY)
            recorder.step(loss, batch=x)
    names = dict(trained.named_parameters())
    live = dict((averaged.module if kind == "averaged" else averaged).named_parameters())
    kept = RunDirectory(out).anchors.read(LAST) if (out / "claim.json").exists() else {}
    held = {name.removeprefix("ema."): each.array() for name, each in kept.items() if name.startswith("ema.")}
    assert held.keys() == names.keys()
    assert all(np.array_equal(value.detach().numpy(), held[name]) for name, value in live.items())
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: record(folder / kind, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_average_is_recorded_and_replayed_bit_for_bit(kind: str, runs: dict[str, Path]) -> None:
    stated = RunDirectory(runs[kind]).spec().average
    assert stated is not None
    assert (stated.decay, stated.counts) == (DECAY, kind == "averaged")
    assert ("position.averaged" in RunDirectory(runs[kind]).anchors.read(0)) == (kind == "averaged")
    result = tallystick.audit(runs[kind], FULL)
    assert result.accepted, result.text()


@pytest.mark.parametrize("kind", ["averaged", "sum"])
def test_an_average_that_was_edited_is_rejected(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    forged = copy_run(runs[kind], tmp_path / "forged")
    state = read_anchor(forged, LAST)
    edited = state["ema.2.bias"].array().copy()
    edited[0] = np.nextafter(edited[0], np.float32(9))
    replace_anchor(forged, LAST, {**state, "ema.2.bias": Tensor.of(edited)})
    result = tallystick.audit(forged.path, FULL)
    assert "state" in {each.name for each in result.objections}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"decay": 0.99}, {"form": "other"}, {"counts": None}, None], ids=str)
def test_an_average_that_the_graph_does_not_make_as_stated_is_rejected(
    kind: str, change: dict[str, Any] | None, runs: dict[str, Path], tmp_path: Path
) -> None:
    spec = RunDirectory(runs[kind]).spec()
    assert spec.average is not None
    stated = None
    if change is not None:
        forms = {"form": "sum" if spec.average.form == "lerp" else "lerp", "counts": not spec.average.counts}
        stated = spec.average.model_copy(update={name: forms.get(name, value) for name, value in change.items()})
    program = program_of(runs[kind])
    remake(runs[kind], tmp_path / "forged", program, program, spec.model_copy(update={"average": stated}))
    result = tallystick.audit(tmp_path / "forged", FULL)
    assert {each.name for each in result.objections} == {"step graph"}, result.text()


def test_a_loop_that_averages_otherwise_than_it_states_is_told_so_and_not_rejected(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"ema\."):
        run = record(tmp_path / "run", "lerp", stated=0.99)
    assert tallystick.audit(run, FULL).outcome == "inconclusive"


def test_within_limits_an_average_may_differ_as_the_weights_may_and_no_more(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    from tallystick.audits.step_graphs import compare_averages

    anchors = RunDirectory(runs["lerp"]).anchors
    start, end = anchors.read(2), anchors.read(LAST)
    ends = {name: Tensor.of(each.array() * np.float32(1 + 1e-7)) for name, each in end.items() if "ema." in name}
    assert compare_averages((start, {**end, **ends}, end), 0.0, 2).agrees
    moved = {name: Tensor.of(each.array() + np.float32(1e-4)) for name, each in end.items() if "ema." in name}
    assert not compare_averages((start, {**end, **moved}, end), 1e-4, 2).agrees
    assert compare_averages((start, {**end, **moved}, end), 1.0, 2).agrees


def test_a_tolerant_audit_compares_averages(runs: dict[str, Path], tmp_path: Path) -> None:
    tolerant = tallystick.Policy(full=True, mode="tolerant")
    result = tallystick.audit(runs["averaged"], tolerant)
    assert result.accepted, result.text()
    forged = copy_run(runs["averaged"], tmp_path / "forged")
    state = read_anchor(forged, LAST)
    moved = Tensor.of(state["ema.2.bias"].array() + np.float32(1e-2))
    replace_anchor(forged, LAST, {**state, "ema.2.bias": moved})
    assert [each.name for each in tallystick.audit(forged.path, tolerant).objections] == ["averages"]


def test_averages_that_are_not_there_are_refused_before_the_training(tmp_path: Path) -> None:
    trained, other = model(), torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(trained.parameters())
    ema = tallystick.Ema(other, DECAY)
    with (
        pytest.raises(UsageError, match=r"Ema: no average of 0\.weight"),
        tallystick.record_training(tmp_path / "run", trained, optimizer, ema=ema),
    ):
        pass
    with pytest.raises(UsageError, match="a decay from 0 to 1"):
        tallystick.Ema(trained, 2.0)
    assert tallystick.Ema(trained, 1.0).rule.decay == 1.0
