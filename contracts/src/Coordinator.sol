// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {allow} from "./Refusal.sol";
import {Rulebook} from "./Rulebook.sol";
import {Ruling} from "./Ruling.sol";
import {Signed} from "./Signed.sol";
import {
    Cut,
    Dispute,
    Evidence,
    Fault,
    Ground,
    LEAVES_MAX,
    Phase,
    PROOF_MAX,
    Rules,
    Status,
    WAYS_MAX
} from "./Types.sol";

/// The coordinator of disputes for parties who trust no common host: claims and disputes with bonds, clocks and a
/// ruling. It cannot be upgraded, owns nothing, and nobody has a key to it.
///
/// The functions are the moves, with the same names, rules and refusals as in every other coordinator. A refusal
/// reverts with its code as the reason. They are asked in this order: form, pause, existence, whether the dispute is
/// over or moot, phase, actor, turn, clock, payment; then what is particular to the move.
contract Coordinator is Ruling, Signed {
    enum Who {
        Anybody,
        Prover,
        Challenger,
        Party,
        Referee,
        Beacon
    }

    uint256 private constant PARTITION = 1 << uint256(Phase.Partition);
    uint256 private constant CHOOSE = 1 << uint256(Phase.Choose);
    uint256 private constant LEAF = 1 << uint256(Phase.Leaf);
    uint256 private constant BISECTING = PARTITION | CHOOSE | LEAF;
    uint256 private constant RULING = 1 << uint256(Phase.Ruling);
    uint256 private constant DRAWING = 1 << uint256(Phase.Drawing);
    uint256 private constant COMMITTING = 1 << uint256(Phase.Committing);
    uint256 private constant REVEALING = 1 << uint256(Phase.Revealing);
    uint256 private constant APPEALABLE = 1 << uint256(Phase.Appealable);

    constructor(Rules memory rules, address board) Rulebook(rules, board) Signed(board) {}

    // ---- claims

    /// Claim that the tree `root` of `size` records is what an honest run gives; at level 1 its leaves are operators.
    /// `statement` is the digest of what is claimed; only the log keeps it.
    function post(bytes32 root, uint40 size, uint8 levels, bytes32 statement, bytes32 seal) external payable {
        statement;
        _isTree(size);
        allow(levels == 1 || levels == 2, "malformed");
        _whileRunning();
        _pays(proverBond);
        _post(root, size, levels, seal);
        _logWords(5);
    }

    /// Say that leaves [low, high) of a claim hold a fault: before them the parties agree, after them they do not.
    function contest(uint64 claim, uint40 low, uint40 high) external payable {
        allow(low <= LEAVES_MAX && high <= LEAVES_MAX, "malformed");
        _whileRunning();
        _pays(uint256(challengerBond) + firstDeposit);
        _contest(claim, low, high);
        _logWords(3);
    }

    /// Close a claim whose window is over; its bond goes back.
    function finalise(uint64 claim) external {
        _whileRunning();
        _finalise(claim);
        _logWords(1);
    }

    // ---- bisection: these moves race a clock

    /// The leaves at the ends of all children but the last; `data` holds what crosses the cuts.
    function partition(uint64 number, uint64 turn, Cut[] calldata cuts, bytes32 data, bytes calldata attestation)
        external
    {
        allow(cuts.length >= 1 && cuts.length < WAYS_MAX, "malformed");
        for (uint256 i = 0; i < cuts.length; i++) {
            _isProof(cuts[i].proof);
        }
        Dispute storage dispute = _inTurn(number, turn, PARTITION, Who.Prover);
        _isKept(number, turn, data, attestation);
        _partition(dispute, cuts);
        _log(abi.encodeCall(this.partition, (number, turn, cuts, data, "")));
    }

    /// The first child whose inputs agree and whose outputs leave the tolerance.
    function choose(uint64 number, uint64 turn, uint8 child) external {
        allow(child < WAYS_MAX, "malformed");
        _choose(_inTurn(number, turn, CHOOSE, Who.Challenger), child);
        _logWords(3);
    }

    /// Instead of a choice: what lies at the board does not hang together, or its errors are aligned.
    function protest(uint64 number, uint64 turn, Ground ground) external {
        allow(ground == Ground.Structure || ground == Ground.Budget, "malformed");
        _toRuling(_inTurn(number, turn, CHOOSE, Who.Challenger), ground);
        _logWords(3);
    }

    /// Open the one record that is left, and name the finer tree of the operators below it.
    function descend(
        uint64 number,
        uint64 turn,
        bytes32 leaf,
        bytes32[] calldata proof,
        bytes32 root,
        uint40 size,
        bytes32 data,
        bytes calldata attestation
    ) external {
        _isProof(proof);
        _isTree(size);
        Dispute storage dispute = _inTurn(number, turn, LEAF, Who.Prover);
        _isKept(number, turn, data, attestation);
        _descend(dispute, leaf, proof, root, size);
        _log(abi.encodeCall(this.descend, (number, turn, leaf, proof, root, size, data, "")));
    }

    /// Open the one leaf that is left; `data` holds the operator with the values it read and gave.
    function reveal(
        uint64 number,
        uint64 turn,
        bytes32 leaf,
        bytes32[] calldata proof,
        bytes32 data,
        bytes calldata attestation
    ) external {
        _isProof(proof);
        Dispute storage dispute = _inTurn(number, turn, LEAF, Who.Prover);
        _isKept(number, turn, data, attestation);
        _reveal(dispute, leaf, proof);
        _log(abi.encodeCall(this.reveal, (number, turn, leaf, proof, data, "")));
    }

    // ---- ends

    /// Say which element of the opened operator is wrong; only the log keeps it. The last one that is named counts.
    function pinpoint(uint64 number, uint32 result, uint48 element) external {
        result;
        element;
        _isOperator(_at(number, RULING | DRAWING, Who.Challenger));
        _logWords(3);
    }

    /// Give up.
    function concede(uint64 number) external {
        Dispute storage dispute = _at(number, BISECTING | RULING, Who.Party);
        _settle(dispute, _actor() == dispute.challenger ? Fault.Challenger : Fault.Prover);
        _logWords(1);
    }

    /// State that the clock of the party to move has run out, or that the nonce of a draw has not come in time.
    function timeout(uint64 number) external {
        _timeout(_at(number, BISECTING | DRAWING, Who.Anybody));
        _logWords(1);
    }

    /// The referee's ruling, with the digest of its reasons.
    function rule(uint64 number, Fault fault, bytes32 reason) external {
        reason;
        _isFault(fault);
        _settle(_at(number, RULING, Who.Referee), fault);
        _logWords(3);
    }

    /// Convict the prover by a check that this contract makes itself.
    function prove(uint64 number, Evidence calldata evidence) external {
        _prove(_at(number, RULING, Who.Anybody), evidence);
        _log(abi.encodeCall(this.prove, (number, evidence)));
    }

    /// Close a dispute over a claim that another dispute slashed; the challenger gets everything back.
    function dismiss(uint64 number) external {
        Dispute storage dispute = _unsettled(number);
        allow(claims[dispute.claim].status != Status.Open, "open");
        _dismiss(dispute);
        _logWords(1);
    }

    // ---- committee

    /// Call a committee.
    function convene(uint64 number) external {
        _convene(_at(number, RULING, Who.Anybody));
        _logWords(1);
    }

    /// Draw the committee. `nonce` is the beacon's; where the rules name no beacon, the hash of a block after the
    /// call is used in its place. If that hash cannot be read any more, another block is named and nothing is drawn.
    function draw(uint64 number, bytes32 nonce) external {
        Dispute storage dispute = _at(number, DRAWING, Who.Beacon);
        uint8[] memory pool = _eligible(dispute);
        uint256 count = _seats(pool.length, dispute.seats);
        if (count > 0) {
            if (beacon == address(0)) nonce = _hashOfDrawBlock(dispute, number);
            if (nonce == 0 && beacon == address(0)) return;
            _draw(dispute, number, pool, count, nonce);
        } else {
            _settleUndrawn(dispute);
        }
        _log(abi.encodeCall(this.draw, (number, nonce)));
    }

    /// Commit to a vote.
    function vote(uint64 number, bytes32 commitment) external {
        _vote(_at(number, COMMITTING, Who.Anybody), commitment);
        _logWords(2);
    }

    /// Show the vote that was committed to.
    function disclose(uint64 number, Fault vote_, bytes32 salt) external {
        _isFault(vote_);
        _disclose(_at(number, COMMITTING | REVEALING, Who.Anybody), number, vote_, salt);
        _logWords(3);
    }

    /// Add the votes up.
    function tally(uint64 number) external {
        _tally(_at(number, COMMITTING | REVEALING, Who.Anybody));
        _logWords(1);
    }

    /// Ask a larger committee; pays its fees and a bond that is lost if nothing changes.
    function appeal(uint64 number) external payable {
        Dispute storage dispute = _at(number, APPEALABLE, Who.Party);
        _pays(appealBond + voteFee * _nextSeats(dispute));
        _appeal(dispute);
        _logWords(1);
    }

    /// Let the votes take effect once nobody has appealed.
    function settle(uint64 number) external {
        _settleUnappealed(_at(number, APPEALABLE, Who.Anybody));
        _logWords(1);
    }

    /// The planter shows that the claim of a dispute was planted, and what the answer was.
    function unseal(uint64 number, Fault answer, bytes32 salt) external {
        _isFault(answer);
        _whileRunning();
        Dispute storage dispute = _existing(number);
        allow(dispute.phase == Phase.Settled, "phase");
        allow(_actor() == planter, "actor");
        _unseal(dispute, answer, salt);
        _logWords(3);
    }

    /// Stake as a member, so as to be drawn.
    function enlist() external payable {
        _whileRunning();
        _pays(memberStake);
        _enlist();
        _logWords(0);
    }

    /// Stop being drawn, and get the stake back.
    function retire() external {
        _whileRunning();
        _retire();
        _logWords(0);
    }

    // ---- money and time

    /// Take out what is owed and has rested long enough. It is struck out before it is paid.
    function withdraw() external {
        _liftExpired();
        address party = _actor();
        uint256 amount = _strikeOut(party);
        _logWords(0);
        (bool isPaid,) = party.call{value: amount * 1 gwei}("");
        allow(isPaid, "receiver");
    }

    /// Stop game time, for a while.
    function pause() external {
        _whileRunning();
        allow(_actor() == guardian, "actor");
        _pause();
        _logWords(0);
    }

    /// Let game time go on.
    function resume() external {
        _liftExpired();
        allow(_actor() == guardian, "actor");
        _resume();
        _logWords(0);
    }

    /// Where a dispute stands: what a wallet shows. Everything else is rebuilt from the log.
    function disputeAt(uint64 number)
        external
        view
        returns (Phase phase, Fault fault, uint64 turn, uint48 deadline, uint64 drawBlock)
    {
        Dispute storage dispute = _existing(number);
        return (dispute.phase, dispute.fault, dispute.turn, dispute.deadline, dispute.drawBlock);
    }

    // ---- the questions that every move inside a dispute is asked

    function _inTurn(uint64 number, uint64 turn, uint256 phases, Who who) private returns (Dispute storage dispute) {
        dispute = _at(number, phases, who);
        allow(turn == dispute.turn, "turn");
        allow(_timeLeft(dispute) > 0, "late");
    }

    function _at(uint64 number, uint256 phases, Who who) private returns (Dispute storage dispute) {
        dispute = _unsettled(number);
        allow(claims[dispute.claim].status == Status.Open, "moot");
        allow((phases >> uint256(dispute.phase)) & 1 == 1, "phase");
        allow(_isOne(who, dispute), "actor");
    }

    function _unsettled(uint64 number) private returns (Dispute storage dispute) {
        _whileRunning();
        dispute = _existing(number);
        allow(dispute.phase != Phase.Settled, "settled");
    }

    function _existing(uint64 number) private view returns (Dispute storage) {
        allow(number < disputes.length, "unknown");
        return disputes[number];
    }

    /// Whether the actor is somebody who may; anybody asks for the nonce where the rules name no beacon.
    function _isOne(Who who, Dispute storage dispute) private view returns (bool) {
        address actor = _actor();
        if (who == Who.Anybody) return true;
        if (who == Who.Beacon) return beacon == address(0) || actor == beacon;
        if (who == Who.Referee) return actor == referee;
        bool isProver = who != Who.Challenger && actor == claims[dispute.claim].prover;
        return isProver || (who != Who.Prover && actor == dispute.challenger);
    }

    function _isProof(bytes32[] calldata proof) private pure {
        allow(proof.length <= PROOF_MAX, "malformed");
    }

    function _isFault(Fault fault) private pure {
        allow(fault != Fault.None, "malformed");
    }
}
