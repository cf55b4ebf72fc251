"""Loops whose batches have several shapes: a few step graphs in one run, and steps that have none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.audits.report_page import graphs_line
from tallystick.formats.records import StepRecord, graph_file, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")

Audit = Callable[..., Any]
SHAPES = (8, 8, 5, 8, 8, 5, 8)


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).square().mean()


def batch_of(rows: int, seed: int) -> Any:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)


def fit(out: Path, shapes: Any, *, each: int = 1, stride: int = 3, graph: bool = True, tells: bool = True) -> None:
    """A loop over batches with so many rows, `each` of them a step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [batch_of(rows, seed) for seed, rows in enumerate(shapes)]
    example = data[0] if each == 1 else data[:each]
    known = {"loss": loss_of, "example": example, "accumulation": each} if graph else {}
    with tallystick.record_training(out, model, optimizer, anchor_stride=stride, **known) as recorder:
        for start in range(0, len(data), each):
            parts = data[start : start + each]
            optimizer.zero_grad()
            losses = [loss_of(model, part) for part in parts]
            for loss in losses:
                (loss / each).backward()
            optimizer.step()
            given = parts[0] if each == 1 else parts
            recorder.step(torch.stack(losses).mean(), given if tells else None)


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.audits.policy import Policy

    return lambda run, **policy: tallystick.audit(run, Policy(**{"full": True, **policy})).report


@pytest.fixture(scope="module")
def recorded(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shapes") / "run"
    fit(out, SHAPES)
    return out


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


def test_batches_of_two_shapes_have_two_graphs_and_all_steps_are_replayed(recorded: Path, audit: Audit) -> None:
    steps = steps_of(recorded)
    assert [step.graph is None for step in steps] == [rows == 8 for rows in SHAPES]
    report = audit(recorded)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 7)
    root = steps[2].graph
    assert graphs_line(report) == f"2 step graphs: 5 steps of {report.graph}, 2 steps of {root}"
    assert report.to_json()["step_graphs"][1] == {"graph": root, "steps": 2}


def test_a_segment_carries_the_graphs_of_its_steps(recorded: Path, tmp_path: Path, one_thread: None) -> None:
    tallystick.open_segment(recorded, 0, 3, tmp_path / "opened")
    assert tallystick.audit(tmp_path / "opened").outcome == "accepted"
    for path in (tmp_path / "opened/graphs").iterdir():
        if path.name.startswith(str(steps_of(recorded)[2].graph)[7:]):
            path.unlink()
    left = tallystick.audit(tmp_path / "opened")
    assert (left.outcome, left.report.replayed_steps) == ("inconclusive", 2)  # type: ignore[union-attr]


def test_a_step_with_a_graph_of_its_own_is_opened_and_verified(
    recorded: Path, tmp_path: Path, one_thread: None
) -> None:
    tallystick.open_operators(recorded, 6, tmp_path / "step")
    verdict = tallystick.judge(tmp_path / "step", run=recorded)
    assert verdict.outcome == "accepted"
    assert any("updates the weights as that of the spec" in line for line in verdict.not_checked)


def test_micro_batches_of_several_shapes_in_one_step_are_replayed(tmp_path: Path, audit: Audit) -> None:
    fit(tmp_path / "run", (8, 8, 8, 5, 6, 8), each=2)
    report = audit(tmp_path / "run")
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 3)
    assert len({step.graph for step in steps_of(tmp_path / "run")}) == 3


def test_batches_of_two_shapes_that_draw_from_a_seed_are_replayed(tmp_path: Path, audit: Audit) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    known = {"loss": loss_of, "example": batch_of(8, 0), "seed": 3}
    with tallystick.record_training(tmp_path / "run", model, optimizer, anchor_stride=2, **known) as recorder:
        for seed, rows in enumerate((8, 5, 8, 5, 5)):
            batch = batch_of(rows, seed)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    report = audit(tmp_path / "run")
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 5)


