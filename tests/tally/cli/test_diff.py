"""`tally diff`: the settings, the step, the tensor and the operator where two runs begin to differ."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import UsageError

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
steps = 8
batch = 2
sequence = 8
[record]
anchor_stride = 4
"""


@pytest.fixture(scope="module")
def runs(source: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, `first` and `faster`, that differ by their learning rates. Never write into it."""
    from tallystick.tally.cli.entry import run as tally

    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_bytes(source.read_bytes())
    (folder / "first.toml").write_text(CONFIG)
    (folder / "faster.toml").write_text(CONFIG.replace("0.1\n", "0.125\n", 1))
    for name in ("first", "faster"):
        assert tally(["train", str(folder / f"{name}.toml"), "--out", str(folder / name)]) == 0
    return folder


def test_a_run_and_its_copy_are_equal(tally: Tally, runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "first", tmp_path / "copy"))
    told = tally("diff", runs / "first", copy)
    assert told.code == 0
    assert told.out.splitlines() == [f"EQUAL  {runs / 'first'} / {copy}", "records      no difference in 8 steps"]
    stated = json.loads((copy / "environment.json").read_text())
    (copy / "environment.json").write_text(
        json.dumps(stated | {"python": "3.99.0"}, separators=(",", ":"), sort_keys=True)
    )
    told = tally("diff", runs / "first", copy)
    assert told.code == 0, "another environment alone is no difference"
    assert f"environment  python: {stated['python']} / 3.99.0" in told.out


def test_another_learning_rate_is_followed_to_the_operator_that_reads_it(tally: Tally, runs: Path) -> None:
    told = tally("diff", runs / "first", runs / "faster", "--operator")
    assert told.code == 1
    lines = told.out.splitlines()
    assert "begins       at step 1: it gets another learning rate" in lines
    assert "spec         recipe.optimizer.learning_rate: 0.1 / 0.125" in lines
    assert "             learning_rate: 0.1 / 0.125" in lines
    assert any("after step 1" in each and "by replaying here" in each for each in lines)
    assert "inputs       1 input of step 1 with other values: schedule.step_size" in lines
    operator = next(each for each in lines if each.startswith("operator"))
    assert "aten._to_copy.default in update of " in operator
    assert operator.endswith("is the first with another result")


def test_the_installed_command_reads_two_runs_without_loading_a_framework(runs: Path) -> None:
    code = "import sys; from tallystick.tally.cli.entry import run; "
    code += "told = run(sys.argv[1:]); print('torch' in sys.modules); "
    code += "sys.exit(told)"
    words = [sys.executable, "-c", code, "diff", "first", "faster", "--no-replay", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=runs, env={**os.environ})
    found, has_torch = done.stdout.splitlines()
    assert (done.returncode, has_torch, done.stderr) == (1, "False", "")
    document = json.loads(found)
    assert document["records"]["step"] == 1
    assert document["state"]["source"] == "anchors"
    assert (document["state"]["equal_until"], document["state"]["step"]) == (0, 4)
    assert document["state"]["tensors"][0]["name"].startswith("weights.")


def test_a_state_that_no_replay_gives_is_laid_to_the_run_that_recorded_it(
    tally: Tally, runs: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "forged"
    assert tally("attack", "weights-edited-by-one-ulp", runs / "first", forged).code == 0
    told = tally("diff", runs / "first", forged, "--operator")
    assert told.code == 1
    assert "1 tensor differs (in the anchors), equal after step 4" in told.out
    assert "1 of 4,096 elements" in told.out
    assert "1 ulp\n" in told.out
    assert f"note: {forged}: replayed here, step 8 does not end in the anchor that it recorded" in told.out
    assert f"note: {runs / 'first'}: replayed" not in told.out
    assert "both give the same states up to step 8" in told.out


def test_two_openings_name_the_operator_whose_inputs_agree(tally: Tally, runs: Path, tmp_path: Path) -> None:
    from tallystick.audits.opening import gather_whole, open_operators, source_of_step
    from tallystick.engines.torch.engine import TorchEngine
    from tallystick.formats.store.run import RunDirectory
    from tallystick.tally.operators import operator_at

    class OtherKernels(TorchEngine):
        """Rounds the activation's results otherwise."""

        def prepare(self, node: Any) -> Any:
            honest = super().prepare(node)
            if node.operator != "aten.tanh.default":
                return honest
            return lambda operands: tuple(self.moved(each) for each in honest(operands))

        def moved(self, result: Any) -> Any:
            return result.nextafter(result + 1)

    class WrongKernels(OtherKernels):
        def moved(self, result: Any) -> Any:
            return result + 0.5

    source = source_of_step(gather_whole(RunDirectory(runs / "first")), 2)
    open_operators(source, tmp_path / "here", TorchEngine())
    open_operators(source, tmp_path / "there", OtherKernels())
    same = tally("diff", tmp_path / "here", tmp_path / "here")
    assert same.code == 0
    assert "operator     none gives another result" in same.out
    told = tally("diff", tmp_path / "here", tmp_path / "there")
    assert told.code == 1
    lines = told.out.splitlines()
    assert "aten.tanh.default in transformer.h.0.mlp.act" in lines[1]
    assert lines[1].endswith("reads equal values and gives others")
    assert lines[2].endswith(", 1 ulp")
    assert lines[3].endswith("of its error bound away from the exact result")
    assert tally("judge", tmp_path / "there").code == 0, "within its bound"
    found = json.loads(tally("diff", tmp_path / "here", tmp_path / "there", "--json").out)["operators"]["operator"]
    assert (found["departs"], found["results"][0]["ulps"]) == (True, 1.0)
    open_operators(source, tmp_path / "wrong", WrongKernels())
    told = tally("judge", tmp_path / "wrong", "--node", found["node"])
    assert told.code == 1
    place = f"operator {found['place']} of {found['count']}, aten.tanh.default in transformer.h.0.mlp.act"
    assert f"n{found['node']} is {place}" in told.out
    assert tally("judge", tmp_path / "wrong", "--node", found["node"], "--json").out.count('"module":"transformer') == 1
    meant = (found["place"], found["count"], "aten.tanh.default")
    assert operator_at(runs / "first", *meant).module == "transformer.h.0.mlp.act"
    with pytest.raises(UsageError, match="has no operator"):
        operator_at(runs / "first", found["place"] + 1, *meant[1:])
    made = tmp_path / "leaf.bundle"
    assert tally("referee", "--make", tmp_path / "wrong", "--node", found["node"], "--out", made).code == 0
    assert place in tally("referee", made, "--run", runs / "first").out


def test_an_unfinished_run_that_agrees_so_far_is_not_called_equal(tally: Tally, runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "first", tmp_path / "copy"))
    (copy / "claim.json").unlink()
    told = tally("diff", runs / "first", copy)
    assert told.code == 3
    assert f"not compared: {copy} is not finished: it ends after step 8" in told.out


def test_what_cannot_be_compared_is_said_in_one_line(tally: Tally, runs: Path, tmp_path: Path) -> None:
    assert tally("diff", runs / "first", tmp_path / "nothing").code == 4
    assert tally("diff", runs / "first", runs).code == 4
    assert tally("diff", runs / "first", runs / "faster", "--out", runs).code == 2
    assert tally("diff", runs / "first", runs / "faster", "--device", "tpu").code == 2
    cut = Path(shutil.copytree(runs / "first", tmp_path / "cut"))
    (cut / "transcript.jsonl").write_bytes((cut / "transcript.jsonl").read_bytes()[:-9])
    told = tally("diff", runs / "first", cut)
    assert (told.code, told.complaint.startswith("tally: ")) == (4, True)
    assert "truncated" in told.complaint
