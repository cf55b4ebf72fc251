// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Pauses} from "./Pauses.sol";
import {allow} from "./Refusal.sol";
import {Credit, CREDITS_PER_WITHDRAWAL} from "./Types.sol";

/// Money goes out by being asked for: it rests for a while first, and one party's refusal stops nobody else's pay.
abstract contract Ledger is Pauses {
    /// What a party is owed and has not taken out, the oldest first.
    function creditsOf(address party) external view returns (Credit[] memory owed) {
        uint256 from = takenOut[party];
        owed = new Credit[](credits[party].length - from);
        for (uint256 i = 0; i < owed.length; i++) {
            owed[i] = credits[party][from + i];
        }
    }

    function _credit(address party, uint256 amount) internal {
        if (amount > 0) credits[party].push(Credit(uint64(amount), _now() + withdrawalDelay));
    }

    /// The ripe credits of `party`, the oldest first and so many at a time, are struck out; their sum in gwei.
    function _strikeOut(address party) internal returns (uint256 amount) {
        Credit[] storage owed = credits[party];
        uint256 first = takenOut[party];
        uint256 end = first;
        while (end < owed.length && end < first + CREDITS_PER_WITHDRAWAL && owed[end].ripe <= _now()) {
            amount += owed[end].amount;
            delete owed[end++];
        }
        allow(end > first, "nothing");
        takenOut[party] = end;
    }
}
