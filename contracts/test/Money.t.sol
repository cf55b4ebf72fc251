// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Coordinator} from "../src/Coordinator.sol";
import {Scene} from "./Scene.sol";

/// A prover that asks again, for money and for moves, while it is being paid.
contract Greedy {
    Coordinator private immutable coordinator;
    uint256 public attempts;

    constructor(Coordinator coordinator_) payable {
        coordinator = coordinator_;
    }

    function post() external {
        coordinator.post{value: 1000 gwei}(bytes32(0), 1, 1, bytes32(0), bytes32(0));
    }

    function withdraw() external {
        coordinator.withdraw();
    }

    receive() external payable {
        attempts++;
        try coordinator.withdraw() {
            revert("paid twice");
        } catch {}
        try coordinator.finalise(0) {
            revert("closed twice");
        } catch {}
    }
}

/// A prover that takes no money.
contract Stubborn {
    bool public isOpen;

    function post(Coordinator coordinator) external payable {
        coordinator.post{value: msg.value}(bytes32(0), 1, 1, bytes32(0), bytes32(0));
    }

    function withdraw(Coordinator coordinator) external {
        coordinator.withdraw();
    }

    function open() external {
        isOpen = true;
    }

    receive() external payable {
        require(isOpen, "closed");
    }
}

contract MoneyTest is Scene {
    function testAReceiverThatAsksAgainIsPaidOnce() public {
        Greedy greedy = new Greedy{value: 1000 gwei}(coordinator);
        greedy.post();
        postBy(PROVER);
        finalised();
        greedy.withdraw();
        require(address(greedy).balance == 1000 gwei && greedy.attempts() == 1);
        require(address(coordinator).balance == 1000 gwei, "the other bond stays");
    }

    function testAReceiverThatTakesNoMoneyStopsNobodyElse() public {
        Stubborn stubborn = new Stubborn();
        stubborn.post{value: 1000 gwei}(coordinator);
        postBy(PROVER);
        finalised();
        refusedWith("receiver");
        stubborn.withdraw(coordinator);
        vm.prank(PROVER);
        coordinator.withdraw();
        require(PROVER.balance == 1 ether, "all of the bond is back");
        stubborn.open();
        stubborn.withdraw(coordinator);
        require(address(stubborn).balance == 1000 gwei, "what is owed stays owed");
    }

    function testNothingIsPaidTwice() public {
        postBy(PROVER);
        postBy(PROVER);
        finalised();
        vm.prank(PROVER);
        coordinator.withdraw();
        refusedWith("nothing");
        vm.prank(PROVER);
        coordinator.withdraw();
        require(PROVER.balance == 1 ether && address(coordinator).balance == 0);
    }

    function testMoneyRestsForTheDelay() public {
        postBy(PROVER);
        vm.warp(block.timestamp + 1000);
        coordinator.finalise(0);
        vm.warp(block.timestamp + 29);
        refusedWith("nothing");
        vm.prank(PROVER);
        coordinator.withdraw();
        vm.warp(block.timestamp + 1);
        vm.prank(PROVER);
        coordinator.withdraw();
    }

    function testMoreCreditsThanOneWithdrawalTakes() public {
        for (uint256 i = 0; i < 40; i++) {
            postBy(PROVER);
        }
        vm.warp(block.timestamp + 1000);
        for (uint64 i = 0; i < 40; i++) {
            coordinator.finalise(i);
        }
        vm.warp(block.timestamp + 30);
        for (uint256 i = 0; i < 2; i++) {
            vm.prank(PROVER);
            coordinator.withdraw();
        }
        require(PROVER.balance == 1 ether);
    }

    function testTheContractTakesNoMoneyOutsideMoves() public {
        vm.prank(PROVER);
        (bool isTaken,) = address(coordinator).call{value: 1}("");
        require(!isTaken);
    }

    function testFuzz_anotherPaymentIsRefused(uint256 amount) public {
        amount %= 1 ether;
        vm.assume(amount != 1000 gwei);
        refusedWith("value");
        vm.prank(PROVER);
        coordinator.post{value: amount}(LEAF, 1, 1, LEAF, LEAF);
    }

    /// The pausing of the coordinator stops game time and never a withdrawal.
    function testAPauseStopsNoWithdrawal() public {
        postBy(PROVER);
        postBy(PROVER);
        vm.warp(block.timestamp + 1000);
        coordinator.finalise(0);
        pause();
        refusedWith("paused");
        coordinator.finalise(1);
        vm.warp(block.timestamp + 30);
        vm.prank(PROVER);
        coordinator.withdraw();
        require(PROVER.balance == 1 ether - 1000 gwei);
    }

    function testAPauseEndsByItselfAndCannotBeRepeatedAtOnce() public {
        postBy(PROVER);
        vm.warp(block.timestamp + 999);
        pause();
        vm.warp(block.timestamp + 300);
        refusedWith("early");
        coordinator.finalise(0);
        refusedWith("rest");
        vm.prank(GUARDIAN);
        coordinator.pause();
        vm.warp(block.timestamp + 1);
        coordinator.finalise(0);
        vm.warp(block.timestamp + 499);
        pause();
    }

    function testOnlyTheGuardianPauses() public {
        refusedWith("actor");
        coordinator.pause();
        pause();
        refusedWith("actor");
        coordinator.resume();
        vm.prank(GUARDIAN);
        coordinator.resume();
    }

    function pause() private {
        vm.prank(GUARDIAN);
        coordinator.pause();
    }

    /// Claims 0 and 1 are final, and their bonds can be taken out.
    function finalised() private {
        vm.warp(block.timestamp + 1000);
        coordinator.finalise(0);
        coordinator.finalise(1);
        vm.warp(block.timestamp + 30);
    }
}
