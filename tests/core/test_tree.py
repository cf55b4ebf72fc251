from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import (
    EMPTY_ROOT,
    Frontier,
    Hash,
    LeafHashes,
    check_consistency,
    check_inclusion,
    leaf_hash,
    node_hash,
    prove_consistency,
    prove_inclusion,
    tree_root,
)
from tallystick.core.errors import ProofError

VECTORS = Path(__file__).parents[2] / "vectors"
PUBLISHED = VECTORS / "rfc6962-merkle"
INCLUSION = sorted((PUBLISHED / "inclusion").rglob("*.json"))
CONSISTENCY = sorted((PUBLISHED / "consistency").rglob("*.json"))
OWN: dict[str, list[dict[str, Any]]] = json.loads((VECTORS / "tree" / "proofs.json").read_text())
EIGHT: dict[str, Any] = json.loads((VECTORS / "merkle" / "rfc6962_eight_leaves.json").read_text())
ATTACKS: list[dict[str, Any]] = json.loads((VECTORS / "merkle" / "attack_pairs.json").read_text())
GOLDEN: dict[str, str] = json.loads((VECTORS / "merkle" / "golden_roots_u64le.json").read_text())["roots"]
SIZES = range(34)


def leaves(size: int) -> LeafHashes:
    return LeafHashes([leaf_hash(str(index).encode()) for index in range(size)])


def root_of(size: int) -> Hash:
    return tree_root(leaves(size).leaves)


def from_hex(texts: list[str]) -> list[Hash]:
    return [Hash(bytes.fromhex(text)) for text in texts]


def from_base64(texts: list[str] | None) -> list[Hash]:
    return [Hash(base64.b64decode(text)) for text in texts or []]


def read_case(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text())
    return case


def name_of(path: Path) -> str:
    return path.relative_to(PUBLISHED).as_posix()


def test_the_published_suite_is_complete() -> None:
    assert [len(INCLUSION), len(CONSISTENCY)] == [98, 98]


@pytest.mark.parametrize("path", INCLUSION, ids=name_of)
def test_published_inclusion_proofs_are_judged_as_published(path: Path) -> None:
    case = read_case(path)
    leaf, root = from_base64([case["leafHash"], case["root"]])
    proof = from_base64(case["proof"])
    if case["wantErr"]:
        with pytest.raises(ProofError):
            check_inclusion(proof, leaf, case["leafIdx"], case["treeSize"], root)
    else:
        check_inclusion(proof, leaf, case["leafIdx"], case["treeSize"], root)


@pytest.mark.parametrize("path", CONSISTENCY, ids=name_of)
def test_published_consistency_proofs_are_judged_as_published(path: Path) -> None:
    case = read_case(path)
    old, new = from_base64([case["root1"], case["root2"]])
    proof = from_base64(case["proof"])
    is_wrong_empty_root = case["size2"] == 0 and new != EMPTY_ROOT  # the suite lets any root stand for no records
    if case["wantErr"] or is_wrong_empty_root:
        with pytest.raises(ProofError):
            check_consistency(proof, case["size1"], old, case["size2"], new)
    else:
        check_consistency(proof, case["size1"], old, case["size2"], new)


def test_the_eight_records_of_rfc6962_have_their_roots_and_proofs() -> None:
    records = [bytes.fromhex(text) for text in EIGHT["leaves"]]
    reader = LeafHashes([leaf_hash(record) for record in records])
    assert [tree_root(reader.leaves[:size]).hex() for size in range(9)] == EIGHT["roots"]
    for key, proof in EIGHT["inclusion"].items():
        index, size = (int(part) for part in key.split("/"))
        assert prove_inclusion(reader, index, size) == from_hex(proof)
    for key, proof in EIGHT["consistency"].items():
        old, new = (int(part) for part in key.split("->"))
        assert prove_consistency(reader, old, new) == from_hex(proof)


def test_a_growing_tree_has_the_golden_roots_up_to_a_million_records() -> None:
    frontier = Frontier.empty()
    wanted = {int(size): root for size, root in GOLDEN.items()}
    for index in range(max(wanted) + 1):
        if index in wanted:
            assert frontier.root().hex() == wanted[index]
        frontier = frontier.append(leaf_hash(index.to_bytes(8, "little")))
    assert max(wanted) == 1_000_000


@pytest.mark.parametrize("pair", ATTACKS, ids=lambda pair: pair["name"])
def test_two_lists_of_records_never_share_a_root(pair: dict[str, Any]) -> None:
    first, second = (tree_root([leaf_hash(bytes.fromhex(text)) for text in pair[key]]) for key in ("a", "b"))
    assert first != second
    assert (first.hex(), second.hex()) == (pair["rfc6962_a"], pair["rfc6962_b"])


@pytest.mark.parametrize("tree", OWN["trees"], ids=lambda tree: f"size-{tree['size']}")
def test_roots_and_peaks_are_those_of_the_vectors(tree: dict[str, Any]) -> None:
    frontier = Frontier.empty()
    for leaf in leaves(tree["size"]).leaves:
        frontier = frontier.append(leaf)
    assert frontier == Frontier(tree["size"], tuple(from_hex(tree["peaks"])))
    assert frontier.root().hex() == root_of(tree["size"]).hex() == tree["root"]


