"""One encoding, one digest, one tree, one source of public randomness."""

from tallystick.commitments.digest import Digest, digest, digest_bytes, digest_from, parse_digest
from tallystick.commitments.encoding import Json, decode, encode, parse
from tallystick.commitments.nesting import DEPTH_MAX, nesting
from tallystick.commitments.philox import permutation, sample, words
from tallystick.commitments.subtree import check_subtree, check_subtree_inclusion, is_subtree, prove_subtree
from tallystick.commitments.tiles import TILE_WIDTH, TileReader, TileWriter, tile_path
from tallystick.commitments.tree import (
    EMPTY_ROOT,
    Frontier,
    Hash,
    HashReader,
    LeafHashes,
    check_consistency,
    check_inclusion,
    leaf_hash,
    node_hash,
    prove_consistency,
    prove_inclusion,
    tree_root,
)

__all__ = [
    "DEPTH_MAX",
    "EMPTY_ROOT",
    "TILE_WIDTH",
    "Digest",
    "Frontier",
    "Hash",
    "HashReader",
    "Json",
    "LeafHashes",
    "TileReader",
    "TileWriter",
    "check_consistency",
    "check_inclusion",
    "check_subtree",
    "check_subtree_inclusion",
    "decode",
    "digest",
    "digest_bytes",
    "digest_from",
    "encode",
    "is_subtree",
    "leaf_hash",
    "nesting",
    "node_hash",
    "parse",
    "parse_digest",
    "permutation",
    "prove_consistency",
    "prove_inclusion",
    "prove_subtree",
    "sample",
    "tile_path",
    "tree_root",
    "words",
]
