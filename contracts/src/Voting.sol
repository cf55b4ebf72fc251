// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Committee} from "./Committee.sol";
import {allow} from "./Refusal.sol";
import {Appealed, Claim, Dispute, Fault, Member, Phase, Round} from "./Types.sol";

/// Votes of a committee: drawn, committed, disclosed, counted, appealed, and checked against planted answers.
abstract contract Voting is Committee {
    /// A draw came too late for its block: the hash of `drawBlock` draws instead.
    event Rearmed(uint64 indexed dispute, uint64 drawBlock);

    /// A member of the rules stakes, and can be drawn.
    function _enlist() internal {
        uint256 place = _place(_actor());
        allow(place > 0, "actor");
        allow(members[place].stake == 0, "enlisted");
        members[place].stake = memberStake;
        members[place].isActive = true;
    }

    /// A member that sits in no committee gets its stake back, once no planted case can show any more.
    function _retire() internal {
        Member storage member = members[_place(_actor())];
        uint64 stake = member.stake;
        allow(stake > 0, "actor");
        allow(member.serving == 0, "serving");
        allow(_time() >= member.boundUntil, "early");
        member.stake = 0;
        member.isActive = false;
        _credit(_actor(), stake);
    }

    /// A committee of `seats` is to be drawn by a block that does not exist yet.
    function _callDraw(Dispute storage dispute, uint256 seats) internal {
        dispute.phase = Phase.Drawing;
        dispute.seats = uint8(seats);
        dispute.deadline = _time() + voteWindow;
        _arm(dispute);
    }

    /// The nonce draws the committee among those who can be drawn now.
    function _draw(Dispute storage dispute, uint64 number, uint8[] memory pool, uint256 count, bytes32 nonce) internal {
        bytes memory seats = _drawn(pool, count, nonce, number, dispute.rounds.length);
        for (uint256 i = 0; i < count; i++) {
            members[uint8(seats[i])].serving++;
        }
        Round storage sitting = dispute.rounds.push();
        sitting.seats = seats;
        sitting.votes = new bytes(count);
        dispute.phase = Phase.Committing;
        dispute.deadline = _time() + voteWindow;
    }

    /// The hash of the block that was named when the committee was called. It can be read for 256 blocks; after
    /// that another block is named, so that nobody can wait for a hash it likes without everybody else letting it.
    function _hashOfDrawBlock(Dispute storage dispute, uint64 number) internal virtual returns (bytes32 hash) {
        allow(block.number > dispute.drawBlock, "nonce");
        hash = blockhash(dispute.drawBlock);
        if (hash == 0) emit Rearmed(number, _arm(dispute));
    }

    /// A drawn member commits to its vote, once; when all have, they may disclose.
    function _vote(Dispute storage dispute, bytes32 commitment) internal {
        allow(_time() < dispute.deadline, "late");
        Round storage sitting = _sitting(dispute);
        bytes memory seats = sitting.seats;
        uint256 seat = _seat(seats);
        allow((sitting.committed >> seat) & 1 == 0, "again");
        sitting.commitments[seat] = commitment;
        sitting.committed |= 1 << seat;
        if (sitting.committed == (1 << seats.length) - 1) {
            dispute.phase = Phase.Revealing;
            dispute.deadline = _time() + revealWindow;
        }
    }

    /// A member shows the vote that it committed to.
    function _disclose(Dispute storage dispute, uint64 number, Fault vote, bytes32 salt) internal {
        if (dispute.phase == Phase.Committing) {
            allow(_time() >= dispute.deadline, "early");
            dispute.phase = Phase.Revealing;
            dispute.deadline += revealWindow;
        }
        allow(_time() < dispute.deadline, "late");
        Round storage sitting = _sitting(dispute);
        uint256 seat = _seat(sitting.seats);
        allow(sitting.votes[seat] == 0, "again");
        bytes32 expected = _commitment(number, dispute.rounds.length - 1, _actor(), vote, salt);
        allow(sitting.commitments[seat] == expected, "commitment");
        sitting.votes[seat] = bytes1(uint8(vote));
    }

    /// The votes are counted and paid for; the finding can be appealed while larger committees are left.
    function _tally(Dispute storage dispute) internal {
        Round storage sitting = _sitting(dispute);
        bytes memory votes = sitting.votes;
        allow(_isOver(dispute, votes, sitting.committed), "early");
        _payFor(dispute, sitting.seats, votes);
        Fault finding = _majority(votes);
        if (dispute.rounds.length > appealsMax) return _settle(dispute, finding);
        dispute.phase = Phase.Appealable;
        dispute.fault = finding;
        dispute.deadline = _time() + appealWindow;
    }

    /// Whoever the finding goes against, either party if it goes against nobody, asks a committee of 2m + 1.
    function _appeal(Dispute storage dispute) internal {
        allow(_time() < dispute.deadline, "late");
        allow(_isLoser(dispute, _actor()), "actor");
        uint256 wanted = _nextSeats(dispute);
        allow(_seats(_eligible(dispute).length, wanted) == wanted, "pool");
        dispute.deposit += uint64(voteFee * wanted);
        dispute.appeals.push(Appealed(_actor(), dispute.fault, appealBond));
        dispute.fault = Fault.None;
        _callDraw(dispute, wanted);
    }

    /// The finding takes effect when nobody has appealed in time.
    function _settleUnappealed(Dispute storage dispute) internal {
        allow(_time() >= dispute.deadline, "early");
        _settle(dispute, dispute.fault);
    }

    /// Members who voted against a planted answer lose their stake and are drawn no more.
    function _unseal(Dispute storage dispute, Fault answer, bytes32 salt) internal {
        allow(!dispute.isUnsealed, "again");
        Claim storage claim = claims[dispute.claim];
        allow(claim.seal == _seal(claim.prover, answer, salt), "seal");
        for (uint256 i = 0; i < dispute.rounds.length; i++) {
            (bytes memory seats, bytes memory votes) = (dispute.rounds[i].seats, dispute.rounds[i].votes);
            for (uint256 seat = 0; seat < seats.length; seat++) {
                uint256 place = uint8(seats[seat]);
                if (votes[seat] != 0 && uint8(votes[seat]) != uint8(answer)) _fine(place, members[place].stake);
            }
        }
        dispute.isUnsealed = true;
    }

    /// How many members an appeal draws.
    function _nextSeats(Dispute storage dispute) internal view returns (uint256) {
        return 2 * _sitting(dispute).seats.length + 1;
    }

    function _arm(Dispute storage dispute) private returns (uint64 drawBlock) {
        drawBlock = uint64(block.number + 1);
        dispute.drawBlock = drawBlock;
    }

    function _sitting(Dispute storage dispute) private view returns (Round storage) {
        return dispute.rounds[dispute.rounds.length - 1];
    }

    function _seat(bytes memory seats) private view returns (uint256 seat) {
        uint256 place = _place(_actor());
        while (seat < seats.length && uint8(seats[seat]) != place) seat++;
        allow(seat < seats.length, "actor");
    }

    function _isLoser(Dispute storage dispute, address party) private view returns (bool) {
        bool isProver = party == claims[dispute.claim].prover;
        if (dispute.fault == Fault.Nobody) return isProver || party == dispute.challenger;
        return dispute.fault == Fault.Prover ? isProver : party == dispute.challenger;
    }

    function _isOver(Dispute storage dispute, bytes memory votes, uint256 committed) private view returns (bool) {
        if (dispute.phase == Phase.Committing) return _time() >= dispute.deadline + revealWindow;
        return _time() >= dispute.deadline || _haveDisclosed(votes, committed);
    }

    /// Whether every member that committed to a vote has disclosed it.
    function _haveDisclosed(bytes memory votes, uint256 committed) private pure returns (bool) {
        for (uint256 seat = 0; seat < votes.length; seat++) {
            if (votes[seat] == 0 && (committed >> seat) & 1 == 1) return false;
        }
        return true;
    }

    /// Each seat costs its fee: it goes to the member that voted, and with a fine to the treasury if it did not.
    function _payFor(Dispute storage dispute, bytes memory seats, bytes memory votes) private {
        for (uint256 seat = 0; seat < seats.length; seat++) {
            uint256 place = uint8(seats[seat]);
            members[place].serving--;
            members[place].boundUntil = _time() + holding;
            _credit(votes[seat] != 0 ? memberAt[place - 1] : treasury, voteFee);
            if (votes[seat] == 0) _fine(place, voteFee);
        }
        dispute.deposit -= uint64(voteFee * seats.length);
    }
}