@pytest.fixture(scope="module")
def lacking(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("none") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tallystick.recording.loop.step_graphs.CAPTURES_MAX", 0)
        with pytest.warns(RuntimeWarning, match=r"step 5 cannot be replayed.*: inputs.x0 is F32\[5,3\]") as said:
            fit(out, (8, 8, 8, 8, 5, 8, 8, 8, 8))
    assert len(said) == 1
    return out


def test_a_step_without_a_graph_leaves_the_others_judged(lacking: Path, audit: Audit) -> None:
    report = audit(lacking)
    assert (report.verdict.outcome, report.verdict.objections) == ("inconclusive", ())
    assert report.verdict.coverage.done == 3 + 1 + 3
    (why,) = report.verdict.unavailable
    assert why.startswith("steps 5–6 cannot be replayed: step 5 has no step graph: inputs.x0 is F32[5,3]")
    assert "1 step without a graph" in graphs_line(report)


def test_a_step_without_a_graph_leaves_the_verdict_of_a_sample_without_it_as_it_is(lacking: Path, audit: Audit) -> None:
    outcomes = set()
    for number in range(24):
        nonce = bytes([number]) * 32
        verdict = tallystick.audit(lacking, tallystick.Policy(samples=1), nonce=nonce).report.verdict
        lost = any("cannot be replayed" in line for line in verdict.unavailable)
        outcomes.add((verdict.outcome, lost))
        assert any("which have no step graph" in line for line in verdict.not_checked)
    assert outcomes == {("accepted", False), ("inconclusive", True)}


def test_a_step_behind_one_without_a_graph_cannot_be_opened(lacking: Path, tmp_path: Path, one_thread: None) -> None:
    from tallystick.core.errors import UnavailableError

    with pytest.raises(UnavailableError, match="step 5 has no step graph"):
        tallystick.open_operators(lacking, 6, tmp_path / "step")


def test_a_graph_is_named_only_where_the_spec_names_one(
    tmp_path: Path, audit: Audit, rewrite: Callable[..., None]
) -> None:
    with pytest.warns(RuntimeWarning, match="batch= is left out"):
        fit(tmp_path / "run", (8,) * 3, graph=False, tells=False)
    assert audit(tmp_path / "run").verdict.objections == ()

    def change(records: list[dict[str, Any]]) -> None:
        next(record for record in records if record["kind"] == "step")["graph"] = "sha256:" + "0" * 64

    rewrite(tmp_path / "run", change)
    objection = audit(tmp_path / "run").verdict.objections[0]
    assert objection.detail == "step 1 names a step graph of its own, and the spec none of a loop"


LENGTHS = tuple(range(3, 43))


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    """Counts captures."""
    from tallystick.recording.loop.step_graph import LoopStep

    times, capture = list[int](), LoopStep.capture
    patch.setattr(LoopStep, "capture", lambda *given: times.append(1) or capture(*given))
    return times


@pytest.fixture(scope="module")
def many(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run whose batches have 40 lengths, and how often a step was captured."""
    out = tmp_path_factory.mktemp("many") / "run"
    with pytest.MonkeyPatch.context() as patch:
        times = counted(patch)
        fit(out, (8, *LENGTHS), stride=10)
    return out, len(times)


def test_forty_lengths_have_a_graph_each_of_two_captures(many: tuple[Path, int], audit: Audit) -> None:
    run, captures = many
    assert captures == 2
    assert len({step.graph for step in steps_of(run)}) == 40
    report = audit(run)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 41)


def test_a_forged_graph_of_another_length_is_rejected(
    many: tuple[Path, int], tmp_path: Path, audit: Audit, rewrite: Callable[..., None]
) -> None:
    from tallystick.programs.encoding import graph_root
    from tallystick.programs.files import load_graph

    run = tmp_path / "run"
    shutil.copytree(many[0], run)
    path = RunDirectory(run).graph_path_of(steps_of(run)[20])
    forged = path.read_bytes().replace(b'"aten.tanh.default"', b'"aten.sigmoid.default"')
    assert forged != path.read_bytes()
    path.write_bytes(forged)
    root = graph_root(load_graph(path))
    path.rename(run / graph_file(root))

    def change(records: list[dict[str, Any]]) -> None:
        [record for record in records if record["kind"] == "step"][20]["graph"] = root

    rewrite(run, change)
    assert audit(run).verdict.outcome == "rejected"


def take(out: Path, shapes: Any, model: Any, taken: Callable[..., Any], stride: int, **known: Any) -> None:
    """A loop that takes steps of a loss, recorded with what is `known` of them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with tallystick.record_training(out, model, optimizer, anchor_stride=stride, **known) as recorder:
        for seed, rows in enumerate(shapes):
            batch = batch_of(rows, seed)
            optimizer.zero_grad()
            found = taken(model, batch)
            found.backward()
            optimizer.step()
            recorder.step(found, batch)


def test_a_loop_that_computes_otherwise_at_some_lengths_has_graphs_of_these(tmp_path: Path, audit: Audit) -> None:
    """What follows from other lengths is compared with the step, and captured where it differs."""

    def loss(model: Any, batch: Any) -> Any:
        x, y = batch
        return (model(x) - y).square().mean() if len(x) != 6 else (model(x) - y).abs().mean()

    torch.manual_seed(0)
    run, shapes = tmp_path / "run", (8, 5, 7, 6, 9, 6)
    with pytest.warns(RuntimeWarning, match="a step has another program than the first"):
        take(run, shapes, torch.nn.Linear(3, 1), loss, 9, loss=loss, example=batch_of(8, 0))
    report = audit(run)
    assert (report.verdict.outcome, report.replayed_steps, report.verdict.objections) == ("inconclusive", 6, ())
    (why,) = report.verdict.unavailable
    root = str(steps_of(run)[3].graph)
    assert why.startswith("step 4 has another program than the first step: loss is computed otherwise")
    assert why.endswith(f"approve it with --graph {root}")
    assert audit(run, graphs=(root,)).verdict.outcome == "accepted"


def test_a_further_graph_that_does_not_give_its_first_step_is_not_used(tmp_path: Path, audit: Audit) -> None:
    """The loop does at one length what `loss=` does not say: its steps, and the one before, are left open."""
    torch.manual_seed(0)
    shapes = (8, 8, 8, 8, 8, 5, 8, 8, 8, 8, 5, 8)
    with pytest.warns(RuntimeWarning) as said:
        take(
            tmp_path / "run",
            shapes,
            torch.nn.Linear(3, 1),
            lambda model, batch: loss_of(model, batch) * (3 if len(batch[0]) == 5 else 1),
            4,
            loss=loss_of,
            example=batch_of(8, 0),
        )
    assert any("step 6: the captured step gives another loss" in str(each.message) for each in said)
    assert [step.index for step in steps_of(tmp_path / "run") if step.no_graph] == [6, 11]
    report = audit(tmp_path / "run")
    assert (report.verdict.outcome, report.verdict.objections) == ("inconclusive", ())
    assert report.replayed_steps >= 4


def test_a_watched_loop_of_many_lengths_is_replayed(tmp_path: Path, audit: Audit) -> None:
    with pytest.MonkeyPatch.context() as patch:
        times = counted(patch)
        fit(tmp_path / "run", (8, 8, 5, 7, 8, 6, 5, 9), graph=False)
    assert len(times) == 2
    report = audit(tmp_path / "run")
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 8)


def test_a_watched_loop_that_draws_from_a_seed_has_one_shape(tmp_path: Path, audit: Audit) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    with pytest.warns(RuntimeWarning, match="give `loss=` and `example=`"):
        take(tmp_path / "run", (8, 8, 5, 8), model, loss_of, 2, seed=3)
    report = audit(tmp_path / "run")
    assert (report.verdict.outcome, report.verdict.objections) == ("inconclusive", ())
