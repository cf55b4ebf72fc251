"""Calls of a model: recorded with its own kernels, replayed from the captured graph, opened operator by operator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.audits.calls import audit_inference
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.records import CallRecord
from tallystick.formats.store.directories import InferenceDirectory, claims_inference
from tallystick.formats.store.log import LogWriter
from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening

torch = pytest.importorskip("torch")


class Attention(torch.nn.Module):
    """One head of attention under a causal mask, a norm, and a classifier: returns a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, tokens: Any, scale: float = 1.0) -> Any:
        mask = torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")).triu(1)
        weights = torch.softmax(self.q(tokens) @ self.k(tokens).transpose(1, 2) * scale + mask, -1)
        hidden = self.norm(weights @ self.v(tokens))
        return {"logits": self.head(hidden), "weights": weights}


def calls(count: int, rows: int = 2) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(rows, 5, 8, generator=generator) for _ in range(count)]


def recorded(out: Path, inputs: list[Any]) -> Any:
    from tallystick.recording.inference import record_inference

    torch.manual_seed(0)
    model = Attention().eval()
    with torch.no_grad(), record_inference(model, out):
        return [model(tokens, scale=0.5)["logits"] for tokens in inputs]


@pytest.fixture(scope="module")
def honest(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three recorded calls. Never write into it."""
    out = tmp_path_factory.mktemp("calls") / "run"
    recorded(out, calls(3))
    return out


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def audited(path: Path, changes: dict[str, Any] | None = None, **policy: Any) -> Report:
    from tallystick.engines.torch.engine import TorchEngine
    from tallystick.engines.torch.environment import describe_environment

    here = describe_environment("cpu").model_copy(update=changes or {})
    asked = Policy.from_json(policy, "policy")
    return audit_inference(InferenceDirectory(path), asked, bytes(32), here, TorchEngine())


def objections(report: Report) -> set[str]:
    return {finding.name for finding in report.verdict.objections}


def forge(path: Path, call: int, part: str, change: Callable[[dict[str, np.ndarray[Any, Any]]], None]) -> None:
    """Change what went into a call or came out, and recommit to everything: the record, its root and the claim."""
    file = path / f"calls/{call:08d}.{part}.safetensors"
    arrays = {name: np.array(tensor.array(), copy=True) for name, tensor in read_state(file).items()}
    change(arrays)
    state = {name: Tensor.of(array) for name, array in arrays.items()}
    write_state(file, state)
    lines = [json.loads(line) for line in (path / "transcript.jsonl").read_bytes().splitlines()]
    lines[call - 1][part] = str(state_digest(state))
    recommit(path, lines)


def recommit(path: Path, lines: list[Any]) -> None:
    (path / "transcript.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    shutil.rmtree(path / "tiles")
    claim = json.loads((path / "claim.json").read_bytes())
    claim["transcript"] = LogWriter(path / "transcript.jsonl").close().to_json()
    (path / "claim.json").write_bytes(encode(claim))


def test_recorded_calls_are_replayed_bit_for_bit(honest: Path) -> None:
    report = audited(honest)
    assert (report.verdict.outcome, report.to_json()["calls"], report.replayed_calls) == ("accepted", 3, (1, 2, 3))
    assert report.graph == InferenceDirectory(honest).claim().graph
    assert json.loads(encode(report.to_json()))["replayed_calls"] == [1, 2, 3]
    assert claims_inference(honest)


def test_a_recording_leaves_the_answers_as_they_are(honest: Path) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    with torch.no_grad():
        for number, tokens in enumerate(calls(3), 1):
            kept = read_state(honest / f"calls/{number:08d}.outputs.safetensors")
            assert bytes(kept["outputs.logits"].data) == model(tokens, scale=0.5)["logits"].numpy().tobytes()


def test_fewer_calls_are_sampled_and_the_rest_is_named(honest: Path) -> None:
    report = audited(honest, samples=1)
    assert len(report.replayed_calls) == 1
    assert report.verdict.outcome == "accepted"
    assert report.verdict.gist == "1 of 3 calls replayed from the graph"


def test_an_answer_that_was_nudged_is_rejected_although_the_forger_recommits(run: Path) -> None:
    def nudge(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays["outputs.logits"][0, 0, 0] += 1e-4

    forge(run, 2, "outputs", nudge)
    report = audited(run)
    assert report.verdict.outcome == "rejected"
    assert [finding.where for finding in report.verdict.objections] == ["call 2, outputs.logits"]
    assert audited(run, claim="sha256:" + "0" * 64).verdict.outcome == "rejected"


def test_an_answer_that_is_missing_or_added_is_rejected(run: Path) -> None:
    forge(run, 1, "outputs", lambda arrays: arrays.pop("outputs.weights") is None)
    assert objections(audited(run)) == {"output"}


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_a_file_that_is_not_the_recorded_one_is_rejected(run: Path, part: str) -> None:
    path = run / f"calls/00000001.{part}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert objections(audited(run)) == {"call"}


def test_other_weights_are_rejected_and_missing_ones_leave_the_verdict_open(run: Path) -> None:
    weights = dict(read_state(run / "weights.safetensors"))
    name = min(weights)
    held = weights[name]
    write_state(run / "weights.safetensors", weights | {name: Tensor.of(held.array() + np.float32(1))})
    assert objections(audited(run)) == {"call"}
    (run / "weights.safetensors").unlink()
    report = audited(run)
    assert report.verdict.outcome == "inconclusive"
    assert any("weights.safetensors" in line for line in report.verdict.unavailable)


def test_another_graph_environment_or_transcript_is_rejected(run: Path) -> None:
    claim = json.loads((run / "claim.json").read_bytes())
    for name, check in (("graph", "graph"), ("environment", "environment")):
        (run / "claim.json").write_bytes(encode(claim | {name: "sha256:" + "5" * 64}))
        assert objections(audited(run)) == {check}
    (run / "claim.json").write_bytes(encode(claim))
    lines = (run / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    (run / "transcript.jsonl").write_bytes(b"".join(lines[:2]))
    assert objections(audited(run)) == {"transcript root"}


def test_calls_out_of_their_order_are_rejected(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "transcript.jsonl").read_bytes().splitlines()]
    recommit(run, lines[::-1])
    assert objections(audited(run)) == {"transcript root"}


def test_another_stack_is_open_unless_the_policy_says_how_far_outputs_may_lie_apart(run: Path) -> None:
    elsewhere = {"cpu": "another processor"}
    report = audited(run, elsewhere)
    assert report.verdict.outcome == "inconclusive"
    assert report.verdict.unavailable[0].startswith("different stack")
    assert audited(run, elsewhere, mode="tolerant").verdict.outcome == "inconclusive"

    def drift(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays["outputs.logits"] *= 1 + np.float32(1e-6)

    forge(run, 1, "outputs", drift)
    assert audited(run).verdict.outcome == "rejected"
    assert audited(run, elsewhere, mode="tolerant", outputs=1e-5).verdict.outcome == "accepted"
    assert audited(run, elsewhere, mode="tolerant", outputs=1e-8).verdict.outcome == "rejected"


def test_a_call_of_other_shapes_is_recorded_and_said_to_be_beyond_replay(one_thread: None, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="call 2 has inputs of other shapes"):
        recorded(tmp_path / "run", [*calls(1), *calls(1, rows=3)])
    report = audited(tmp_path / "run")
    assert report.verdict.outcome == "inconclusive"
    assert any("call 2: inputs.tokens is F32[3,5,8], and F32[2,5,8]" in line for line in report.verdict.unavailable)


def test_properties_hold_for_honest_calls_without_the_weights(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    report = audited(run, properties=["softmax", "shapes", "finite"])
    assert {finding.name for finding in report.verdict.findings} >= {"softmax", "shapes", "finite"}
    assert report.verdict.objections == ()

    def leak(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays["outputs.weights"][0, 0, 0] += 0.5

    forge(run, 3, "outputs", leak)
    assert objections(audited(run, properties=["softmax"])) == {"softmax"}


def test_the_operators_of_a_call_are_opened_and_judged(honest: Path, run: Path, tmp_path: Path) -> None:
    from tallystick.tally.training import open_operators

    open_operators(honest, 2, tmp_path / "call")
    asked = OpeningRequest(properties=("masks", "softmax", "norms", "shapes"))
    verdict = judge_opening(tmp_path / "call", asked)
    assert verdict.outcome == "accepted"
    assert {finding.name for finding in verdict.findings} >= {"operator", "masks", "softmax", "norms"}

    def nudge(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays["outputs.logits"][0, 0, 0] += 1e-4

    forge(run, 2, "outputs", nudge)
    open_operators(run, 2, tmp_path / "forged")
    assert [f.name for f in judge_opening(tmp_path / "forged", OpeningRequest()).objections] == ["opened record"]
    with pytest.raises(UsageError, match="3 calls were recorded"):
        open_operators(honest, 4, tmp_path / "none")


def test_a_graph_is_run_and_recorded_without_its_model(honest: Path, one_thread: None, tmp_path: Path) -> None:
    from tallystick.engines.torch.engine import TorchEngine
    from tallystick.programs.files import load_program
    from tallystick.recording.inference import record_graph_inference

    graph, constants = load_program(honest / "graphs" / "model.json")
    weights = read_state(honest / "weights.safetensors")
    inputs = [read_state(honest / f"calls/{number:08d}.inputs.safetensors") for number in (1, 2)]
    claim = record_graph_inference(graph, constants, weights, inputs, TorchEngine(), tmp_path / "run")
    assert claim.graph == InferenceDirectory(honest).claim().graph
    lines = [line.splitlines() for line in ((p / "transcript.jsonl").read_bytes() for p in (honest, tmp_path / "run"))]
    assert lines[0][:2] == lines[1]
    assert audited(tmp_path / "run").verdict.outcome == "accepted"
    with pytest.raises(MalformedError, match="is not bound"):
        record_graph_inference(graph, constants, {}, inputs, TorchEngine(), tmp_path / "other")


def test_a_model_that_is_never_called_and_a_full_directory_are_refused(
    honest: Path, one_thread: None, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the model was not called"):
        recorded(tmp_path / "run", [])
    with pytest.raises(UsageError, match="not empty"):
        recorded(honest, calls(1))


def test_a_model_that_cannot_be_captured_makes_no_claim(one_thread: None, tmp_path: Path) -> None:
    from tallystick.recording.inference import record_inference

    class Branching(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    model = Branching()
    with pytest.raises(UnavailableError, match="cannot be captured"), record_inference(model, tmp_path / "run"):
        model(torch.ones(3))
    assert not (tmp_path / "run/claim.json").exists()


def test_a_call_record_is_canonical(honest: Path) -> None:
    line = (honest / "transcript.jsonl").read_bytes().splitlines()[0]
    assert CallRecord.from_bytes(line, "line").index == 1
    with pytest.raises(MalformedError):
        CallRecord.from_bytes(line.replace(b'"index":1', b'"index":0'), "line")


DAMAGES = {
    "claim.json": ("inconclusive", "inconclusive"),
    "environment.json": ("rejected", "inconclusive"),
    "graphs/model.json": ("rejected", "inconclusive"),
    "transcript.jsonl": ("rejected", "inconclusive"),
    "weights.safetensors": ("rejected", "inconclusive"),
    "calls/00000001.inputs.safetensors": ("rejected", "inconclusive"),
    "calls/00000001.outputs.safetensors": ("rejected", "inconclusive"),
}


@pytest.mark.parametrize("file", DAMAGES)
def test_a_file_cut_short_or_missing_is_a_verdict_that_names_it(run: Path, file: str) -> None:
    path, (when_cut, when_missing) = run / file, DAMAGES[file]
    path.write_bytes(path.read_bytes()[:-20])
    report = audited(run)
    assert (report.verdict.outcome, path.name in json.dumps(report.to_json())) == (when_cut, True)
    path.unlink()
    report = audited(run)
    assert (report.verdict.outcome, path.name in json.dumps(report.to_json())) == (when_missing, True)
