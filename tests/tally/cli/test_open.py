"""`tally open --operators`, `tally judge`, `tally record-inference`: from a run to a verdict on one operator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
Tally = Callable[..., Any]

CONFIG = """
[data]
kind = "text"
path = "text.txt"
[model]
architecture = "gpt2"
config = {n_embd = 16, n_layer = 1, n_head = 2, n_positions = 16, resid_pdrop = 0.0, embd_pdrop = 0.0, attn_pdrop = 0.0}
[optimizer]
kind = "sgd"
learning_rate = 0.1
[training]
steps = 3
batch = 2
sequence = 8
[record]
anchor_stride = 3
summaries = ["exact"]
"""


@pytest.fixture(scope="module")
def run(source: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained by the command, with its step graph. Never write into it."""
    from tallystick.tally.cli.entry import run as tally

    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_bytes(source.read_bytes())
    (folder / "config.toml").write_text(CONFIG)
    assert tally(["train", str(folder / "config.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_a_run_with_a_step_graph_is_audited_by_it(tally: Tally, run: Path) -> None:
    result = tally("audit", run, "--full")
    assert result.code == 0
    assert "All 3 steps were replayed from the step graph, and all agreed bit for bit." in result.out
    assert ", graph sha256:" in result.out
    assert json.loads(tally("audit", run, "--json").out)["replayed"].startswith("graph sha256:")
    assert "steps were replayed from the recipe" in tally("audit", run, "--replay", "recipe").out


def test_without_a_graph_the_recipe_is_replayed(tally: Tally, run: Path, tmp_path: Path) -> None:
    assert tally("train", run.parent / "config.toml", "--out", tmp_path / "run", "--no-graph").code == 0
    assert not (tmp_path / "run/graphs").exists()
    assert "steps were replayed from the recipe" in tally("audit", tmp_path / "run").out
    result = tally("open", tmp_path / "run", "--step", 1, "--operators", "--out", tmp_path / "x")
    assert result.code == 2
    assert "the run has no step graph" in result.complaint


def test_operators_are_opened_and_judged(tally: Tally, run: Path, tmp_path: Path) -> None:
    result = tally("open", run, "--step", 2, "--operators", "--out", tmp_path / "step")
    assert result.code == 0
    assert json.loads(result.out)["operators"]["size"] > 100
    assert tally("judge", tmp_path / "step").out.startswith("ACCEPTED")
    verdict = json.loads(tally("judge", tmp_path / "step", "--node", 3, "--properties", "all", "--json").out)
    assert verdict["verdict"] in {"accepted", "inconclusive"}
    tally("open", run, "--step", 2, "--operators", "--out", tmp_path / "one", "--node", 3)
    assert tally("judge", tmp_path / "one").code == 0


def test_a_step_is_opened_with_the_anchor_before_it_alone(tally: Tally, run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    first, last = sorted((copied / "anchors").glob("*.safetensors"))
    last.unlink()
    assert tally("open", copied, "--step", 2, "--operators", "--out", tmp_path / "step").code == 0
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    refused = tally("open", copied, "--step", 2, "--operators", "--out", tmp_path / "other")
    assert refused.code == 1
    assert "does not hold the state its record names" in refused.complaint


def test_values_that_are_not_kept_leave_everything_open(tally: Tally, run: Path, tmp_path: Path) -> None:
    tally("open", run, "--step", 1, "--operators", "--out", tmp_path / "step", "--no-tensors")
    assert not (tmp_path / "step/tensors").exists()
    assert tally("judge", tmp_path / "step").code == 3


def test_judging_needs_no_framework(run: Path, tally: Tally, tmp_path: Path) -> None:
    import subprocess
    import sys

    tally("open", run, "--step", 2, "--operators", "--out", tmp_path / "one", "--node", 3)
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'jax', 'transformers']))\n"
        "from tallystick.tally.cli.entry import run\n"
        f"sys.exit(run(['judge', {str(tmp_path / 'one')!r}]))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["open", "RUN", "--operators", "--step", "1"], "--out DIR"),
        (["open", "RUN", "--operators", "--out", "x"], "--step S"),
        (["open", "RUN", "--step", "1", "--node", "1"], "--operators"),
        (["open", "RUN", "--step", "9", "--operators", "--out", "x"], "--step 9: the transcript ends at step 3"),
        (["judge"], "tally judge DIR"),
        (["judge", "OPENED", "--precision", "fp7"], "must be stepwise, plain, tf32"),
        (["judge", "RUN", "--properties", "honesty"], "a run directory, and not a folder of opened operators"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line(
    tally: Tally, run: Path, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    (tmp_path / "opening.json").write_bytes(b"{}")
    places = {"RUN": run, "OPENED": tmp_path}
    result = tally(*[places.get(argument, argument) for argument in arguments])
    assert result.code in {2, 4}
    assert reason in result.complaint


def test_properties_are_listed_with_what_they_prove(tally: Tally) -> None:
    assert "softmax" in tally("judge", "--list").out


def test_a_graph_is_run_recorded_audited_opened_and_judged(tally: Tally, tmp_path: Path) -> None:
    from tallystick.core.safetensors import write_state
    from tallystick.engines.torch.capture.model import capture
    from tallystick.engines.torch.tensors import to_tensor
    from tallystick.formats.claims import call_file
    from tallystick.programs.files import save_program

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1)).eval()
    x = torch.randn(2, 4)
    found = capture(model, (x,))
    save_program(tmp_path / "model", found.graph, found.constants)
    write_state(tmp_path / "weights", found.weights)
    (name,) = [each.name for each in found.graph.inputs if each.name.startswith("inputs.")]
    write_state(tmp_path / "x", {name: to_tensor(x)})
    files = ("--inputs", tmp_path / "x", "--weights", tmp_path / "weights")
    result = tally("record-inference", tmp_path / "model.json", *files, "--out", tmp_path / "run")
    assert result.code == 0
    assert result.out.startswith("sha256:")
    assert tally("audit", tmp_path / "run").out.startswith("ACCEPTED")
    assert json.loads(tally("audit", tmp_path / "run", "--json").out)["replayed_calls"] == [1]
    (tmp_path / "policy.toml").write_text('mode = "tolerant"\ntolerance = "dual"\n')
    result = tally("audit", tmp_path / "run", "--policy", tmp_path / "policy.toml")
    assert (result.code, "compares states of a training" in result.complaint) == (2, True)
    assert tally("open", tmp_path / "run", "--step", 1, "--operators", "--out", tmp_path / "call").code == 0
    assert tally("judge", tmp_path / "call", "--properties", "softmax").code == 0
    assert tally("open", tmp_path / "run", "--step", 1).code == 2
    assert tally("record-inference", tmp_path / "model.json", *files, "--out", tmp_path / "run").code == 2
    told = tally("fsck", tmp_path / "run", "--json")
    assert (told.code, json.loads(told.out)["calls"], json.loads(told.out)["differing"]) == (0, 1, [])
    assert tally("fsck", tmp_path / "run", "--repair").code == 2
    write_state(tmp_path / "run" / call_file(1, "inputs"), {name.removeprefix("inputs."): to_tensor(x + 1)})
    told = tally("fsck", tmp_path / "run")
    assert (told.code, "call 1" in told.complaint) == (1, True)


def test_an_opening_is_judged_against_the_run_it_is_taken_from(tally: Tally, run: Path, tmp_path: Path) -> None:
    assert tally("open", run, "--step", 2, "--operators", "--out", tmp_path / "opened").code == 0
    assert tally("judge", tmp_path / "opened", "--run", run).code == 0
    other = tmp_path / "other"
    assert tally("train", run.parent / "config.toml", "--out", other, "--no-graph").code == 0
    result = tally("judge", tmp_path / "opened", "--run", other)
    assert result.code == 1
    assert "belongs to the claim" in result.out
    assert tally("judge", tmp_path / "opened", "--run", tmp_path / "nowhere").code == 4


def test_opened_operators_are_neither_audited_nor_opened_nor_a_run(tally: Tally, run: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opening"
    assert tally("open", run, "--step", 2, "--operators", "--out", opened, "--no-tensors").code == 0
    assert tally("judge", opened, "--run", run).code == 3
    refused = {
        "`tally judge": tally("audit", opened),
        "opened operators already": tally("open", opened, "--step", 2, "--operators", "--out", tmp_path / "more"),
        "not the run": tally("judge", opened, "--run", opened),
    }
    for reason, answer in refused.items():
        assert answer.code == 2
        assert reason in " ".join(answer.err.split())
    assert "a folder with opening" in " ".join(tally("audit", tmp_path).err.split())
