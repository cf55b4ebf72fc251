"""One file for one contested operator: what is in it, what it costs, and which bytes are no bundle."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.canonical_json import decode, encode
from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor
from tallystick.verdicts.leaf.bundle import Element, LeafBundle, LeafChallenge, read_bundle, write_bundle
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import LeafRequest
from tests.support.opened_values import read_values, write_values
from tests.verdicts.leaf.leaves import Leaves, classifier, opened

SEED = 5


@pytest.fixture(scope="module")
def leaves(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    return opened(tmp_path_factory.mktemp("leaves") / "opening")


@pytest.fixture(scope="module")
def written(leaves: Leaves, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "n3.leaf"
    write_bundle(path, leaves.whole.bundle(3, LeafChallenge(nonce="00ff", element=Element(ref="n3", index=4))))
    return path


def rewritten(path: Path, out: Path, **tensors: Tensor | None) -> Path:
    state = read_state(path) | tensors
    write_state(out, {name: tensor for name, tensor in state.items() if tensor is not None})
    return out


def text(value: Any) -> Tensor:
    return Tensor.of(np.frombuffer(value if isinstance(value, bytes) else encode(value), np.uint8))


def document(path: Path, name: str) -> Any:
    return decode(bytes(read_state(path)[name].data), name)


def test_a_bundle_comes_back_from_its_file_and_from_its_bytes(leaves: Leaves, written: Path) -> None:
    made = leaves.whole.bundle(3, LeafChallenge(nonce="00ff", element=Element(ref="n3", index=4)))
    for found in (read_bundle(written), read_bundle(written.read_bytes())):
        assert found.documents == made.documents
        assert {ref: bytes(value.data) for ref, value in found.values.items()} == {
            ref: bytes(value.data) for ref, value in made.values.items()
        }
        assert found.identity == made.identity


def test_everybody_makes_the_same_bytes(leaves: Leaves, written: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(leaves.folder, tmp_path / "copy"))
    challenge = LeafChallenge(nonce="00ff", element=Element(ref="n3", index=4))
    write_bundle(tmp_path / "again", WholeOpening.read(copy).bundle(3, challenge))
    assert (tmp_path / "again").read_bytes() == written.read_bytes()


def test_it_holds_every_producer_of_what_is_read(leaves: Leaves) -> None:
    bundle = leaves.whole.bundle(14)  # n3 + n5
    assert [edge.record.node for edge in bundle.edges.producers] == [3, 5]
    assert [edge.index for edge in bundle.edges.producers] == [2, 3]
    assert set(bundle.values) == {"n3", "n5", "n14"}
    assert leaves.whole.bundle(0).edges.producers == ()


def test_a_value_that_was_not_opened_is_left_out(leaves: Leaves, tmp_path: Path) -> None:
    assert opened(tmp_path / "opening", with_tensors=False).whole.bundle(3).values == {}
    assert set(leaves.whole.bundle(3).values) == {"n2", "n3", "weights.bias", "weights.second"}


def test_a_value_that_is_not_what_its_name_says_makes_no_bundle(leaves: Leaves, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(leaves.folder, tmp_path / "copy"))
    values, name = read_values(copy), leaves.whole.record(2).outputs["n3"]
    write_values(copy, values | {name: replace(values[name], data=bytes(values[name].nbytes))})
    with pytest.raises(ProofError, match="is the name of other bytes"):
        WholeOpening.read(copy).bundle(3)


def test_an_operator_that_does_not_exist_has_no_bundle(leaves: Leaves) -> None:
    for number in (1, 99):
        with pytest.raises(UsageError, match=f"no node {number}"):
            leaves.whole.bundle(number)
    with pytest.raises(UsageError, match="no operator 12"):
        leaves.whole.record(12)


def test_an_opening_of_one_operator_is_not_whole(leaves: Leaves, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(leaves.folder, tmp_path / "copy"))
    (copy / "operators.jsonl").unlink()
    with pytest.raises(UnavailableError, match=r"operators\.jsonl"):
        WholeOpening.read(copy)


def test_its_proof_is_counted(leaves: Leaves) -> None:
    bundle = leaves.whole.bundle(14)
    path = bundle.operator.node["proof"]
    hashes = len(path) + len(bundle.operator.proof) + sum(len(edge.proof) for edge in bundle.edges.producers)
    assert bundle.sizes["proof_hash_bytes"] == 32 * hashes
    assert bundle.sizes["proof_bytes"] == len(bundle.operator.to_bytes()) + len(bundle.edges.to_bytes())
    assert bundle.sizes["value_bytes"] == sum(value.nbytes for value in bundle.values.values())


@pytest.mark.parametrize("name", ["opening", "graph", "operator", "edges", "question"])
def test_no_document_may_lack(written: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(MalformedError, match=f"lacks {name}"):
        read_bundle(rewritten(written, tmp_path / "cut", **{name: None}))


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("extra", Tensor.of(np.zeros(1, np.uint8)), "no place"),
        ("question", text(b'{"question":"leaf"}'), "version|canonical"),
        ("question", text({"question": "leaf", "version": 2}), "version"),
        ("question", text({"question": "leaf", "version": 1, "nonce": "0"}), "nonce"),
        ("question", text({"question": "leaf", "version": 1, "nonce": "", "more": 1}), "more"),
        ("question", Tensor.of(np.zeros((2, 2), np.uint8)), "line of bytes"),
        ("question", Tensor.of(np.zeros(4, np.float32)), "line of bytes"),
        ("edges", text({"edges": "producers", "version": 1, "producers": [1]}), "producers"),
        ("operator", text(b"[]"), "operator"),
        ("opening", Tensor.of(np.zeros((16 << 20) + 1, np.uint8)), "more than the"),
    ],
    ids=["extra", "bare", "version", "nonce", "unknown", "matrix", "floats", "edge", "list", "large"],
)
def test_what_is_no_document_is_refused(written: Path, tmp_path: Path, name: str, tensor: Tensor, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        read_bundle(rewritten(written, tmp_path / "bad", **{name: tensor}))


def test_a_file_larger_than_allowed_is_refused_before_it_is_read(written: Path) -> None:
    size = written.stat().st_size
    assert read_bundle(written, bytes_max=size)
    for source in (written, written.read_bytes()):
        with pytest.raises(UnavailableError, match="more than the"):
            read_bundle(source, bytes_max=size - 1)
    with pytest.raises(UnavailableError, match="not there"):
        read_bundle(written.with_name("absent"))


def test_bytes_in_another_layout_are_refused(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip(b" ") + b" " * 16
    padded = len(header).to_bytes(8, "little") + header + data[8 + length :]
    with pytest.raises(MalformedError, match="canonical"):
        read_bundle(padded)
    with pytest.raises(MalformedError, match="bytes of data"):
        read_bundle(data + b"\x00")
    with pytest.raises(MalformedError, match="bytes of data"):
        read_bundle(data[:-1])


def survives(source: bytes | LeafBundle) -> bool:
    """Whether bytes are read as a bundle and ruled on; nothing but a typed error may come of them."""
    try:
        bundle = source if isinstance(source, LeafBundle) else read_bundle(source)
        rule_leaf(bundle, LeafRequest(nonce=b"n"))
    except TallyError:
        return False
    return True


def test_mutated_bytes_are_ruled_on_or_refused_and_nothing_else(written: Path) -> None:
    rng, data, read = random.Random(SEED), written.read_bytes(), 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed) if rng.random() < 0.5 else 1200)] = rng.randrange(256)
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        read += survives(bytes(changed))
    assert 0 < read < 400


def mutated(value: Any, rng: random.Random) -> Any:
    """A document with one thing in it replaced, removed or doubled."""
    strange: list[Any] = [None, True, -1, 2**53 - 1, 0.5, "", "n1", "0" * 64, "sha256:" + "0" * 64, [], {}, ["n0"] * 3]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {key: each for key, each in value.items() if key != name}
        return value | {name: mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:place] + value[place + 1 :] if rng.random() < 0.5 else [*value, value[place]]
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    return rng.choice(strange)


def test_mutated_documents_are_ruled_on_or_refused_and_nothing_else(written: Path) -> None:
    rng, bundle, read = random.Random(SEED), read_bundle(written), 0
    names = {"opening": "opening", "graph": "header", "operator": "operator", "edges": "edges"}
    for _ in range(600):
        name = rng.choice(sorted(names))
        kind, value = type(bundle.documents[name]), bundle.documents[name].to_json()
        try:
            changed = kind.from_json(mutated(value, rng), name)
        except MalformedError:
            continue
        read += survives(LeafBundle(**{**vars(bundle), names[name]: changed}))
    assert read > 50


def test_a_graph_of_gaps_has_places_and_numbers_apart(leaves: Leaves) -> None:
    assert leaves.whole.places[14] == len(classifier().nodes) - 1


VECTORS = Path(__file__).parents[3] / "vectors" / "leaf-bundle"
RULINGS, REFUSED = (json.loads((VECTORS / f"{name}.json").read_text()) for name in ("rulings", "refused"))


@pytest.mark.parametrize("case", RULINGS, ids=lambda case: case["what"])
def test_vectors_are_ruled_on_as_they_say(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["file"])
    bundle = read_bundle(data)
    ruling = rule_leaf(bundle, LeafRequest())
    assert (str(ruling.fault), str(ruling.ground)) == (case["fault"], case["ground"]), ruling.reason
    assert bundle.identity == case["identity"]


@pytest.mark.parametrize("case", RULINGS, ids=lambda case: case["what"])
def test_vectors_are_written_again_with_the_same_bytes(case: dict[str, str], tmp_path: Path) -> None:
    write_bundle(tmp_path / "leaf", read_bundle(bytes.fromhex(case["file"])))
    assert (tmp_path / "leaf").read_bytes().hex() == case["file"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["what"])
def test_vectors_to_refuse_are_refused(case: dict[str, str]) -> None:
    with pytest.raises(MalformedError):
        read_bundle(bytes.fromhex(case["file"]))


def test_the_vectors_are_those_that_the_script_makes() -> None:
    root = VECTORS.parents[1]
    spec = importlib.util.spec_from_file_location("bundle_vectors", root / "scripts" / "make_bundle_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert module.vectors() == {"rulings": RULINGS, "refused": REFUSED}
