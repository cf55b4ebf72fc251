// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Inclusion} from "./Inclusion.sol";
import {allow} from "./Refusal.sol";
import {Rulebook} from "./Rulebook.sol";
import {Claim, Credit, Dispute, Member, Pausing, Phase} from "./Types.sol";

/// What is known, at which moment, by whom a move is made, and the log from which anybody rebuilds the game.
abstract contract Book is Rulebook {
    Claim[] public claims;
    Dispute[] internal disputes;
    Pausing public pausing;
    /// How many moves there were: the number of the next one.
    uint64 public moves;

    mapping(uint256 place => Member) internal members;
    mapping(address party => Credit[]) internal credits;
    /// How many of a party's credits it has taken out.
    mapping(address party => uint256) internal takenOut;

    /// Every move: its number, who made it, when in real time, what came with it in gwei, and its function call in
    /// canonical ABI encoding, whatever spelling it arrived in. A draw names the nonce that was used.
    event Moved(uint64 indexed number, address indexed actor, uint64 time, uint64 value, bytes call);

    function _log(bytes memory call_) internal {
        emit Moved(moves++, _actor(), _now(), uint64(msg.value / 1 gwei), call_);
    }

    /// The first `words` arguments of this call: fixed-width arguments have one encoding.
    function _logWords(uint256 words) internal {
        _log(msg.data[:4 + 32 * words]);
    }

    /// The payment must be exactly the price, in whole gwei.
    function _pays(uint256 price) internal view {
        allow(msg.value == price * 1 gwei, "value");
    }

    function _isIn(Dispute storage dispute, bytes32 leaf, bytes32[] calldata proof, uint256 place) internal view {
        allow(Inclusion.holds(proof, leaf, place, dispute.size, dispute.root), "proof");
    }

    /// The seconds that the party to move has left; not positive once it is late.
    function _timeLeft(Dispute storage dispute) internal view returns (int256) {
        uint48 left = dispute.phase == Phase.Choose ? dispute.challengerClock : dispute.proverClock;
        return int256(uint256(left)) - int256(uint256(_time() - dispute.since));
    }

    /// Real time, in which money rests.
    function _now() internal view virtual returns (uint48) {
        return uint48(block.timestamp);
    }

    /// Game time, which pauses stop.
    function _time() internal view returns (uint48) {
        return (pausing.isPaused ? pausing.since : _now()) - pausing.total;
    }

    /// Who makes this move: the sender, or whose signed move is relayed.
    function _actor() internal view virtual returns (address) {
        if (msg.sender != address(this)) return msg.sender;
        return address(bytes20(msg.data[msg.data.length - 20:]));
    }
}
