"""Runs on a CUDA device: recorded, resumed and audited exactly there, and judged elsewhere by tolerance."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]
CUDA: Mapping[str, Any] = {"training": {"device": "cuda"}}


@pytest.fixture(scope="module")
def on_cuda(trained: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cuda") / "run"
    trained(out, CUDA)
    return out


def test_a_run_on_cuda_is_replayed_there_bit_for_bit(on_cuda: Path, audited: Callable[..., Any]) -> None:
    report = audited(on_cuda, full=True, device="cuda")
    assert report.verdict.objections == ()
    assert report.verdict.outcome == "accepted"


def test_the_state_holds_the_generators_of_the_devices(on_cuda: Path) -> None:
    from tallystick.core.safetensors import read_state

    assert "rng.torch_cuda_0" in read_state(on_cuda / "anchors/step_00000004.safetensors")


def test_an_interrupted_run_on_cuda_ends_under_the_same_root(on_cuda: Path, tmp_path: Path) -> None:
    from tallystick.formats.store.run import RunDirectory
    from tallystick.recording.training import resume

    out = Path(shutil.copytree(on_cuda, tmp_path / "run"))
    (out / "claim.json").unlink()
    lines = (out / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    (out / "transcript.jsonl").write_bytes(b"".join(lines[:9]))
    assert resume(out).transcript == RunDirectory(on_cuda).claim().transcript


def test_an_exact_audit_on_the_cpu_is_inconclusive_and_names_the_device(
    on_cuda: Path, audited: Callable[..., Any]
) -> None:
    report = audited(on_cuda)
    assert report.verdict.outcome == "inconclusive"
    assert "device: cpu / cuda" in report.verdict.unavailable[0]


@pytest.mark.parametrize("changes", [{}, {"training": {"device": "cuda", "dtype": "bf16"}}])
def test_a_tolerant_replay_on_the_cpu_gives_a_verdict(
    trained: Callable[..., Any], audited: Callable[..., Any], tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    dropout_draws_differ = {"model": {"config": {**CONFIG, "attention_dropout": 0.0}}}
    trained(tmp_path / "run", CUDA, dropout_draws_differ, changes)
    report = audited(tmp_path / "run", mode="tolerant", samples=3)
    assert report.verdict.outcome in ("accepted", "inconclusive")
    assert report.verdict.objections == ()


CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}


def test_weights_edited_in_a_run_on_cuda_are_rejected(
    on_cuda: Path, tmp_path: Path, audited: Callable[..., Any]
) -> None:
    out = Path(shutil.copytree(on_cuda, tmp_path / "run"))
    path = out / "anchors/step_00000008.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    assert audited(out, device="cuda").verdict.outcome == "rejected"
