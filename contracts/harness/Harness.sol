// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Coordinator} from "../src/Coordinator.sol";
import {Claim, Credit, Dispute, Member, Round, Rules} from "../src/Types.sol";

/// The coordinator with clock, actor and nonce in the hands of a test, and with its state in plain sight.
contract Harness is Coordinator {
    uint48 private time;
    address private actor;
    bytes32 private nonce;

    constructor(Rules memory rules, address board) Coordinator(rules, board) {}

    function set(uint48 time_, address actor_, bytes32 nonce_) external {
        (time, actor, nonce) = (time_, actor_, nonce_);
    }

    /// Everything that a move over `dispute` or `claim` can touch, in fixed widths; numbers have 8 bytes.
    function touched(uint64 claim, uint64 dispute, address[] calldata parties) external view returns (bytes memory) {
        bytes memory text = bytes.concat(_whole(), _members());
        if (claim < claims.length) text = bytes.concat(text, _claim(claims[claim]));
        if (dispute < disputes.length) text = bytes.concat(text, _dispute(disputes[dispute]));
        for (uint256 i = 0; i < parties.length; i++) {
            text = bytes.concat(text, _owed(parties[i]));
        }
        return text;
    }

    function _whole() private view returns (bytes memory) {
        uint64 balance = uint64(address(this).balance / 1 gwei);
        bytes memory counts = abi.encodePacked(moves, balance, uint64(claims.length), uint64(disputes.length));
        (uint64 since, uint64 total, uint64 from) = (pausing.since, pausing.total, pausing.allowedFrom);
        return abi.encodePacked(counts, pausing.isPaused, since, total, from);
    }

    function _members() private view returns (bytes memory text) {
        for (uint256 place = 1; place <= memberAt.length; place++) {
            Member storage each = members[place];
            text = abi.encodePacked(text, each.stake, each.isActive, uint64(each.serving), uint64(each.boundUntil));
        }
    }

    function _claim(Claim storage claim) private view returns (bytes memory) {
        bytes memory who = abi.encodePacked(claim.prover, uint64(claim.deadline), uint8(claim.status), claim.levels);
        return abi.encodePacked(who, claim.bond, uint64(claim.size), claim.disputes, claim.root, claim.seal);
    }

    function _dispute(Dispute storage each) private view returns (bytes memory text) {
        text = abi.encodePacked(each.challenger, uint64(each.claim), uint8(each.phase), uint8(each.fault));
        text = abi.encodePacked(text, uint8(each.ground), each.level, each.isUnsealed, each.root, each.leaf);
        text = abi.encodePacked(text, uint64(each.size), uint64(each.low), uint64(each.high), uint64(each.turn));
        text = abi.encodePacked(text, each.seats, uint64(each.proverClock), uint64(each.challengerClock));
        text = abi.encodePacked(text, uint64(each.since), uint64(each.deadline), each.bond, each.deposit);
        for (uint256 i = 0; i < each.rounds.length; i++) {
            text = bytes.concat(text, _round(each.rounds[i]));
        }
        for (uint256 i = 0; i < each.appeals.length; i++) {
            text = abi.encodePacked(text, each.appeals[i].party, uint8(each.appeals[i].against), each.appeals[i].bond);
        }
    }

    function _round(Round storage round) private view returns (bytes memory text) {
        for (uint256 seat = 0; seat < round.seats.length; seat++) {
            address member = memberAt[uint8(round.seats[seat]) - 1];
            bool hasCommitted = (round.committed >> seat) & 1 == 1;
            text = abi.encodePacked(text, member, hasCommitted, round.commitments[seat], round.votes[seat]);
        }
    }

    function _owed(address party) private view returns (bytes memory text) {
        Credit[] storage owed = credits[party];
        for (uint256 i = takenOut[party]; i < owed.length; i++) {
            text = abi.encodePacked(text, owed[i].amount, uint64(owed[i].ripe));
        }
        return abi.encodePacked(uint64(owed.length - takenOut[party]), text);
    }

    function _now() internal view override returns (uint48) {
        return time;
    }

    function _actor() internal view override returns (address) {
        return actor;
    }

    function _hashOfDrawBlock(Dispute storage, uint64) internal view override returns (bytes32) {
        return nonce;
    }
}
