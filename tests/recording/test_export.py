"""A run's model as a directory of transformers: the same weights, the same tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state
from tallystick.formats.data.tokenizer import Tokenizer, encode_text
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")

from tallystick.engines.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.engines.torch.tensors import to_tensor  # noqa: E402
from tallystick.recording.models import export_model  # noqa: E402

TEXTS = ["Notch 12: the stick is split.", "", " two  spaces\n\n\ttab", "1234567 halves", "naïve – 木 🪵", "a" * 40]


@pytest.fixture(scope="module")
def trained_bpe(trained: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tokens are pairs of bytes and more."""
    out = tmp_path_factory.mktemp("bpe") / "run"
    changes = {
        "tokenizer": {"kind": "bpe", "vocabulary": 300},
        "training": {"steps": 4},
        "record": {"anchor_stride": 4},
    }
    trained(out, changes)
    return out


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_exported_tokenizer_is_ours(kind: str, plain: Path, trained_bpe: Path, tmp_path: Path) -> None:
    run = plain if kind == "bytes" else trained_bpe
    export_model(RunDirectory(run), tmp_path / "model")
    language_model = load_language_model(tmp_path / "model")
    ours = Tokenizer.from_bytes((run / "data" / "tokenizer.json").read_bytes(), "tokenizer.json")
    assert ours.kind == kind
    for text in TEXTS:
        tokens = language_model.encode_text(text)
        assert tokens == encode_text(ours, text).tolist()
        assert language_model.decode(tokens) == text


def test_the_exported_weights_are_those_of_the_last_anchor(plain: Path, language_model: Any) -> None:
    anchor = read_state(plain / "anchors" / "step_00000012.safetensors")
    held = {name: to_tensor(each) for name, each in language_model.model.named_parameters()}
    anchored = {name.removeprefix("weights."): each for name, each in anchor.items() if name.startswith("weights.")}
    assert set(held) == set(anchored)
    for name, each in held.items():
        assert np.array_equal(each.values(), anchored[name].values()), name


def test_the_exported_template_is_plain(language_model: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    tokens = language_model.encode_chat(messages)
    assert language_model.decode(tokens) == "system: Be brief.\nuser: Hello?\nassistant: "


def test_the_exported_model_is_named_by_what_it_is(language_model: Any, plain: Path, tmp_path: Path) -> None:
    export_model(RunDirectory(plain), tmp_path / "again")
    assert load_language_model(tmp_path / "again").card == language_model.card
    (tmp_path / "again" / "chat_template.jinja").write_text("{{ messages }}")
    assert load_language_model(tmp_path / "again").card.identity != language_model.card.identity


def refusal(run: Path, out: Path) -> TallyError:
    with pytest.raises(TallyError) as caught:
        export_model(RunDirectory(run), out)
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_cannot_be_exported_is_said(
    plain: Path, trained: Callable[..., Any], recipe_of: Any, tmp_path: Path
) -> None:
    run, out = Path(shutil.copytree(plain, tmp_path / "run")), tmp_path / "out"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert isinstance(refusal(run, tmp_path / "full"), UsageError)
    anchor = run / "anchors" / "step_00000012.safetensors"
    whole = anchor.read_bytes()
    anchor.write_bytes(whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:])
    assert isinstance(refusal(run, out), ProofError)
    anchor.write_bytes(whole[:100])
    assert isinstance(refusal(run, out), MalformedError)
    anchor.unlink()
    assert isinstance(refusal(run, out), UnavailableError)
    anchor.write_bytes(whole)
    tokenizer = run / "data" / "tokenizer.json"
    held = tokenizer.read_bytes()
    tokenizer.write_bytes(b"{}")
    assert isinstance(refusal(run, out), MalformedError)
    tokenizer.write_bytes(held)
    (run / "claim.json").rename(run / "claim.gone")
    assert isinstance(refusal(run, out), UnavailableError)
    (run / "claim.gone").rename(run / "claim.json")
    assert not out.exists()
    export_model(RunDirectory(run), out)
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"


def test_a_run_of_something_else_has_no_language_model(one_thread: None, tmp_path: Path) -> None:
    import tallystick

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tallystick.record_training(tmp_path / "run", model, optimizer) as recorder:
        ones = torch.ones(1, 2)
        loss = model(ones).sum()
        loss.backward()
        optimizer.step()
        recorder.step(loss, batch=(ones,))
    error = refusal(tmp_path / "run", tmp_path / "out")
    assert isinstance(error, UsageError)
    assert "did not train a language model" in str(error)
