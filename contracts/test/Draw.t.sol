// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Phase} from "../src/Types.sol";
import {Scene} from "./Scene.sol";

/// Where the rules name no beacon, a block that did not exist when the committee was called draws it.
contract DrawTest is Scene {
    function testNobodyDrawsBeforeTheBlockIsThere() public {
        toDrawing();
        require(drawBlock() == block.number + 1);
        vm.roll(block.number + 1);
        refusedWith("nonce");
        coordinator.draw(0, bytes32(0));
        vm.roll(block.number + 1);
        coordinator.draw(0, bytes32(0));
        require(phase() == Phase.Committing);
    }

    /// The caller's own nonce is not read: with each of many, the same member is drawn.
    function testFuzz_theCallerChoosesNothing(bytes32 brought) public {
        toDrawing();
        vm.roll(block.number + 2);
        vm.setBlockhash(drawBlock(), keccak256("the hash of the block"));
        coordinator.draw(0, brought);
        bytes32 nonce = keccak256("the hash of the block");
        bytes memory key = abi.encodePacked("tallystick/draw/v1\n", nonce, uint64(0), uint64(0), uint64(0));
        uint160 chosen = uint160(uint256(sha256(key)) % 3);
        for (uint160 i = 1; i < 3; i++) {
            refusedWith("actor");
            vm.prank(member((chosen + i) % 3));
            coordinator.vote(0, LEAF);
        }
        vm.prank(member(chosen));
        coordinator.vote(0, LEAF);
    }

    function testAHashThatIsGoneNamesAnotherBlock() public {
        toDrawing();
        vm.roll(block.number + 258);
        coordinator.draw(0, bytes32(0));
        require(phase() == Phase.Drawing && drawBlock() == block.number + 1 && coordinator.moves() == 7);
        vm.roll(block.number + 2);
        coordinator.draw(0, bytes32(0));
        require(phase() == Phase.Committing && coordinator.moves() == 8);
    }

    function testTheLastBlockThatCanDraw() public {
        toDrawing();
        vm.roll(block.number + 257);
        vm.setBlockhash(drawBlock(), LEAF);
        coordinator.draw(0, bytes32(0));
        require(phase() == Phase.Committing);
    }

    function phase() private view returns (Phase found) {
        (found,,,,) = coordinator.disputeAt(0);
    }

    function drawBlock() private view returns (uint64 found) {
        (,,,, found) = coordinator.disputeAt(0);
    }
}
