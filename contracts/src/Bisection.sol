// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Claims} from "./Claims.sol";
import {allow} from "./Refusal.sol";
import {Cut, Dispute, Fault, Ground, Phase} from "./Types.sol";

/// The bisection: N-way cuts from a range of leaves to one, then into the finer tree below it, under chess clocks.
abstract contract Bisection is Claims {
    /// The prover commits to the leaf at the end of each child.
    function _partition(Dispute storage dispute, Cut[] calldata cuts) internal {
        (uint40 low, uint40 high) = (dispute.low, dispute.high);
        uint256 parts = _parts(low, high);
        allow(cuts.length == parts - 1, "cuts");
        for (uint256 i = 0; i < cuts.length; i++) {
            _isIn(dispute, cuts[i].leaf, cuts[i].proof, _childEnd(low, high, parts, i) - 1);
        }
        _turn(dispute);
        dispute.phase = Phase.Choose;
    }

    /// The challenger names the child in which the fault lies.
    function _choose(Dispute storage dispute, uint8 child) internal {
        (uint40 low, uint40 high) = (dispute.low, dispute.high);
        uint256 parts = _parts(low, high);
        allow(child < parts, "child");
        _turn(dispute);
        uint40 start = child == 0 ? low : _childEnd(low, high, parts, child - 1);
        _narrow(dispute, start, _childEnd(low, high, parts, child));
    }

    /// The prover opens the record that is left and names the tree of its operators.
    function _descend(Dispute storage dispute, bytes32 leaf, bytes32[] calldata proof, bytes32 root, uint40 size)
        internal
    {
        allow(dispute.level > 1, "level");
        _isIn(dispute, leaf, proof, dispute.low);
        _turn(dispute);
        dispute.level--;
        (dispute.root, dispute.size, dispute.leaf) = (root, size, leaf);
        _narrow(dispute, 0, size);
    }

    /// The prover opens the leaf that is left; it is ruled upon.
    function _reveal(Dispute storage dispute, bytes32 leaf, bytes32[] calldata proof) internal {
        _isIn(dispute, leaf, proof, dispute.low);
        _toRuling(dispute, Ground.Leaf);
        dispute.leaf = leaf;
    }

    function _toRuling(Dispute storage dispute, Ground ground) internal {
        _turn(dispute);
        dispute.phase = Phase.Ruling;
        dispute.ground = ground;
        dispute.deadline = _time() + refereeWindow;
    }

    /// The party to move was silent for too long and loses; without a nonce in time, what was found before stands.
    function _timeout(Dispute storage dispute) internal {
        if (dispute.phase == Phase.Drawing) {
            allow(_time() >= dispute.deadline, "early");
            return _settleUndrawn(dispute);
        }
        allow(_timeLeft(dispute) <= 0, "early");
        _settle(dispute, dispute.phase == Phase.Choose ? Fault.Challenger : Fault.Prover);
    }

    /// A party's move stops its clock, and both have the extension at least, whoever moves next.
    function _turn(Dispute storage dispute) private {
        uint48 left = uint48(uint256(_timeLeft(dispute)));
        if (dispute.phase == Phase.Choose) dispute.challengerClock = left;
        else dispute.proverClock = left;
        if (dispute.proverClock < extension) dispute.proverClock = extension;
        if (dispute.challengerClock < extension) dispute.challengerClock = extension;
        dispute.since = _time();
        dispute.turn++;
    }

    function _parts(uint40 low, uint40 high) private view returns (uint256) {
        return high - low < ways ? high - low : ways;
    }

    /// Where child `number` of [low, high) ends: the children are as equal as integers allow, and none is empty.
    function _childEnd(uint40 low, uint40 high, uint256 parts, uint256 number) private pure returns (uint40) {
        return uint40(low + (number + 1) * (high - low) / parts);
    }
}
