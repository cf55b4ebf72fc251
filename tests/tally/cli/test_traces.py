"""The commands about traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import tallystick
from tests.support.traces import kernel, trace_at

Tally = Callable[..., Any]


def test_a_trace_is_exported_for_perfetto(tally: Tally, tmp_path: Path) -> None:
    trace_at(tmp_path / "trace", [kernel(0, 10)])
    told = tally("export-trace", tmp_path / "trace", "--out", tmp_path / "chrome.json", "--json")
    assert told.code == 0
    assert json.loads(told.out)["events"] == 1
    assert json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]


def test_nothing_is_written_of_a_damaged_trace(tally: Tally, tmp_path: Path) -> None:
    trace = trace_at(tmp_path / "trace", [kernel(0, 10)])
    trace.events_path.write_bytes(b'{"device":[[\n')
    told = tally("export-trace", trace.path, "--out", tmp_path / "chrome.json")
    assert (told.code, list(tmp_path.iterdir())) == (4, [trace.path])
    assert "event 0" in told.complaint


def test_another_folder_is_no_trace(tally: Tally, tmp_path: Path) -> None:
    told = tally("export-trace", tmp_path, "--out", tmp_path / "chrome.json")
    assert (told.code, "not a trace" in told.complaint) == (4, True)


def test_this_machine_is_described_without_its_name(tally: Tally, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    assert tally("cluster", "describe", "--out", file).code == 0
    shown = json.loads(tally("cluster", "show", file, "--json").out)
    names = [device["name"] for device in shown["cluster"]["devices"]]
    assert {"host", "host/cpu"} <= {*names}
    assert json.loads(file.read_text()) == shown["cluster"]


def test_a_cluster_of_another_form_is_refused(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster":"devices"}')
    told = tally("cluster", "show", tmp_path / "cluster.json")
    assert (told.code, "cluster.json" in told.complaint) == (4, True)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of three steps, and `kineto.json` beside it: the second step as torch.profiler saw it."""
    folder = tmp_path_factory.mktemp("profiled")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    with tallystick.record_training(folder / "run", model, optimizer, anchor_stride=3) as recorder:
        for number in (1, 2, 3):
            batch = torch.randn(16, 8), torch.randint(0, 4, (16,))
            if number == 2:
                with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
                    loss = step(batch)
                seen.export_chrome_trace(str(folder / "kineto.json"))
            else:
                loss = step(batch)
            recorder.step(loss, batch=batch)
    return folder


def test_a_profiled_step_of_a_run_is_imported_audited_and_opened(tally: Tally, profiled: Path, tmp_path: Path) -> None:
    run = profiled / "run"
    told = tally("import-trace", profiled / "kineto.json", "--run", run, "--step", 2, "--json")
    assert told.code == 0
    assert json.loads(told.out)["folder"] == str(run / "traces" / "profile")
    verdict = tally("audit-trace", run / "traces" / "profile", "--unexplained", 1.0, "--json")
    assert (verdict.code, json.loads(verdict.out)["verdict"]) == (0, "accepted")
    assert "1 steps of" in verdict.out
    assert tally("export-trace", run / "traces" / "profile", "--out", tmp_path / "t.json").code == 0
    assert tally("audit", run).code == 0


def test_a_step_that_was_not_profiled_whole_is_rejected(tally: Tally, profiled: Path, tmp_path: Path) -> None:
    """The twin: the same file without the operators of one layer."""
    seen = json.loads((profiled / "kineto.json").read_text())
    left_out = ("gelu", "GeluBackward")
    seen["traceEvents"] = [each for each in seen["traceEvents"] if not any(word in each["name"] for word in left_out)]
    (tmp_path / "kineto.json").write_text(json.dumps(seen))
    run, out = profiled / "run", tmp_path / "trace"
    graph = run / "graphs" / "step.json"
    told = tally("import-trace", tmp_path / "kineto.json", "--graph", graph, "--step", 2, "--out", out)
    assert told.code == 0
    verdict = tally("audit-trace", out, "--graph", graph, "--unexplained", 1.0)
    assert verdict.code == 1
    assert "every operator at step 2, node 3 aten.gelu.default" in verdict.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--run or --out"),
        (["--out", "x", "--rank", "0"], "--rank 0"),
        (["--out", "x", "--host", "../x"], "--host"),
        (["--run", "x", "--name", "../x"], "--name"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(tally: Tally, arguments: list[str], said: str) -> None:
    told = tally("import-trace", "kineto.json", *arguments)
    assert (told.code, said in told.complaint) == (2, True)


def test_a_file_that_is_no_trace_leaves_nothing(tally: Tally, profiled: Path, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"schemaVersion":1,"traceEvents":[' + "[" * 100_000)
    told = tally("import-trace", tmp_path / "deep.json", "--out", tmp_path / "trace")
    assert (told.code, "deep" in told.complaint) == (4, True)
    assert [each.name for each in tmp_path.iterdir()] == ["deep.json"]


def test_a_slurm_cluster_is_imported(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("NodeName=node[1-2] RealMemory=1024 Gres=gpu:h100:2\n")
    (tmp_path / "topology.conf").write_text("SwitchName=rack Nodes=node[1-2]\n")
    told = tally("cluster", "import", tmp_path, "--out", tmp_path / "cluster.json")
    assert told.code == 0
    assert "node2/gpu1: gpu, h100, in node2" in told.out
    assert tally("cluster", "show", tmp_path / "cluster.json").out == told.out


def test_a_folder_without_a_configuration_is_refused(tally: Tally, tmp_path: Path) -> None:
    told = tally("cluster", "import", tmp_path, "--out", tmp_path / "cluster.json")
    assert (told.code, "slurm.conf" in told.complaint, list(tmp_path.iterdir())) == (4, True, [])


def test_a_replay_with_marks_explains_every_operator(tally: Tally, profiled: Path, tmp_path: Path) -> None:
    run, out = profiled / "run", tmp_path / "replay"
    assert tally("profile-step", run, "--step", 3, "--out", out).code == 0
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    graph = json.loads((run / "graphs" / "step.json").read_text())
    named = {line["operator"]: line["name"] for line in lines if "operator" in line}
    assert named == {node["number"]: node["operator"] for node in graph["nodes"]}
    verdict = tally("audit-trace", out, "--graph", run / "graphs" / "step.json", "--unexplained", 1.0)
    assert verdict.code == 0, verdict.out


def test_a_step_that_there_is_none_of_is_not_profiled(tally: Tally, profiled: Path, tmp_path: Path) -> None:
    told = tally("profile-step", profiled / "run", "--step", 9, "--out", tmp_path / "replay")
    assert (told.code, list(tmp_path.iterdir())) == (2, [])
