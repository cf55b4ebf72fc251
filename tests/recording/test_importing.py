"""An imported model is the model of its source: same weights, same tokens, same root wherever it came from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, TallyError, UnavailableError
from tallystick.core.safetensors import StateFile, read_state
from tallystick.recording.models import find_source

torch = pytest.importorskip("torch")

from tallystick.core.tensor_digests import digest_file  # noqa: E402
from tallystick.engines.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.recording.models import ImportedModel, import_model  # noqa: E402
from tests.engines.torch.architectures import build  # noqa: E402

WEIGHTS = "model.safetensors"


def imported(source: Path, out: Path, dtype: Any = None) -> ImportedModel:
    return import_model(find_source(str(source)), out, dtype)


def test_a_directory_keeps_its_root_and_its_tokenizer(
    model_directory: Path, tmp_path: Path, language_model: Any
) -> None:
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    (source / "own.py").write_text("raise SystemExit('code of the directory ran')")
    found = imported(source, tmp_path / "out")
    assert found.card == language_model.card == load_language_model(tmp_path / "out").card
    assert (found.weights, found.stored, found.sha256) == (26784, {"F32": 20}, None)
    assert found.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert not found.dequantised
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert not (tmp_path / "out" / "own.py").exists()
    assert json.loads((tmp_path / "out" / "model-card.json").read_bytes()) == found.card.to_json()
    with StateFile(tmp_path / "out" / WEIGHTS, canonical=True):
        pass


def test_a_precision_is_kept_or_chosen(model_directory: Path, tmp_path: Path, language_model: Any) -> None:
    half = imported(model_directory, tmp_path / "half", "BF16")
    assert half.card == language_model.card_in("BF16")
    assert {each.dtype for each in read_state(tmp_path / "half" / WEIGHTS).values()} == {"BF16"}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    kept = imported(tmp_path / "half", tmp_path / "kept")
    assert (kept.card, kept.stored) == (half.card, {"BF16": 20})
    assert imported(tmp_path / "half", tmp_path / "wide", "F32").card.dtype == "F32"


def test_a_run_is_exported(plain: Path, tmp_path: Path, language_model: Any) -> None:
    found = imported(plain, tmp_path / "out")
    assert (found.card, found.weights) == (language_model.card, 26784)
    assert imported(plain, tmp_path / "half", "BF16").card == language_model.card_in("BF16")


@pytest.mark.parametrize("name", ["llama-sdpa", "gpt2-sdpa", "qwen3-sdpa"])
def test_the_file_of_weights_has_the_digest_in_the_card(name: str, model_directory: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    build(name)[0].save_pretrained(source)
    found = imported(source, tmp_path / "out")
    assert digest_file(tmp_path / "out" / WEIGHTS).digest == found.card.weights


def test_a_template_in_the_tokenizers_settings_gets_its_own_file(model_directory: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    (source / "chat_template.jinja").unlink()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    assert imported(source, tmp_path / "out").card.template is not None
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"


def asking_for_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "own.Model"}}))
    (folder / "own.py").write_text("raise SystemExit('code of the directory ran')")


def of_an_unknown_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "abacus"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (asking_for_code, "auto_map asks for code"),
        (of_an_unknown_kind, "abacus"),
        (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:999]), WEIGHTS),
    ],
)
def test_a_bad_directory_is_one_line(model_directory: Path, tmp_path: Path, damage: Callable, said: str) -> None:
    source = Path(shutil.copytree(model_directory, tmp_path / "source"))
    damage(source)
    with pytest.raises(MalformedError, match=said) as refused:
        imported(source, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A tiny Llama in a GGUF file."""
    pytest.importorskip("gguf")
    from tests.support.gguf_file import write_gguf

    return write_gguf(tmp_path / "tiny.gguf")


def test_a_gguf_file_is_dequantised(quantised: Path, tmp_path: Path, one_thread: None) -> None:
    import gguf

    found = imported(quantised, tmp_path / "out")
    assert (found.stored, found.dequantised) == ({"Q8_0": 1, "F32": 5, "Q4_1": 14}, {"Q8_0": 1, "Q4_1": 14})
    assert found.sha256 == sha256(quantised.read_bytes()).hexdigest()
    state = read_state(tmp_path / "out" / WEIGHTS)
    stored = {each.name: each for each in gguf.GGUFReader(quantised).tensors}
    for name, theirs in {"embed_tokens": "token_embd", "layers.1.mlp.down_proj": "blk.1.ffn_down"}.items():
        numbers = gguf.dequantize(stored[f"{theirs}.weight"].data, stored[f"{theirs}.weight"].tensor_type)
        assert np.array_equal(state[f"model.{name}.weight"].values(), numbers), name
    model = load_language_model(tmp_path / "out")
    assert model.card == found.card
    assert model.decode(model.encode_text("thing")) == "thing"
    assert model.encode_chat([{"role": "user", "content": "thing"}]) == model.encode_text("thing")


def test_gguf_weights_are_rounded_once(quantised: Path, tmp_path: Path) -> None:
    wide, half = (imported(quantised, tmp_path / dtype, dtype).card for dtype in ("F32", "BF16"))
    assert half == load_language_model(tmp_path / "F32", "BF16").card != wide


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-500])
    return path


def without_a_weight(path: Path) -> Path:
    from tests.support.gguf_file import write_gguf

    return write_gguf(path, without="blk.1.ffn_up.weight")


def of_another_architecture(path: Path) -> Path:
    from tests.support.gguf_file import write_gguf

    return write_gguf(path, "abacus")


def with_merges_of_other_tokens(path: Path) -> Path:
    from tests.support.gguf_file import write_gguf

    return write_gguf(path, merges=("t z",))


def in_the_header(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:300])
    return path


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (cut, MalformedError, "cannot be read"),
        (in_the_header, MalformedError, "cannot be read"),
        (with_merges_of_other_tokens, MalformedError, "out of vocabulary"),
        (of_another_architecture, MalformedError, "abacus"),
        (without_a_weight, UnavailableError, "up_proj.weight is not in it"),
    ],
)
def test_a_bad_gguf_file_is_one_line(
    quantised: Path, tmp_path: Path, damage: Callable, kind: type[TallyError], said: str
) -> None:
    with pytest.raises(kind, match=said) as refused:
        imported(damage(quantised), tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
