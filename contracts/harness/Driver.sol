// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

/// What the driver asks of a harness.
interface Subject {
    function set(uint48 time, address actor, bytes32 nonce) external;
    function touched(uint64 claim, uint64 dispute, address[] calldata parties) external view returns (bytes memory);
}

/// Makes many moves in one transaction, each by whom and when the test says, and tells what came of each.
contract Driver {
    struct Step {
        address actor;
        uint48 time;
        bytes32 nonce;
        uint64 value;
        uint64 claim;
        uint64 dispute;
        bytes call;
    }

    event Stepped(bool isDone, bytes reason, bytes32 state);

    function run(Subject subject, Step[] calldata steps, address[] calldata parties) external payable {
        for (uint256 i = 0; i < steps.length; i++) {
            Step calldata step = steps[i];
            subject.set(step.time, step.actor, step.nonce);
            (bool isDone, bytes memory reason) = address(subject).call{value: uint256(step.value) * 1 gwei}(step.call);
            emit Stepped(isDone, reason, sha256(subject.touched(step.claim, step.dispute, parties)));
        }
    }

    receive() external payable {}
}
