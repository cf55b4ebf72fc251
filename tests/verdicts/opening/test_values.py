"""The one file of opened values: which are found, what is refused, and how much stays in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, ProofError
from tallystick.core.safetensors import StateFile
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.verdicts.opening import files
from tallystick.verdicts.opening.files import OPENING, VALUES, OpenedValues, read_opening
from tests.support.opened_values import read_values, write_values
from tests.verdicts.leaf.leaves import opened as opened_call

TENSORS = [Tensor.of(np.full(8, number, np.float32)) for number in range(4)]
NAMES = [tensor_digest(each) for each in TENSORS]
BYTES = TENSORS[0].nbytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_values(tmp_path, dict(zip(NAMES, TENSORS, strict=True)))
    return tmp_path


def test_values_are_found_by_their_digests(folder: Path) -> None:
    opened, other = OpenedValues(folder), Digest("sha256:" + "0" * 64)
    assert opened[NAMES[2]] == TENSORS[2].copy()
    assert opened.opened({"n1": NAMES[1], "n2": other}) == {"n1": TENSORS[1].copy()}
    assert (NAMES[0] in opened, other in opened) == (True, False)
    assert NAMES[0] not in OpenedValues(folder / "nowhere")


def test_other_bytes_under_a_digest_are_refused_when_they_are_read(folder: Path) -> None:
    write_values(folder, read_values(folder) | {NAMES[1]: TENSORS[3]})
    opened = OpenedValues(folder)
    assert opened[NAMES[0]] == TENSORS[0].copy()
    with pytest.raises(ProofError, match="is the name of other bytes"):
        opened[NAMES[1]]


def test_a_boolean_of_two_is_refused(tmp_path: Path) -> None:
    bad, good = Tensor("BOOL", (1,), b"\x02"), Tensor("BOOL", (1,), b"\x01")
    write_values(tmp_path, {tensor_digest(bad): good})
    data = (tmp_path / VALUES).read_bytes()
    (tmp_path / VALUES).write_bytes(data[:-1] + b"\x02")
    with pytest.raises(MalformedError, match="neither 0 nor 1"):
        OpenedValues(tmp_path)[tensor_digest(bad)]


def test_a_file_without_form_is_refused_whatever_is_asked(folder: Path) -> None:
    (folder / VALUES).write_bytes((folder / VALUES).read_bytes()[:-1])
    with pytest.raises(MalformedError, match="bytes of data where"):
        OpenedValues(folder).require_readable()
    with pytest.raises(MalformedError):
        assert NAMES[0] in OpenedValues(folder)


def test_a_value_is_read_once_while_it_is_held_and_only_when_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = StateFile.tensor
    monkeypatch.setattr(StateFile, "tensor", lambda self, name: [read.append(name), real(self, name)][1])
    opened = OpenedValues(folder, held_bytes_max=2 * BYTES)
    for number in (0, 1, 0, 2, 0, 1):  # the value that was asked for longest ago goes first
        assert opened[NAMES[number]].nbytes == BYTES
    assert [NAMES.index(Digest(f"sha256:{name}")) for name in read] == [0, 1, 2, 1]


def test_a_folder_of_ones_own_is_compared_once_and_kept_in_no_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Tensor] = []
    monkeypatch.setattr(files, "tensor_digest", lambda tensor: [compared.append(tensor), tensor_digest(tensor)][1])
    own, other = OpenedValues(folder, is_own=True), OpenedValues(folder, held_bytes_max=0)
    for opened, times in ((own, 2), (other, 4)):
        compared.clear()
        for number in (0, 1, 0, 1):
            assert bytes(opened[NAMES[number]].data) == bytes(TENSORS[number].data)
        assert len(compared) == times
    write_values(folder, read_values(folder) | {NAMES[1]: TENSORS[3]})
    with pytest.raises(ProofError):
        OpenedValues(folder, is_own=True)[NAMES[1]]


def test_an_opening_with_a_file_for_each_value_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = opened_call(tmp_path / "opening").folder
    written = read_opening(folder).to_bytes()  # which reads the present version
    assert b'"version":2}' in written
    (folder / OPENING).write_bytes(written.replace(b'"version":2}', b'"version":1}'))
    with pytest.raises(MalformedError) as refused:
        read_opening(folder)
    line = "opening.json: version 1 keeps a file for each value, and is read no more; open the step again"
    assert str(refused.value) == line
