// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {allow} from "./Refusal.sol";
import {MEMBERS_MAX, MONEY_MAX, Rules, WAYS_MAX} from "./Types.sol";

/// The rules, fixed when the contract is made: nobody can change them, and the code cannot be replaced.
abstract contract Rulebook {
    uint64 internal immutable proverBond;
    uint64 internal immutable challengerBond;
    uint64 internal immutable appealBond;
    uint64 internal immutable memberStake;
    uint64 internal immutable voteFee;
    uint64 internal immutable firstDeposit;
    uint64 internal immutable reward;
    uint48 internal immutable challengeWindow;
    uint48 internal immutable clock;
    uint48 internal immutable extension;
    uint48 internal immutable refereeWindow;
    uint48 internal immutable voteWindow;
    uint48 internal immutable revealWindow;
    uint48 internal immutable appealWindow;
    uint48 internal immutable withdrawalDelay;
    /// How long a vote can be held against a member once it is counted: what may follow it, and one delay.
    uint48 internal immutable holding;
    uint48 internal immutable pauseMax;
    uint48 internal immutable pauseRest;
    uint256 internal immutable ways;
    uint256 internal immutable committee;
    uint256 internal immutable appealsMax;
    address internal immutable referee;
    address internal immutable beacon;
    address internal immutable planter;
    address internal immutable guardian;
    address internal immutable treasury;

    /// The members in the order of the rules; draws name them by their place.
    address[] public memberAt;
    mapping(address => uint256) private placeOf;

    /// What the rules say, once and for all; `board` is the party that attests to keeping data, or nobody.
    event Founded(Rules rules, address board);

    constructor(Rules memory rules, address board) {
        _makeSense(rules);
        proverBond = rules.proverBond;
        challengerBond = rules.challengerBond;
        appealBond = rules.appealBond;
        memberStake = rules.stake;
        voteFee = rules.voteFee;
        firstDeposit = rules.voteFee * rules.committee;
        reward = rules.reward;
        challengeWindow = rules.challengeWindow;
        clock = rules.clock;
        extension = rules.extension;
        refereeWindow = rules.refereeWindow;
        voteWindow = rules.voteWindow;
        revealWindow = rules.revealWindow;
        appealWindow = rules.appealWindow;
        withdrawalDelay = rules.withdrawalDelay;
        uint48 sitting = 2 * uint48(rules.voteWindow) + rules.revealWindow + rules.appealWindow;
        holding = rules.appeals * sitting + rules.appealWindow + rules.withdrawalDelay;
        pauseMax = rules.pauseMax;
        pauseRest = rules.pauseRest;
        ways = rules.ways;
        committee = rules.committee;
        appealsMax = rules.appeals;
        referee = rules.referee;
        beacon = rules.beacon;
        planter = rules.planter;
        guardian = rules.guardian;
        treasury = rules.treasury;
        _enrol(rules.members);
        emit Founded(rules, board);
    }

    /// The place of a member in the rules, counted from 1; 0 for anybody else.
    function _place(address party) internal view returns (uint256) {
        return placeOf[party];
    }

    function _enrol(address[] memory members) private {
        for (uint256 i = 0; i < members.length; i++) {
            allow(members[i] != address(0) && placeOf[members[i]] == 0, "members");
            memberAt.push(members[i]);
            placeOf[members[i]] = i + 1;
        }
    }

    function _makeSense(Rules memory rules) private pure {
        _isMoney(rules.proverBond);
        _isMoney(rules.challengerBond);
        _isMoney(rules.appealBond);
        _isMoney(rules.stake);
        _isMoney(rules.voteFee);
        _isWindow(rules.challengeWindow);
        _isWindow(rules.clock);
        _isWindow(rules.extension);
        _isWindow(rules.refereeWindow);
        _isWindow(rules.voteWindow);
        _isWindow(rules.revealWindow);
        _isWindow(rules.appealWindow);
        _isWindow(rules.withdrawalDelay);
        _isWindow(rules.pauseMax);
        _isWindow(rules.pauseRest);
        allow(rules.reward <= 1000, "reward");
        allow(rules.ways >= 2 && rules.ways <= WAYS_MAX, "ways");
        allow(rules.committee >= 1 && rules.committee <= 63, "committee");
        allow(rules.appeals <= 4, "appeals");
        allow(rules.members.length <= MEMBERS_MAX, "members");
        allow(rules.treasury != address(0), "treasury");
        allow(uint256(rules.voteFee) * rules.committee <= rules.proverBond, "bond");
        allow(rules.voteFee <= rules.stake, "stake");
    }

    function _isMoney(uint64 amount) private pure {
        allow(amount <= MONEY_MAX, "money");
    }

    function _isWindow(uint40 duration) private pure {
        allow(duration >= 1 && duration <= 2 ** 32, "window");
    }
}
