from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import digest_file, state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.store.directories import open_origin

WEIGHTS = {"a": Tensor.of(np.arange(3.0, dtype=np.float32)), "b": Tensor.of(np.ones(2, np.float32))}


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    write_state(tmp_path / "model.safetensors", WEIGHTS)
    origin = open_origin(tmp_path)
    assert origin.digest == digest_file(tmp_path / "model.safetensors").digest
    assert sorted(origin.weights) == ["a", "b"]


def test_several_files_are_one_origin(tmp_path: Path) -> None:
    for name, tensor in WEIGHTS.items():
        write_state(tmp_path / f"{name}.safetensors", {name: tensor})
    index = {"weight_map": {name: f"{name}.safetensors" for name in WEIGHTS}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_origin(tmp_path).digest == state_digest(WEIGHTS)
    write_state(tmp_path / "b.safetensors", WEIGHTS)
    with pytest.raises(MalformedError, match="'a' is in another file too"):
        open_origin(tmp_path)


def test_a_folder_without_weights_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"an empty folder.*tally import-model"):
        open_origin(tmp_path)
