// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Inclusion} from "../src/Inclusion.sol";
import {WithVm} from "./Vm.sol";

/// A second way to say what RFC 6962 says: roots and paths by its recursion, checked by the loop of the contract.
contract InclusionTest is WithVm {
    function holds(bytes32[] calldata proof, bytes32 leaf, uint256 index, uint256 size, bytes32 root)
        external
        view
        returns (bool)
    {
        return Inclusion.holds(proof, leaf, index, size, root);
    }

    function testFuzz_everyLeafIsFound(uint8 size, uint8 index, bytes32 seed) public view {
        (bytes32[] memory leaves, uint256 place) = tree(size, index, seed);
        require(this.holds(path(leaves, place, 0, leaves.length), leaves[place], place, leaves.length, rootOf(leaves)));
    }

    function testFuzz_anotherLeafIsRefused(uint8 size, uint8 index, bytes32 seed, bytes32 other) public view {
        (bytes32[] memory leaves, uint256 place) = tree(size, index, seed);
        vm.assume(other != leaves[place]);
        require(!this.holds(path(leaves, place, 0, leaves.length), other, place, leaves.length, rootOf(leaves)));
    }

    function testFuzz_anotherIndexIsRefused(uint8 size, uint8 index, uint256 other, bytes32 seed) public view {
        (bytes32[] memory leaves, uint256 place) = tree(size, index, seed);
        vm.assume(other != place);
        require(!this.holds(path(leaves, place, 0, leaves.length), leaves[place], other, leaves.length, rootOf(leaves)));
    }

    function testFuzz_aProofOfAnotherLengthIsRefused(uint8 size, uint8 index, uint8 length, bytes32 seed) public view {
        (bytes32[] memory leaves, uint256 place) = tree(size, index, seed);
        bytes32[] memory proof = path(leaves, place, 0, leaves.length);
        vm.assume(length != proof.length);
        require(!this.holds(resized(proof, length), leaves[place], place, leaves.length, rootOf(leaves)));
    }

    function testFuzz_aChangedProofIsRefused(uint8 size, uint8 index, uint8 level, bytes32 change, bytes32 seed)
        public
        view
    {
        (bytes32[] memory leaves, uint256 place) = tree(size, index, seed);
        bytes32[] memory proof = path(leaves, place, 0, leaves.length);
        vm.assume(proof.length > 0 && change != 0);
        proof[level % proof.length] ^= change;
        require(!this.holds(proof, leaves[place], place, leaves.length, rootOf(leaves)));
    }

    function testAnEmptyTreeHoldsNothing() public view {
        require(!this.holds(new bytes32[](0), sha256(""), 0, 0, sha256("")));
    }

    function testTheDeepestPathIsWalked() public view {
        bytes32[] memory proof = new bytes32[](64);
        bytes32 root = bytes32(uint256(7));
        for (uint256 level = 0; level < 64; level++) {
            root = Inclusion.nodeHash(proof[level], root);
        }
        require(this.holds(proof, bytes32(uint256(7)), 2 ** 64 - 1, 2 ** 64, root));
    }

    function tree(uint8 size, uint8 index, bytes32 seed) private pure returns (bytes32[] memory leaves, uint256 place) {
        leaves = new bytes32[](uint256(size % 40) + 1);
        for (uint256 i = 0; i < leaves.length; i++) {
            leaves[i] = keccak256(abi.encode(seed, i));
        }
        place = index % leaves.length;
    }

    function rootOf(bytes32[] memory leaves) private view returns (bytes32) {
        return subtree(leaves, 0, leaves.length);
    }

    function subtree(bytes32[] memory leaves, uint256 from, uint256 count) private view returns (bytes32) {
        if (count == 1) return leaves[from];
        uint256 left = leftSize(count);
        return Inclusion.nodeHash(subtree(leaves, from, left), subtree(leaves, from + left, count - left));
    }

    function path(bytes32[] memory leaves, uint256 place, uint256 from, uint256 count)
        private
        view
        returns (bytes32[] memory)
    {
        if (count == 1) return new bytes32[](0);
        uint256 left = leftSize(count);
        if (place < left) {
            return appended(path(leaves, place, from, left), subtree(leaves, from + left, count - left));
        }
        return appended(path(leaves, place - left, from + left, count - left), subtree(leaves, from, left));
    }

    function leftSize(uint256 count) private pure returns (uint256 left) {
        for (left = 1; left * 2 < count; left *= 2) {}
    }

    function appended(bytes32[] memory hashes, bytes32 last) private pure returns (bytes32[] memory longer) {
        longer = resized(hashes, hashes.length + 1);
        longer[hashes.length] = last;
    }

    function resized(bytes32[] memory hashes, uint256 length) private pure returns (bytes32[] memory other) {
        other = new bytes32[](length);
        for (uint256 i = 0; i < length && i < hashes.length; i++) {
            other[i] = hashes[i];
        }
    }
}
