// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Ledger} from "./Ledger.sol";
import {Appealed, Claim, Dispute, Fault, Phase, Status} from "./Types.sol";

/// Who gets what when a dispute ends: every bond leaves exactly once.
abstract contract Settlement is Ledger {
    function _settle(Dispute storage dispute, Fault fault) internal {
        _returnAppeals(dispute, fault);
        _shareOut(dispute, fault);
        _close(dispute, fault);
    }

    /// Where no committee can be drawn, the finding that was appealed against stands, if there is one.
    function _settleUndrawn(Dispute storage dispute) internal {
        uint256 appeals = dispute.appeals.length;
        _settle(dispute, appeals > 0 ? dispute.appeals[appeals - 1].against : Fault.Nobody);
    }

    /// A dispute over a claim that is slashed already: everybody gets back what is left.
    function _dismiss(Dispute storage dispute) internal {
        for (uint256 i = 0; i < dispute.appeals.length; i++) {
            _credit(dispute.appeals[i].party, dispute.appeals[i].bond);
        }
        _credit(dispute.challenger, dispute.bond + dispute.deposit);
        if (dispute.phase == Phase.Committing || dispute.phase == Phase.Revealing) _release(dispute);
        _close(dispute, Fault.Nobody);
    }

    /// An appeal's bond goes back if the appeal was right, and to the other party if not.
    function _returnAppeals(Dispute storage dispute, Fault fault) private {
        address prover = claims[dispute.claim].prover;
        for (uint256 i = 0; i < dispute.appeals.length; i++) {
            Appealed storage each = dispute.appeals[i];
            address other = each.party == dispute.challenger ? prover : dispute.challenger;
            _credit(each.against != fault ? each.party : other, each.bond);
        }
    }

    function _shareOut(Dispute storage dispute, Fault fault) private {
        if (fault == Fault.Prover) return _slashProver(dispute);
        _credit(fault == Fault.Challenger ? claims[dispute.claim].prover : dispute.challenger, dispute.bond);
        _credit(dispute.challenger, dispute.deposit);
    }

    /// The challenger is made whole and rewarded out of the prover's bond; the rest is the treasury's.
    function _slashProver(Dispute storage dispute) private {
        Claim storage claim = claims[dispute.claim];
        uint256 bond = claim.bond;
        uint256 spent = firstDeposit > dispute.deposit ? firstDeposit - dispute.deposit : 0;
        uint256 rewarded = (bond - spent) * reward / 1000;
        claim.status = Status.Slashed;
        claim.bond = 0;
        _credit(dispute.challenger, dispute.bond + dispute.deposit + spent + rewarded);
        _credit(treasury, bond - spent - rewarded);
    }

    function _close(Dispute storage dispute, Fault fault) private {
        claims[dispute.claim].disputes--;
        dispute.phase = Phase.Settled;
        dispute.fault = fault;
        dispute.bond = 0;
        dispute.deposit = 0;
        dispute.deadline = _time();
        for (uint256 i = 0; i < dispute.appeals.length; i++) {
            dispute.appeals[i].bond = 0;
        }
    }

    /// Members of a committee that never counted its votes are free again.
    function _release(Dispute storage dispute) private {
        bytes memory seats = dispute.rounds[dispute.rounds.length - 1].seats;
        for (uint256 i = 0; i < seats.length; i++) {
            members[uint8(seats[i])].serving--;
        }
    }
}
