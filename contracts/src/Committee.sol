// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Bisection} from "./Bisection.sol";
import {Dispute, Fault, Member} from "./Types.sol";

/// Committees: who can be drawn, whom a nonce draws, how a vote is committed to, and what the votes say.
abstract contract Committee is Bisection {
    /// The places of the members that can be drawn: active, staked, and no party of the dispute.
    function _eligible(Dispute storage dispute) internal view returns (uint8[] memory pool) {
        uint256 prover = _place(claims[dispute.claim].prover);
        uint256 challenger = _place(dispute.challenger);
        uint256 count = memberAt.length;
        uint256 found = 0;
        pool = new uint8[](count);
        for (uint256 place = 1; place <= count; place++) {
            if (members[place].isActive && place != prover && place != challenger) pool[found++] = uint8(place);
        }
        assembly ("memory-safe") {
            mstore(pool, found)
        }
    }

    /// The size of the next committee: `wanted`, or the largest odd number of members that there are.
    function _seats(uint256 eligible, uint256 wanted) internal pure returns (uint256) {
        uint256 found = wanted < eligible ? wanted : eligible;
        return found % 2 == 1 || found == 0 ? found : found - 1;
    }

    /// `count` members without repetition: a partial Fisher–Yates shuffle, keyed by nonce, dispute and round.
    function _drawn(uint8[] memory pool, uint256 count, bytes32 nonce, uint64 dispute, uint256 round)
        internal
        pure
        returns (bytes memory seats)
    {
        seats = new bytes(count);
        for (uint256 i = 0; i < count; i++) {
            bytes memory key = abi.encodePacked("tallystick/draw/v1\n", nonce, dispute, uint64(round), uint64(i));
            uint256 j = i + uint256(sha256(key)) % (pool.length - i);
            (pool[i], pool[j]) = (pool[j], pool[i]);
            seats[i] = bytes1(pool[i]);
        }
    }

    /// What a member publishes before it says how it votes in a round; nobody can copy it.
    function _commitment(uint64 dispute, uint256 round, address member, Fault vote, bytes32 salt)
        internal
        pure
        returns (bytes32)
    {
        return sha256(abi.encodePacked("tallystick/vote/v1\n", dispute, uint64(round), member, uint8(vote), salt));
    }

    /// What a planted claim carries in the place where others carry random bytes.
    function _seal(address prover, Fault answer, bytes32 salt) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tallystick/seal/v1\n", prover, uint8(answer), salt));
    }

    /// What more than half of the drawn members found; `Nobody` where no finding has that many votes.
    function _majority(bytes memory votes) internal pure returns (Fault) {
        uint256[4] memory counts;
        for (uint256 i = 0; i < votes.length; i++) {
            counts[uint8(votes[i])]++;
        }
        if (2 * counts[uint8(Fault.Prover)] > votes.length) return Fault.Prover;
        if (2 * counts[uint8(Fault.Challenger)] > votes.length) return Fault.Challenger;
        return Fault.Nobody;
    }

    /// Part of a stake goes to the treasury; a member whose stake cannot pay another fine is drawn no more.
    function _fine(uint256 place, uint256 fine) internal {
        Member storage member = members[place];
        uint256 taken = fine < member.stake ? fine : member.stake;
        member.stake -= uint64(taken);
        if (member.stake < voteFee || member.stake == 0) member.isActive = false;
        _credit(treasury, taken);
    }
}
