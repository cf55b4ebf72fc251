// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

/// Refuse the move with `code` as its reason unless the condition holds; the codes are those of every coordinator.
function allow(bool condition, bytes32 code) pure {
    if (!condition) refuse(code);
}

/// Revert as `revert(string)` would, from one word: it is much smaller, and there are many refusals.
function refuse(bytes32 code) pure {
    assembly ("memory-safe") {
        let length := 0
        for {} byte(length, code) {} { length := add(length, 1) }
        let reason := mload(0x40)
        mstore(reason, shl(224, 0x08c379a0)) // the selector of Error(string)
        mstore(add(reason, 4), 32)
        mstore(add(reason, 36), length)
        mstore(add(reason, 68), code)
        revert(reason, 100)
    }
}
