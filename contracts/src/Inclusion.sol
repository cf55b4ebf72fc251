// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {PROOF_MAX} from "./Types.sol";

/// The Merkle tree of RFC 6962 §2.1 over SHA-256: whether a leaf hash stands at an index of a tree.
library Inclusion {
    /// Whether `leaf` is number `index` of the tree `root` of `size` leaves; the proof is lowest sibling first.
    /// The length of the proof is checked before any hash is computed.
    function holds(bytes32[] calldata proof, bytes32 leaf, uint256 index, uint256 size, bytes32 root)
        internal
        view
        returns (bool)
    {
        if (index >= size) return false;
        uint256 inner = bitLength(index ^ (size - 1));
        if (proof.length > PROOF_MAX || proof.length != inner + bitCount(index >> inner)) return false;
        bytes32 found = leaf;
        for (uint256 level = 0; level < proof.length; level++) {
            bool isRight = level >= inner || (index >> level) & 1 == 1;
            found = isRight ? nodeHash(proof[level], found) : nodeHash(found, proof[level]);
        }
        return found == root;
    }

    /// The hash of two subtrees; the prefix 0x01 keeps a leaf from passing for a node.
    /// The 65 bytes lie beyond the end of the memory in use, so that long proofs do not make it grow.
    function nodeHash(bytes32 left, bytes32 right) internal view returns (bytes32 hash) {
        assembly ("memory-safe") {
            let at := mload(0x40)
            mstore8(at, 1)
            mstore(add(at, 1), left)
            mstore(add(at, 33), right)
            if iszero(staticcall(gas(), 2, at, 65, 0, 32)) { revert(0, 0) }
            if xor(returndatasize(), 32) { revert(0, 0) }
            hash := mload(0)
        }
    }

    function bitLength(uint256 value) private pure returns (uint256 length) {
        for (; value > 0; value >>= 1) {
            length++;
        }
    }

    function bitCount(uint256 value) private pure returns (uint256 count) {
        for (; value > 0; value >>= 1) {
            count += value & 1;
        }
    }
}
