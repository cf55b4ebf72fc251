// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Coordinator} from "../src/Coordinator.sol";
import {Fault, Rules} from "../src/Types.sol";
import {Scene} from "./Scene.sol";

/// With as many members as a contract can be founded with, no committee is too large to be counted in a transaction.
contract LargeCommitteeTest is Scene {
    uint160 private constant MEMBERS = 200;
    uint256 private constant TRANSACTION_GAS_MAX = 16_777_216; // EIP-7825
    bytes32 private constant SALT = keccak256("salt");

    function setUp() public override {
        super.setUp();
        Rules memory large = rules();
        large.members = new address[](MEMBERS);
        for (uint160 i = 0; i < MEMBERS; i++) {
            large.members[i] = member(i);
        }
        (large.committee, large.appeals, large.planter) = (49, 2, PROVER);
        coordinator = new Coordinator(large, address(0));
    }

    /// Committees of 49, 99 and 199: the last one, of which nobody votes, is the dearest to count.
    function testTheLargestCommitteeIsCountedInOneTransaction() public {
        bytes32 planted = seal();
        vm.prank(PROVER);
        coordinator.post{value: 1000 * GWEI}(LEAF, 1, 1, LEAF, planted);
        vm.prank(CHALLENGER);
        coordinator.contest{value: 198 * GWEI}(0, 0, 1);
        vm.prank(PROVER);
        coordinator.reveal(0, 0, LEAF, new bytes32[](0), LEAF, "");
        enlistAll();
        vm.warp(block.timestamp + 10);
        coordinator.convene(0);
        for ((uint256 seats, uint64 round) = (49, 0); seats < 199; (seats, round) = (2 * seats + 1, round + 1)) {
            cheap(abi.encodeCall(Coordinator.draw, (0, bytes32(0))));
            everybodyVotes(round);
            cheap(abi.encodeCall(Coordinator.tally, (0)));
            vm.prank(PROVER);
            coordinator.appeal{value: (50 + 2 * (2 * seats + 1)) * GWEI}(0);
        }
        cheap(abi.encodeCall(Coordinator.draw, (0, bytes32(0))));
        vm.warp(block.timestamp + 100);
        cheap(abi.encodeCall(Coordinator.tally, (0)));
        vm.prank(PROVER);
        cheap(abi.encodeCall(Coordinator.unseal, (0, Fault.Challenger, SALT)));
    }

    /// The call is taken with three quarters of what a transaction may use: here its storage has been read before.
    function cheap(bytes memory call_) private {
        vm.roll(block.number + 2);
        (bool done,) = address(coordinator).call{gas: TRANSACTION_GAS_MAX * 3 / 4}(call_);
        require(done, "too dear");
    }

    function enlistAll() private {
        for (uint160 i = 0; i < MEMBERS; i++) {
            vm.deal(member(i), 1 ether);
            vm.prank(member(i));
            coordinator.enlist{value: 20 * GWEI}();
        }
    }

    /// Whoever was drawn votes against the prover, and discloses it; the others are refused.
    function everybodyVotes(uint64 round) private {
        for (uint160 i = 0; i < MEMBERS; i++) {
            bytes memory message = abi.encodePacked("tallystick/vote/v1\n", uint64(0), round, member(i), uint8(1), SALT);
            bytes32 commitment = sha256(message);
            vm.prank(member(i));
            try coordinator.vote(0, commitment) {} catch {}
        }
        for (uint160 i = 0; i < MEMBERS; i++) {
            vm.prank(member(i));
            try coordinator.disclose(0, Fault.Prover, SALT) {} catch {}
        }
    }

    function seal() private pure returns (bytes32) {
        return sha256(abi.encodePacked("tallystick/seal/v1\n", PROVER, uint8(Fault.Challenger), SALT));
    }
}
