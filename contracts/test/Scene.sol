// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Coordinator} from "../src/Coordinator.sol";
import {Rules} from "../src/Types.sol";
import {WithVm} from "./Vm.sol";

/// A coordinator with round numbers, and the shortest way to each phase: a claim of one leaf, whose root is the leaf.
abstract contract Scene is WithVm {
    uint256 internal constant GWEI = 1 gwei;
    bytes32 internal constant LEAF = keccak256("leaf");
    address internal constant PROVER = address(0xA11CE);
    address internal constant CHALLENGER = address(0xB0B);
    address internal constant GUARDIAN = address(0x6A5D);
    address internal constant TREASURY = address(0x7EA5);
    uint256 internal constant BOARD_KEY = 77;

    Coordinator internal coordinator;

    function setUp() public virtual {
        vm.warp(1_800_000_000);
        vm.roll(1000);
        coordinator = new Coordinator(rules(), address(0));
        vm.deal(PROVER, 1 ether);
        vm.deal(CHALLENGER, 1 ether);
    }

    function rules() internal pure returns (Rules memory found) {
        found.proverBond = 1000;
        found.challengerBond = 100;
        found.appealBond = 50;
        (found.stake, found.voteFee, found.reward) = (20, 2, 500);
        (found.challengeWindow, found.clock, found.extension, found.refereeWindow) = (1000, 100, 10, 10);
        (found.voteWindow, found.revealWindow, found.appealWindow, found.withdrawalDelay) = (50, 50, 50, 30);
        (found.pauseMax, found.pauseRest) = (300, 500);
        (found.ways, found.committee, found.appeals) = (2, 1, 1);
        found.members = new address[](3);
        for (uint160 i = 0; i < 3; i++) {
            found.members[i] = member(i);
        }
        found.guardian = GUARDIAN;
        found.treasury = TREASURY;
    }

    function member(uint160 number) internal pure returns (address) {
        return address(0xABC0 + number);
    }

    function postBy(address prover) internal {
        vm.prank(prover);
        coordinator.post{value: 1000 * GWEI}(LEAF, 1, 1, LEAF, LEAF);
    }

    /// Claim 0, contested, opened: dispute 0 stands at a ruling.
    function toRuling() internal {
        postBy(PROVER);
        vm.prank(CHALLENGER);
        coordinator.contest{value: 102 * GWEI}(0, 0, 1);
        vm.prank(PROVER);
        coordinator.reveal(0, 0, LEAF, new bytes32[](0), LEAF, "");
    }

    /// Dispute 0 waits for a draw among three members.
    function toDrawing() internal {
        toRuling();
        for (uint160 i = 0; i < 3; i++) {
            vm.deal(member(i), 1 ether);
            vm.prank(member(i));
            coordinator.enlist{value: 20 * GWEI}();
        }
        vm.warp(block.timestamp + 10);
        coordinator.convene(0);
    }
}
