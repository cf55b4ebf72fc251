"""Receipts are made and verified as a stack does it, and what differs shows in the entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research.inference import on_stack
from research.inference.engines import verifier_on
from research.inference.stacks import PLACES, CrossStudy, Subject, cross, largest_drift, place_named, places_here
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor

TOKENS = 20


@pytest.fixture(scope="module")
def job(model_directory: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Any]:
    """Two answers of the tiny model at each of two temperatures."""
    out = tmp_path_factory.mktemp("cross") / "base"
    return {
        "maker": "base",
        "subject": "tiny, F32",
        "model": str(model_directory),
        "dtype": "F32",
        "answers": 2,
        "prompt": 8,
        "tokens": TOKENS,
        "temperatures": [0.8, 0.0],
        "out": str(out),
    }


@pytest.fixture(scope="module")
def made(job: dict[str, Any]) -> Path:
    found = on_stack.make(place_named("base"), job)
    assert found == {"maker": "base", "subject": "tiny, F32", "receipts": 4}
    return Path(job["out"])


def test_honest_receipts_are_not_rejected_and_drift_little(made: Path, job: dict[str, Any]) -> None:
    entry = on_stack.verify(place_named("fused attention"), job)
    assert (entry["receipts"], entry["rejected"], entry["objections"]) == (4, 0, {})
    assert entry["accepted"] + entry["inconclusive"] == 4
    assert entry["rows"] == 4 * TOKENS
    assert 0 < entry["drift"] <= entry["spread"] < 1e-4
    assert entry["fingerprint"] < 1
    assert entry["margin"] < 1
    assert json.dumps(entry)


def test_a_receipt_that_is_not_honest_shows(made: Path, job: dict[str, Any], tmp_path: Path) -> None:
    answered = json.loads(made.with_suffix(".json").read_text())
    answered[0]["request"]["seed"] += 1
    logits = np.array(read_state(made.with_suffix(".safetensors"))["logits"].array())
    logits[1, 2, 3] += 0.5
    (tmp_path / "base.json").write_text(json.dumps(answered))
    write_state(tmp_path / "base.safetensors", {"logits": Tensor.of(logits)}, durable=False)
    entry = on_stack.verify(place_named("base"), {**job, "out": str(tmp_path / "base")})
    assert entry["rejected"] == 1
    assert entry["objections"] == {"settings": 1}
    assert entry["drift"] == pytest.approx(0.5, abs=1e-3)


def test_what_cannot_be_verified_says_why(made: Path, job: dict[str, Any], tmp_path: Path) -> None:
    entry = on_stack.verify(place_named("base"), {**job, "model": str(tmp_path / "none")})
    assert "no model directory" in entry["unavailable"]


@pytest.mark.parametrize(
    "name",
    ["JAX, one program", "JAX, operator by operator", pytest.param("JAX without jit", marks=pytest.mark.slow)],
)
def test_every_way_of_jax_gives_the_rows_of_the_model(name: str, language_model: Any, model_directory: Path) -> None:
    pytest.importorskip("jax")
    tokens, layers = [66, 3, 250, 17, 17, 90], (0, 2)
    native = language_model.prefill(tokens, 2, layers)
    found = verifier_on(name, model_directory, "F32").prefill(tokens, 2, layers)
    np.testing.assert_allclose(found.logits, native.logits, atol=1e-4)
    for layer in layers:
        np.testing.assert_allclose(found.hidden[layer], native.hidden[layer], atol=1e-4)


def test_every_place_has_its_own_name_and_none_is_here_that_cannot_be() -> None:
    import torch

    assert len({each.name for each in PLACES}) == len(PLACES)
    assert all(place_named(each.name) is each for each in PLACES)
    assert any(each.stack.device == "cuda" for each in places_here()) == torch.cuda.is_available()
    assert not any(each.stack.micro_batches > 1 or each.stack.reverses_rows for each in PLACES)


def test_the_largest_drift_is_that_of_each_dtype() -> None:
    entry: dict[str, Any] = {"dtype": "F32", "drift": 1.0, "spread": 2.0, "margin": 0.0, "fingerprint": 0.1, "rows": 5}
    entries = [entry, {**entry, "drift": 3.0}, {**entry, "dtype": "BF16"}, {"dtype": "F32", "unavailable": "no"}]
    found = {each["dtype"]: each for each in largest_drift(entries)}
    assert (found["F32"]["drift"], found["F32"]["pairs"], found["F32"]["rows"]) == (3.0, 2, 10)
    assert (found["BF16"]["drift"], found["BF16"]["pairs"]) == (1.0, 1)


@pytest.mark.slow
def test_processes_of_their_own_make_and_verify(model_directory: Path, tmp_path: Path) -> None:
    names = ("base", "all portable", "inductor", "JAX, SSE4.2", "IREE, host", "IREE, VMVX")
    places = tuple(each for each in places_here() if each.name in names)
    engines = {each.engine for each in places}
    subject = Subject(model_directory, "F32", answers=2, prompt=8, tokens=TOKENS, engines=engines)
    entries = cross(CrossStudy(tmp_path, (subject,), places))
    assert len(entries) == 2 * len(places) - 2
    assert all(each["rejected"] == 0 for each in entries)
    by_base = [each["bits"] for each in entries if each["maker"] == "base"]
    assert len(set(by_base)) > 1
