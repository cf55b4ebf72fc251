// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Book} from "./Book.sol";
import {allow} from "./Refusal.sol";
import {Pausing} from "./Types.sol";

/// The guardian can stop game time for a while and not again soon; it cannot touch money.
/// While game time stands still no clock runs and no move is taken, except that what is owed can be withdrawn.
abstract contract Pauses is Book {
    /// A pause that has lasted long enough is over by itself; during any other one the move is refused.
    function _whileRunning() internal {
        _liftExpired();
        allow(!pausing.isPaused, "paused");
    }

    function _liftExpired() internal {
        if (pausing.isPaused && _now() >= pausing.since + pauseMax) _end(pausing.since + pauseMax);
    }

    function _pause() internal {
        allow(_now() >= pausing.allowedFrom, "rest");
        pausing.isPaused = true;
        pausing.since = _now();
    }

    function _resume() internal {
        allow(pausing.isPaused, "running");
        _end(_now());
    }

    function _end(uint48 end) private {
        uint48 lasted = pausing.total + end - pausing.since;
        pausing = Pausing({isPaused: false, since: 0, total: lasted, allowedFrom: end + pauseRest});
    }
}
