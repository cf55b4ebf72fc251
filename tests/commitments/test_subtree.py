from __future__ import annotations

import base64
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tallystick.commitments.proofs import LeafHashes, prove_inclusion
from tallystick.commitments.subtree import check_subtree, check_subtree_inclusion, is_subtree, prove_subtree
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.errors import ProofError

PUBLISHED = Path(__file__).parents[2] / "vectors" / "rfc6962-merkle"
INCLUSION = sorted((PUBLISHED / "subtreeinclusion").rglob("*.json"))
CONSISTENCY = sorted((PUBLISHED / "subtreeconsistency").rglob("*.json"))
LEAVES = [leaf_hash(str(index).encode()) for index in range(21)]
OTHER = leaf_hash(b"other")


def from_base64(*texts: str) -> list[Hash]:
    return [Hash(base64.b64decode(text)) for text in texts]


def name_of(path: Path) -> str:
    return path.relative_to(PUBLISHED).as_posix()


def test_the_published_suite_is_complete() -> None:
    assert (len(INCLUSION), len(CONSISTENCY)) == (204, 118)


@pytest.mark.parametrize("path", INCLUSION, ids=name_of)
def test_published_inclusion_proofs_are_judged_as_published(path: Path) -> None:
    case: dict[str, Any] = json.loads(path.read_text())
    leaf, root, *proof = from_base64(case["leafHash"], case["root"], *(case["proof"] or []))
    arguments = proof, leaf, case["leafIdx"], case["start"], case["end"], root
    if case["wantErr"]:
        with pytest.raises(ProofError):
            check_subtree_inclusion(*arguments)
    else:
        check_subtree_inclusion(*arguments)


@pytest.mark.parametrize("path", CONSISTENCY, ids=name_of)
def test_published_subtree_proofs_are_judged_as_published(path: Path) -> None:
    case: dict[str, Any] = json.loads(path.read_text())
    subtree, root, *proof = from_base64(case["root1"], case["root2"], *(case["proof"] or []))
    arguments = proof, case["start"], case["end"], subtree, case["size"], root
    shows_nothing = case["start"] == case["end"]  # the suite lets no records be part of any tree whatever
    if case["wantErr"] or shows_nothing:
        with pytest.raises(ProofError):
            check_subtree(*arguments)
    else:
        check_subtree(*arguments)


@pytest.mark.parametrize("size", range(1, len(LEAVES) + 1))
def test_every_subtree_is_proven_and_no_other_is(size: int) -> None:
    reader, root = LeafHashes(LEAVES), tree_root(LEAVES[:size])
    for start, end in filter(lambda run: is_subtree(*run), combinations(range(size + 1), 2)):
        subtree = tree_root(LEAVES[start:end])
        proof = prove_subtree(reader, start, end, size)
        check_subtree(proof, start, end, subtree, size, root)
        forgeries = [(proof, OTHER, root), (proof, subtree, OTHER), ([*proof, OTHER], subtree, root)]
        if proof:
            forgeries += [(proof[:-1], subtree, root), ([OTHER, *proof[1:]], subtree, root)]
        for forged, claimed, whole in forgeries:
            with pytest.raises(ProofError):
                check_subtree(forged, start, end, claimed, size, whole)


def test_a_record_is_shown_in_a_subtree_by_its_number_in_the_log() -> None:
    start, end = 8, 14
    root, reader = tree_root(LEAVES[start:end]), LeafHashes(LEAVES[start:end])
    for index in range(start, end):
        proof = prove_inclusion(reader, index - start, end - start)
        check_subtree_inclusion(proof, LEAVES[index], index, start, end, root)
        with pytest.raises(ProofError):
            check_subtree_inclusion(proof, LEAVES[index], index - start, start, end, root)


@pytest.mark.parametrize(("start", "end"), [(1, 3), (2, 6), (3, 3), (5, 4), (-2, 2), (0, 22)])
def test_a_run_that_is_no_subtree_is_neither_proven_nor_checked(start: int, end: int) -> None:
    with pytest.raises(ProofError, match="no subtree"):
        prove_subtree(LeafHashes(LEAVES), start, end, 21)
    with pytest.raises(ProofError, match="no subtree"):
        check_subtree([], start, end, OTHER, 21, OTHER)


def test_a_hash_of_another_length_is_refused() -> None:
    root, proof = tree_root(LEAVES), prove_subtree(LeafHashes(LEAVES), 4, 8, 21)
    check_subtree(proof, 4, 8, tree_root(LEAVES[4:8]), 21, root)
    with pytest.raises(ProofError, match="32 bytes"):
        check_subtree([Hash(proof[0] + b"\0"), *proof[1:]], 4, 8, tree_root(LEAVES[4:8]), 21, root)
