"""A model directory is data: what is not whole, not well formed or asks for code is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state, write_state

torch = pytest.importorskip("torch")

from tallystick.engines.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.engines.torch.generation.layer_tap import decoder_blocks, final_norm, watching_layers  # noqa: E402

TOKENS = [3, 1, 4, 1, 5]
Damage = Callable[[Path], object]


@pytest.fixture
def copied(model_directory: Path, tmp_path: Path) -> Path:
    """A copy of the model directory to damage."""
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


def cut(name: str, keep: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def without_a_weight(folder: Path) -> None:
    state = read_state(folder / "model.safetensors")
    write_state(folder / "model.safetensors", {name: each for name, each in state.items() if "down_proj" not in name})


def asking_for_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "own.Model"}}))
    (folder / "own.py").write_text("raise SystemExit('code of the directory ran')")


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (cut("model.safetensors", 2000), MalformedError, "cannot load it"),
        (cut("model.safetensors", 0), MalformedError, "cannot load it"),
        (cut("config.json", 40), MalformedError, "config.json: no valid JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), MalformedError, "config.json: not a JSON object"),
        (cut("tokenizer.json", 60), MalformedError, "cannot load it"),
        (without_a_weight, UnavailableError, "down_proj.weight is in no .safetensors file"),
        (lambda folder: (folder / "model.safetensors").unlink(), UnavailableError, "no .safetensors file"),
        (lambda folder: (folder / "tokenizer.json").unlink(), UnavailableError, "tokenizer.json is not there"),
        (asking_for_code, MalformedError, "auto_map asks for code"),
    ],
)
def test_a_damaged_directory_is_one_line(copied: Path, damage: Damage, kind: type[TallyError], said: str) -> None:
    damage(copied)
    with pytest.raises(kind, match=said) as refused:
        load_language_model(copied)
    assert "\n" not in str(refused.value)


def test_the_same_files_are_the_same_model(copied: Path, language_model: Any) -> None:
    assert load_language_model(copied).card == language_model.card
    assert load_language_model(copied, "BF16").card.identity != language_model.card.identity


def test_a_pass_gives_the_rows_from_the_first_on(one_thread: None, language_model: Any) -> None:
    whole, last = (language_model.prefill(TOKENS, first, (0, 2)) for first in (0, 3))
    assert (whole.logits.shape, last.logits.shape) == ((5, 256), (2, 256))
    assert np.allclose(whole.logits[3:], last.logits, atol=1e-5)
    assert {layer: rows.shape for layer, rows in last.hidden.items()} == {0: (2, 32), 2: (2, 32)}


def test_the_final_norm_is_what_the_head_reads(one_thread: None, language_model: Any) -> None:
    found = language_model.prefill(TOKENS, 0, (2,))
    head = language_model.model.lm_head.weight.detach().numpy()
    assert np.allclose(found.hidden[2] @ head.T, found.logits, atol=1e-4)


@pytest.mark.parametrize("tokens", [[], [256], [-1, 3]])
def test_tokens_outside_the_vocabulary_are_refused(language_model: Any, tokens: list[int]) -> None:
    with pytest.raises(MalformedError, match="tokens"):
        language_model.prefill(tokens, 0)


def test_layers_are_counted_from_the_first_block_to_the_final_norm(language_model: Any) -> None:
    assert len(decoder_blocks(language_model.model)) == 2
    assert final_norm(language_model.model) is language_model.model.model.norm
    with pytest.raises(MalformedError, match="3 is not from 0 to 2"), watching_layers(language_model.model, [3], print):
        pytest.fail("a layer that is not there was watched")


def test_a_model_of_another_build_has_no_layers_to_watch() -> None:
    module: Any = torch.nn.Linear(2, 2)
    module.config = type("Config", (), {"num_hidden_layers": 2})
    with pytest.raises(UnavailableError, match="one list of 2 blocks"):
        decoder_blocks(module)
    with pytest.raises(UnavailableError, match="no final norm"):
        final_norm(module)


def test_a_template_that_refuses_is_a_question_of_usage(language_model: Any) -> None:
    assert language_model.encode_chat([{"role": "user", "content": "Notch"}])
    with pytest.raises(UsageError, match="messages"):
        language_model.encode_chat([3])  # type: ignore[list-item]
