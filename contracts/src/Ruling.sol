// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Examiner} from "./Examiner.sol";
import {allow} from "./Refusal.sol";
import {Dispute, Evidence, Fault, Ground} from "./Types.sol";
import {Voting} from "./Voting.sol";

/// From the opened leaf to a ruling: the referee, a check that anybody can make, or a committee.
abstract contract Ruling is Voting {
    /// Made by this contract when it is made itself.
    Examiner public immutable examiner = new Examiner();

    /// Evidence that convicts the prover ends the dispute; other evidence is refused and changes nothing.
    function _prove(Dispute storage dispute, Evidence calldata evidence) internal {
        _isOperator(dispute);
        examiner.convict(dispute.leaf, dispute.root, dispute.size, dispute.low, evidence);
        _settle(dispute, Fault.Prover);
    }

    /// Whether the leaf that is ruled upon is an operator that was revealed, and neither a record nor a protest.
    function _isOperator(Dispute storage dispute) internal view {
        allow(dispute.level == 1 && dispute.ground == Ground.Leaf, "level");
    }

    /// The referee, or anybody after its window, calls a committee; without members nothing can be decided.
    function _convene(Dispute storage dispute) internal {
        allow(_time() >= dispute.deadline || _actor() == referee, "early");
        uint256 seats = _seats(_eligible(dispute).length, committee);
        if (seats == 0) return _settle(dispute, Fault.Nobody);
        _callDraw(dispute, seats);
    }
}
