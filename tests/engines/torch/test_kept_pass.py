"""A kept pass gives the bits of the model, of weights that are read each time; whatever it does not fit is not used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor

torch = pytest.importorskip("torch")

from tallystick.core.errors import MalformedError, UnavailableError  # noqa: E402
from tallystick.engines.torch.generation.kept_pass import (  # noqa: E402
    GRAPH,
    PASS,
    VALUES,
    KeptLanguageModel,
    keep_pass,
    kept_place,
    load_promised,
)
from tallystick.engines.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.formats.claims import Dtype  # noqa: E402

WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def kept(model_directory: Path, cache: Path) -> Path:
    """The model directory; its pass is kept in F32 and in BF16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        for dtype in ("F32", "BF16"):
            keep_pass(load_language_model(model_directory, dtype), "sdpa")
    return model_directory


def draw(count: int, vocabulary: int) -> list[int]:
    return [int(each) for each in np.random.default_rng(count).integers(0, vocabulary, count)]


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_kept_pass_gives_the_bits_of_the_model_and_its_card(kept: Path, dtype: Dtype) -> None:
    model, native = load_promised(kept, dtype), load_language_model(kept, dtype)
    assert isinstance(model, KeptLanguageModel)
    assert (model.card, model.end_tokens, model.context_length) == (
        native.card,
        native.end_tokens,
        native.context_length,
    )
    layers = range(model.card.layers + 1)
    for count, first in ((32, 21), (17, 3), (5, 0)):
        tokens = draw(count, model.card.vocabulary)
        found, wanted = model.prefill(tokens, first, layers), native.prefill(tokens, first, layers)
        assert found.first == wanted.first
        np.testing.assert_array_equal(found.logits, wanted.logits)
        assert found.hidden.keys() == wanted.hidden.keys()
        for layer in layers:
            np.testing.assert_array_equal(found.hidden[layer], wanted.hidden[layer])
    assert "_whole" not in vars(model)


def test_the_wide_pass_of_16_bits_gives_the_bits_of_the_widened_model(kept: Path) -> None:
    model, native = load_promised(kept, "BF16"), load_language_model(kept, "BF16")
    tokens = draw(24, model.card.vocabulary)
    wide, wanted = model.widened(), native.widened()
    assert wide is not None
    assert wanted is not None
    assert wide.card == model.card
    np.testing.assert_array_equal(wide.prefill(tokens, 7).logits, wanted.prefill(tokens, 7).logits)
    assert "_whole" not in vars(model)
    assert load_promised(kept, "F32").widened() is None


def test_a_size_without_a_graph_is_computed_by_the_model_itself(kept: Path) -> None:
    model, native = load_promised(kept, "F32"), load_language_model(kept, "F32")
    tokens = draw(9, model.card.vocabulary)
    np.testing.assert_array_equal(model.prefill(tokens, 8).logits, native.prefill(tokens, 8).logits)
    assert "_whole" in vars(model)


def test_text_and_templates_are_those_of_the_tokenizer(kept: Path) -> None:
    model, native = load_promised(kept, "F32"), load_language_model(kept, "F32")
    tokens = model.encode_text("The stick is split.")
    assert tokens == native.encode_text("The stick is split.")
    assert model.decode(tokens) == native.decode(tokens)
    assert model.spellings(tokens[0]) == native.spellings(tokens[0])


def test_tokens_and_layers_that_do_not_exist_are_refused(kept: Path) -> None:
    model = load_promised(kept, "F32")
    with pytest.raises(MalformedError, match="outside the vocabulary"):
        model.prefill([0, model.card.vocabulary, 1], 0)
    with pytest.raises(MalformedError, match="layers: 99"):
        model.prefill([0, 1, 2], 0, [99])


def test_other_weights_have_another_card_and_other_logits(kept: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept, tmp_path / "model"))
    state = read_state(folder / WEIGHTS)
    write_state(folder / WEIGHTS, {**state, NORM: Tensor.of(state[NORM].values().astype("<f4") * np.float32(1.5))})
    model, native = load_promised(folder, "F32"), load_language_model(folder, "F32")
    assert isinstance(model, KeptLanguageModel)
    assert model.card == native.card != load_promised(kept, "F32").card
    tokens = draw(12, model.card.vocabulary)
    np.testing.assert_array_equal(model.prefill(tokens, 4).logits, native.prefill(tokens, 4).logits)


def other_configuration(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))


def another_form(folder: Path) -> None:
    state = read_state(folder / WEIGHTS)
    write_state(folder / WEIGHTS, {**state, NORM: Tensor.of(state[NORM].values().astype("<f4")[:-1])})


def a_tensor_less(folder: Path) -> None:
    state = read_state(folder / WEIGHTS)
    write_state(folder / WEIGHTS, {name: each for name, each in state.items() if name != NORM})


def test_another_configuration_has_no_kept_pass(kept: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kept, tmp_path / "model"))
    other_configuration(folder)
    assert not isinstance(load_promised(folder, "F32"), KeptLanguageModel)


@pytest.mark.parametrize("change", [another_form, a_tensor_less])
def test_weights_of_another_model_are_left_to_the_loader_which_names_them(
    kept: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder = Path(shutil.copytree(kept, tmp_path / "model"))
    change(folder)
    with pytest.raises((UnavailableError, MalformedError)) as expected:
        load_language_model(folder, "F32")
    with pytest.raises(type(expected.value)) as found:
        load_promised(folder, "F32")
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("file", [PASS, GRAPH, VALUES])
def test_a_damaged_kept_pass_is_not_used(kept: Path, file: str) -> None:
    place = kept_place(kept, "F32", "sdpa") / file
    whole = place.read_bytes()
    place.write_bytes(whole[:-20] + bytes(20))
    try:
        assert not isinstance(load_promised(kept, "F32"), KeptLanguageModel)
    finally:
        place.write_bytes(whole)
    assert isinstance(load_promised(kept, "F32"), KeptLanguageModel)


def test_the_other_kernels_of_attention_have_a_pass_of_their_own(kept: Path) -> None:
    assert not isinstance(load_promised(kept, "F32", "eager"), KeptLanguageModel)


def test_a_graph_that_gives_other_bits_is_not_kept(
    model_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load_language_model(model_directory)
    blocks = model.model.model.layers
    seen: list[int] = []

    def louder(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        """Other arithmetic outside of a capture: a model that a graph cannot follow."""
        seen.append(1)
        return output if torch.compiler.is_compiling() else output * 2

    handle = blocks[0].register_forward_hook(louder)
    try:
        with pytest.raises(UnavailableError, match="other bits than the model"):
            keep_pass(model, "sdpa")
    finally:
        handle.remove()
    assert seen
    assert not kept_place(model_directory, "F32", "sdpa").exists()


def test_loading_a_kept_pass_and_running_it_imports_no_transformers(kept: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tallystick.engines.torch.generation.kept_pass import load_promised\n"
        f"model = load_promised(Path({str(kept)!r}), 'F32')\n"
        "model.prefill([1, 2, 3, 4], 1, [0])\n"
        "print(sorted({'transformers', 'sympy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
