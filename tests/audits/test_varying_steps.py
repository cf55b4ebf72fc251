"""What a loop may vary between its steps: it is stated, and a policy can refuse it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tallystick
from research.attacks.graphs import at_one_step
from research.attacks.loops import train_loop
from tallystick.formats.data.step_program import StepProgram
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.programs.graph import Node, Output
from tallystick.tally.attacks.catalogue import find_attack

pytest.importorskip("torch")
FULL = tallystick.Policy(full=True)
STRICT = FULL.model_copy(update={"one_graph": True, "one_rule": True, "scheduled_rates": True})


@pytest.fixture(scope="module")
def honest(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loop") / "run"
    train_loop(out)
    return out


@pytest.fixture(scope="module")
def scheduled(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scheduled") / "run"
    train_loop(out, scheduled=True, undecayed_from=12)
    return out


def forged(name: str, honest: Path, tmp_path: Path) -> Path:
    find_attack(name).forge(honest, tmp_path / "forged")
    return tmp_path / "forged"


def test_a_plain_loop_meets_the_strictest_policy(honest: Path) -> None:
    result = tallystick.audit(honest, STRICT)
    assert result.accepted
    assert any("what set the learning rates (constant 0.01)" in line for line in result.verdict.not_checked)


def test_a_schedule_and_a_changed_rule_are_stated_and_refused_on_demand(scheduled: Path) -> None:
    result = tallystick.audit(scheduled, FULL)
    assert result.accepted
    stated = "\n".join(result.verdict.not_checked)
    assert "what set the learning rates (exponential from 0.01 to" in stated
    assert "why 12 steps have other settings of the optimizer than the spec, from step 13 on: weight_decay" in stated
    strict = tallystick.audit(scheduled, STRICT)
    assert strict.outcome == "inconclusive"
    assert strict.verdict.unavailable == (
        "the policy demands one step graph, and 1 more is named",
        "the policy demands one rule of the optimizer, and 1 more is stated",
    )


def test_a_tripled_rate_is_stated_and_refused_on_demand(honest: Path, tmp_path: Path) -> None:
    run = forged("loop-step-tripled-rate", honest, tmp_path)
    stated = "\n".join(tallystick.audit(run, FULL).verdict.not_checked)
    assert "0.01 to 0.03, on no schedule from step 7 on" in stated
    (why,) = tallystick.audit(run, STRICT).verdict.unavailable
    assert why == "the policy demands rates that follow a schedule: 0.01 to 0.03, on no schedule from step 7 on"


def test_a_negative_rate_leaves_the_run_open(honest: Path, tmp_path: Path) -> None:
    result = tallystick.audit(forged("loop-step-negative-rate", honest, tmp_path), FULL)
    assert result.outcome == "inconclusive"
    assert "step 7 states the learning rate -0.01, which no rule takes" in result.text()


@pytest.mark.parametrize(
    "name", ["loop-step-gradient-negated", "loop-step-loss-squared", "loop-gradients-scaled-from-a-step"]
)
def test_another_program_is_open_until_the_verifier_approves_it(name: str, honest: Path, tmp_path: Path) -> None:
    run = forged(name, honest, tmp_path)
    result = tallystick.audit(run, FULL)
    (why,) = result.verdict.unavailable
    assert why.startswith("step 7 has another program than the first step")
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    root = next(record.graph for record in records if isinstance(record, StepRecord) and record.graph is not None)
    assert why.endswith(f"approve it with --graph {root}")
    approved = FULL.model_copy(update={"graphs": (root,)})
    assert tallystick.audit(run, approved).accepted


def test_the_command_takes_a_root_and_the_strictest_policy(
    honest: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tallystick.tally.cli.entry import run as command

    run = forged("loop-step-gradient-negated", honest, tmp_path)
    root = next(path.stem for path in (run / "graphs").glob("*.json") if len(path.stem) == 64)
    assert command(["audit", str(run), "--full"]) == 3
    assert command(["audit", str(run), "--full", "--graph", f"sha256:{root}"]) == 0
    assert command(["audit", str(run), "--full", "--graph", f"sha256:{root}", "--strict"]) == 3
    assert command(["audit", str(run), "--full", "--graph", "root"]) == 2
    assert "--graph: not a digest" in capfd.readouterr().err


STRICT_LINE = (
    "checked: one step, one rule and a schedule of rates: a run by a recipe has its recipe's, so --strict adds nothing"
)
GRAPH_LINE = "not checked: the graphs approved with --graph: a run by a recipe has the step of its recipe"


def test_demands_on_loops_say_what_they_mean_in_a_run_by_a_recipe(
    plain: Path, honest: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tallystick.tally.cli.entry import run as command

    def said(run: Path, *options: str) -> str:
        assert command(["audit", str(run), *options]) == 0
        return capfd.readouterr().out

    root = "sha256:" + "0" * 64
    both = said(plain, "--strict", "--graph", root)
    assert (both.count(STRICT_LINE), both.count(GRAPH_LINE)) == (1, 1)
    neither = said(plain)
    assert STRICT_LINE not in neither
    assert GRAPH_LINE not in neither
    loop = said(honest, "--strict", "--graph", root)
    assert STRICT_LINE not in loop
    assert GRAPH_LINE not in loop


def test_a_gradient_that_the_first_graph_does_not_have_is_no_reason_to_change_a_weight(
    tmp_path: Path, one_thread: None
) -> None:
    """A frozen weight is negated in one step, under a graph that claims to train it."""
    import torch

    def invents(program: StepProgram) -> StepProgram:
        graph, name = program.graph, "weights.0.weight"
        number = graph.nodes[-1].number + 1
        negated = Node(number, "aten.neg.default", {"self": name}, {}, (graph.specs()[name],))
        kept = tuple(output for output in graph.outputs if output.name != name)
        outputs = (*kept, Output(name, f"n{number}"), Output("gradients.0.weight", name))
        outputs = tuple(sorted(outputs, key=lambda output: output.name))
        return replace(program, graph=replace(graph, nodes=(*graph.nodes, negated), outputs=outputs))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with tallystick.record_training(tmp_path / "run", model, optimizer, anchor_stride=4) as recorder:
        for x in torch.randn(8, 8, 3, generator=torch.Generator().manual_seed(5)):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=x)
    assert tallystick.audit(tmp_path / "run", FULL).accepted
    at_one_step(invents)(tmp_path / "run", tmp_path / "forged")
    result = tallystick.audit(tmp_path / "forged", FULL)
    assert result.outcome == "inconclusive"
    assert "0.weight trains, and the first graph has no gradient to compare" in result.text()