def test_proofs_are_those_of_the_vectors() -> None:
    for case in OWN["inclusion"]:
        assert prove_inclusion(leaves(case["size"]), case["index"], case["size"]) == from_hex(case["proof"])
    for case in OWN["consistency"]:
        found = prove_consistency(leaves(case["new_size"]), case["old_size"], case["new_size"])
        assert found == from_hex(case["proof"])


@pytest.mark.parametrize("size", SIZES)
def test_every_record_is_proven_in_its_place_and_in_no_other(size: int) -> None:
    reader, root = leaves(size), root_of(size)
    for index, leaf in enumerate(reader.leaves):
        proof = prove_inclusion(reader, index, size)
        check_inclusion(proof, leaf, index, size, root)
        forgeries = [
            (proof, leaf_hash(b"other"), index, size),
            ([*proof, root], leaf, index, size),
            (proof, leaf, size, size),
            (proof, leaf, -1, size),
        ]
        if size > 1:
            forgeries += [
                (proof, leaf, (index + 1) % size, size),
                (proof[:-1], leaf, index, size),
                ([*proof[:-1], leaf_hash(b"other")], leaf, index, size),
            ]
        for forged in forgeries:
            with pytest.raises(ProofError):
                check_inclusion(*forged, root)


@pytest.mark.parametrize("new_size", SIZES)
def test_every_prefix_is_proven_and_no_other_tree_is(new_size: int) -> None:
    reader, new_root = leaves(new_size), root_of(new_size)
    for old_size in range(1, new_size + 1):
        proof, old_root = prove_consistency(reader, old_size, new_size), root_of(old_size)
        check_consistency(proof, old_size, old_root, new_size, new_root)
        with pytest.raises(ProofError):
            check_consistency(proof, old_size, leaf_hash(b"fork"), new_size, new_root)
        with pytest.raises(ProofError):
            check_consistency(proof, old_size, old_root, new_size, leaf_hash(b"fork"))
        with pytest.raises(ProofError):
            check_consistency([*proof, new_root], old_size, old_root, new_size, new_root)
        if proof:
            with pytest.raises(ProofError):
                check_consistency(proof[:-1], old_size, old_root, new_size, new_root)


def test_nothing_is_shown_about_the_empty_tree_but_its_root() -> None:
    check_consistency([], 0, EMPTY_ROOT, 0, EMPTY_ROOT)
    with pytest.raises(ProofError, match="not the root of the empty tree"):
        check_consistency([], 0, root_of(1), 0, root_of(1))
    with pytest.raises(ProofError, match="empty tree"):
        check_consistency([], 0, EMPTY_ROOT, 3, root_of(3))


def test_no_proof_is_made_beyond_the_tree() -> None:
    for index, size in [(3, 3), (-1, 3), (0, 0)]:
        with pytest.raises(ProofError, match="lies outside"):
            prove_inclusion(leaves(3), index, size)
    for old, new in [(4, 3), (-1, 3)]:
        with pytest.raises(ProofError, match="no prefix"):
            prove_consistency(leaves(3), old, new)


def test_a_hash_of_another_length_is_refused() -> None:
    proof = prove_inclusion(leaves(2), 0, 2)
    check_inclusion(proof, leaves(2).leaves[0], 0, 2, root_of(2))
    with pytest.raises(ProofError, match="32 bytes"):
        check_inclusion([Hash(proof[0] + b"\0")], leaves(2).leaves[0], 0, 2, root_of(2))


def test_a_leaf_cannot_pass_for_a_node() -> None:
    left, right = leaves(2).leaves
    assert leaf_hash(left + right) != node_hash(left, right)


@given(st.lists(st.binary(max_size=4), max_size=40))
@settings(deadline=None, max_examples=60)
def test_the_frontier_and_the_whole_tree_agree(records: list[bytes]) -> None:
    hashed = [leaf_hash(record) for record in records]
    frontier = Frontier.empty()
    for leaf in hashed:
        frontier = frontier.append(leaf)
    assert (frontier.size, frontier.root()) == (len(records), tree_root(hashed))
    assert len(frontier.peaks) == len(records).bit_count()


@given(st.integers(1, 200), st.data())
@settings(deadline=None, max_examples=40)
def test_a_flipped_bit_in_a_proof_is_always_seen(size: int, data: st.DataObject) -> None:
    reader = leaves(size)
    index = data.draw(st.integers(0, size - 1))
    joined = b"".join(prove_inclusion(reader, index, size)) + reader.leaves[index]
    bit = data.draw(st.integers(0, 8 * len(joined) - 1))
    flipped = bytearray(joined)
    flipped[bit // 8] ^= 1 << bit % 8
    *proof, leaf = (Hash(bytes(flipped[a:b])) for a, b in pairwise(range(0, len(joined) + 1, 32)))
    with pytest.raises(ProofError):
        check_inclusion(proof, leaf, index, size, tree_root(reader.leaves))
