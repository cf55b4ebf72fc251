"""What is read once per process: the same file in every round, and another one where it was replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.view import read_values
from tests.support.opened_values import write_values

ONE, TWO = (Tensor.of(np.full(4, number, np.float32)) for number in (1, 2))


def test_values_are_opened_once_until_their_file_is_another(tmp_path: Path) -> None:
    assert tensor_digest(ONE) not in read_values(tmp_path)  # nothing is opened yet
    write_values(tmp_path, {tensor_digest(ONE): ONE})
    first = read_values(tmp_path)
    assert tensor_digest(ONE) in first
    assert read_values(tmp_path) is first
    (tmp_path / "values.safetensors").unlink()
    write_values(tmp_path, {tensor_digest(TWO): TWO})
    assert tensor_digest(TWO) in read_values(tmp_path)
    assert tensor_digest(ONE) not in read_values(tmp_path)
