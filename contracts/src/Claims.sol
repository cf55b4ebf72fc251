// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {allow} from "./Refusal.sol";
import {Settlement} from "./Settlement.sol";
import {Claim, Dispute, LEAVES_MAX, Phase, Status} from "./Types.sol";

/// Claims: posted with a bond, contested inside a window, final after it.
abstract contract Claims is Settlement {
    function _post(bytes32 root, uint40 size, uint8 levels, bytes32 seal) internal {
        Claim storage claim = claims.push();
        claim.prover = _actor();
        claim.root = root;
        claim.size = size;
        claim.levels = levels;
        claim.seal = seal;
        claim.deadline = _time() + challengeWindow;
        claim.bond = proverBond;
    }

    /// Any number of disputes may be open on one claim, each against its own bond.
    function _contest(uint64 number, uint40 low, uint40 high) internal {
        Claim storage claim = _openClaim(number);
        allow(_time() < claim.deadline, "window");
        allow(_actor() != claim.prover, "self");
        allow(low < high && high <= claim.size, "range");
        claim.disputes++;
        Dispute storage dispute = disputes.push();
        dispute.claim = uint56(number);
        dispute.challenger = _actor();
        dispute.level = claim.levels;
        (dispute.root, dispute.size) = (claim.root, claim.size);
        _narrow(dispute, low, high);
        (dispute.proverClock, dispute.challengerClock, dispute.since) = (clock, clock, _time());
        (dispute.bond, dispute.deposit) = (challengerBond, firstDeposit);
    }

    function _finalise(uint64 number) internal {
        Claim storage claim = _openClaim(number);
        allow(_time() >= claim.deadline, "early");
        allow(claim.disputes == 0, "disputed");
        uint64 bond = claim.bond;
        claim.status = Status.Final;
        claim.bond = 0;
        _credit(claim.prover, bond);
    }

    /// A range of several leaves is cut next; a single leaf is opened.
    function _narrow(Dispute storage dispute, uint40 low, uint40 high) internal {
        (dispute.low, dispute.high) = (low, high);
        dispute.phase = high - low == 1 ? Phase.Leaf : Phase.Partition;
    }

    function _isTree(uint40 size) internal pure {
        allow(size >= 1 && size <= LEAVES_MAX, "malformed");
    }

    function _openClaim(uint64 number) private view returns (Claim storage claim) {
        allow(number < claims.length, "unknown");
        claim = claims[number];
        allow(claim.status == Status.Open, "closed");
    }
}
