"""Anchors in parts: what did not change is written once, read back whole, and never removed while it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import digest_state, state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.store import keeping
from tallystick.formats.store.keeping import AnchorWriter, Retention, thin_anchors
from tallystick.formats.store.run import Anchors

VECTORS = Path(__file__).parents[3] / "vectors" / "anchor" / "parts.json"
FROZEN = np.arange(1 << 18, dtype=np.float32)
"""1 MiB."""


def state(step: int, *, second: int = 0) -> State:
    """A frozen tensor, one that changes once at step 20, and one that changes in every step."""
    return {
        "position": Tensor.of(np.asarray(step, np.int64)),
        "weights.frozen": Tensor.of(FROZEN),
        "weights.trained": Tensor.of(np.full(64, step, np.float32)),
        "weights.warm": Tensor.of(np.full(32, max(step // 20, second), np.float32)),
    }


def written(path: Path, marks: tuple[int, ...] = (0, 10, 20, 30)) -> dict[int, str]:
    """The digests of anchors written one after the other."""
    writer, digests = AnchorWriter(path), {}
    for mark in marks:
        found = digest_state(state(mark))
        writer.write(mark, state(mark), found)
        digests[mark] = str(found.digest)
    return digests


def whole(path: Path, digests: dict[int, str], marks: tuple[int, ...]) -> bool:
    anchors = Anchors(path)
    return anchors.present(digests) == marks and all(state_digest(anchors.read(m)) == digests[m] for m in marks)


def test_what_did_not_change_is_written_once(tmp_path: Path) -> None:
    digests = written(tmp_path)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "anchors").iterdir()}
    assert set(sizes) == {
        "step_00000000.safetensors",
        *(f"step_000000{mark}.{end}" for mark in (10, 20, 30) for end in ("json", "part.safetensors")),
    }
    assert sum(size for name, size in sizes.items() if name != "step_00000000.safetensors") < 4096
    assert whole(tmp_path, digests, (0, 10, 20, 30))
    assert Anchors(tmp_path).elsewhere(30) == {"weights.frozen": 0, "weights.warm": 20}


def test_where_little_would_be_saved_an_anchor_is_one_file(tmp_path: Path) -> None:
    writer = AnchorWriter(tmp_path)
    for mark in (0, 1):
        small = {name: tensor for name, tensor in state(mark).items() if name != "weights.frozen"}
        writer.write(mark, small, digest_state(small))
    assert {path.name for path in (tmp_path / "anchors").iterdir()} == {
        "step_00000000.safetensors",
        "step_00000001.safetensors",
    }


def test_the_first_anchor_after_an_interruption_is_whole_and_replaces_what_was_there(tmp_path: Path) -> None:
    digests = written(tmp_path)
    again = AnchorWriter(tmp_path)
    again.write(20, state(20), digest_state(state(20)))
    assert read_state(tmp_path / "anchors/step_00000020.safetensors", canonical=True)
    assert whole(tmp_path, digests, (0, 10, 20, 30))
    thin_anchors(tmp_path, sorted(digests), {0, 30})
    assert whole(tmp_path, digests, (0, 30))


def test_a_state_is_bounded_by_what_the_reader_allows(tmp_path: Path) -> None:
    written(tmp_path, (0, 10))
    size = sum(tensor.nbytes for tensor in state(10).values())
    assert Anchors(tmp_path).read(10, size)
    with pytest.raises(UnavailableError, match=r"step_00000010.json: larger than"):
        Anchors(tmp_path).read(10, size - 1)


def listed(**elsewhere: int) -> Callable[[Path], None]:
    data = encode({"anchor": "parts", "elsewhere": dict(elsewhere), "version": 2})
    return lambda folder: (folder / "step_00000010.json").write_bytes(data) and None


DAMAGE: dict[str, tuple[Callable[[Path], object], type[TallyError]]] = {
    "a tensor named twice": (listed(**{"weights.frozen": 0, "weights.trained": 0}), MalformedError),
    "a tensor of a later anchor": (listed(**{"weights.frozen": 20}), MalformedError),
    "a tensor that is not there": (listed(**{"weights.other": 0}), UnavailableError),
    "an anchor that is not there": (listed(**{"weights.frozen": 5}), UnavailableError),
    "no list": (lambda folder: (folder / "step_00000010.json").write_bytes(b"[]"), MalformedError),
    "another version": (
        lambda folder: (folder / "step_00000010.json").write_bytes(b'{"anchor":"parts","elsewhere":{},"version":3}'),
        MalformedError,
    ),
    "no file": (lambda folder: (folder / "step_00000010.part.safetensors").unlink(), UnavailableError),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_list_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path)
    damage, kind = DAMAGE[name]
    damage(tmp_path / "anchors")
    with pytest.raises(kind):
        Anchors(tmp_path).read(10)


def test_a_list_that_leaves_a_tensor_out_gives_another_state(tmp_path: Path) -> None:
    digests = written(tmp_path)
    listed(**{"weights.warm": 0})(tmp_path / "anchors")
    assert state_digest(Anchors(tmp_path).read(10)) != digests[10]


@pytest.mark.parametrize(
    ("keep", "kept"), [("1", (0, 30)), ("2", (0, 20, 30)), ("9", (0, 10, 20, 30)), ("every:2", (0, 20, 30))]
)
def test_what_a_kept_anchor_refers_to_stays(tmp_path: Path, keep: str, kept: tuple[int, ...]) -> None:
    digests = written(tmp_path)
    marks = sorted(digests)
    removed = thin_anchors(tmp_path, marks, Retention.parse(keep).kept(marks))
    assert sorted({*kept, *removed}) == marks
    assert whole(tmp_path, digests, kept)
    assert thin_anchors(tmp_path, marks, {*kept}) == []


def test_an_anchor_in_parts_that_is_removed_leaves_what_a_later_one_needs_of_it(tmp_path: Path) -> None:
    digests = written(tmp_path)
    thin_anchors(tmp_path, sorted(digests), {0, 30})
    assert set(read_state(tmp_path / "anchors/step_00000020.part.safetensors")) == {"weights.warm"}
    assert not (tmp_path / "anchors/step_00000010.part.safetensors").exists()
    thin_anchors(tmp_path, sorted(digests), {0})
    assert {path.name for path in (tmp_path / "anchors").iterdir()} == {"step_00000000.safetensors"}


def test_a_whole_anchor_that_is_removed_leaves_what_a_later_one_needs_of_it(tmp_path: Path) -> None:
    digests = written(tmp_path)
    thin_anchors(tmp_path, sorted(digests), {30})
    assert set(read_state(tmp_path / "anchors/step_00000000.part.safetensors")) == {"weights.frozen"}
    assert whole(tmp_path, digests, (30,))


def test_the_vectors_hold(tmp_path: Path) -> None:
    good, *refused = json.loads(VECTORS.read_text())
    folder = tmp_path / "anchors"
    folder.mkdir()
    for name, data in good["files"].items():
        (folder / name).write_bytes(bytes.fromhex(data))
    for mark, digest in good["digests"].items():
        assert state_digest(Anchors(tmp_path).read(int(mark))) == digest
    kinds: dict[str, type[TallyError]] = {"malformed": MalformedError, "unavailable": UnavailableError}
    for case in refused:
        (folder / "step_00000020.json").write_bytes(bytes.fromhex(case["list"]))
        if case["refused"] == "other state":
            assert state_digest(Anchors(tmp_path).read(20)) != good["digests"]["20"]
            continue
        with pytest.raises(kinds[case["refused"]]):
            Anchors(tmp_path).read(20)


@pytest.mark.parametrize("text", ["", "0", "-1", "every:0", "every:", "all", "1.5", "1e9", "every:2 "])
def test_a_retention_is_a_number_or_every_so_many(text: str) -> None:
    with pytest.raises(UsageError, match="--keep"):
        Retention.parse(text)


def test_a_list_is_canonical(tmp_path: Path) -> None:
    written(tmp_path)
    found = (tmp_path / "anchors/step_00000010.json").read_bytes()
    assert found == encode(json.loads(found))
    assert json.loads(found) == {
        "anchor": "parts",
        "elsewhere": {"weights.frozen": 0, "weights.warm": 0},
        "version": 2,
    }
    assert FROZEN.nbytes == keeping.LEAST_SAVED
