// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

/// The Merkle tree of RFC 6962 §2.1 over SHA-256: whether a leaf hash stands at an index of a tree.
library Inclusion {
    /// No proof is longer: a tree has at most 2^64 leaves. Length is checked before any hash is computed.
    uint256 internal constant LONGEST_PROOF = 64;

    /// Whether `leaf` is number `index` of the tree `root` of `size` leaves; the proof is lowest sibling first.
    function holds(bytes32[] calldata proof, bytes32 leaf, uint256 index, uint256 size, bytes32 root)
        internal
        pure
        returns (bool)
    {
        if (index >= size) return false;
        uint256 inner = bitLength(index ^ (size - 1));
        if (proof.length > LONGEST_PROOF || proof.length != inner + bitCount(index >> inner)) return false;
        bytes32 found = leaf;
        for (uint256 level = 0; level < proof.length; level++) {
            bool isRight = level >= inner || (index >> level) & 1 == 1;
            found = isRight ? nodeHash(proof[level], found) : nodeHash(found, proof[level]);
        }
        return found == root;
    }

    /// The hash of two subtrees; the prefix 0x01 keeps a leaf from passing for a node.
    function nodeHash(bytes32 left, bytes32 right) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x01), left, right));
    }

    function bitLength(uint256 value) private pure returns (uint256 length) {
        for (; value > 0; value >>= 1) length++;
    }

    function bitCount(uint256 value) private pure returns (uint256 count) {
        for (; value > 0; value >>= 1) count += value & 1;
    }
}
