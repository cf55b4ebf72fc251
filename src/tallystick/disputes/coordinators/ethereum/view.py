"""Compare the contract's own view of its state with the state that its log gives in the game."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.ethereum import chain
from tallystick.disputes.coordinators.ethereum.chain import Reverted
from tallystick.disputes.coordinators.ethereum.encoding import decode_answer, encode_call
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint
from tallystick.disputes.game.moves import Contest, Finalise, Post
from tallystick.disputes.game.state import Phase, State, Status
from tallystick.errors import MalformedError, UnavailableError
from tallystick.judging.fault import Fault

PHASES: Final = tuple(Phase)
STATUSES: Final = tuple(Status)
FAULTS: Final = (None, Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY)


def check_view(
    server: Endpoint, contract: str, state: State, entries: Sequence[MoveEntry], new: int, block: int
) -> None:
    """Compare the contract's own view at `block` with `state`, for all that the moves from number `new` on changed.

    Raises:
        UnavailableError: They differ, so the server left out or invented an event.
    """
    _is(server, "the number of moves", _ask(server, contract, block, "moves"), (len(entries),))
    pausing = state.pausing
    expected = (pausing.since is not None, pausing.since or 0, pausing.total, pausing.allowed_from)
    _is(server, "the pause", _ask(server, contract, block, "pausing"), expected)
    claims, disputes = _touched(state, entries[new:])
    for number in claims:
        _is(server, f"claim {number}", _ask(server, contract, block, "claims", number), _claim(state, number))
    for number in disputes:
        found = _ask(server, contract, block, "disputeAt", number)[:4]
        _is(server, f"dispute {number}", found, _dispute(state, number))


def ask(server: Endpoint, contract: str, block: int | str, function: str, *values: Any) -> tuple[Any, ...]:
    """The values that one of the contract's view functions returns at a block; raises `UnavailableError`."""
    fields = {"to": contract, "data": "0x" + encode_call(function, values).hex()}
    answer = chain.call(server, fields, block)
    if isinstance(answer, Reverted):
        raise UnavailableError(f"{server.name}: the contract does not answer {function}")
    try:
        return decode_answer(function, answer)
    except MalformedError as error:
        raise UnavailableError(f"{server.name}: {error}") from None


_ask = ask


def _claim(state: State, number: int) -> tuple[Any, ...]:
    claim = state.claims[number]
    status, root, seal = STATUSES.index(claim.status), bytes.fromhex(claim.root), bytes.fromhex(claim.seal)
    numbers = (claim.levels, claim.bond, claim.size, claim.disputes)
    return (claim.prover, claim.deadline, status, *numbers, root, seal)


def _dispute(state: State, number: int) -> tuple[Any, ...]:
    dispute = state.disputes[number]
    return (PHASES.index(dispute.phase), FAULTS.index(dispute.fault), dispute.turn, dispute.deadline)


def _touched(state: State, entries: Iterable[MoveEntry]) -> tuple[list[int], list[int]]:
    """The numbers of the claims and disputes that the moves were about, or that they opened: these come last."""
    claims: set[int] = set()
    disputes: set[int] = set()
    posts = contests = 0
    for entry in entries:
        move: Any = entry.move
        posts += isinstance(move, Post)
        contests += isinstance(move, Contest)
        claims |= {move.claim} if isinstance(move, Contest | Finalise) else set()
        disputes |= {move.dispute} if hasattr(move, "dispute") else set()
    claims |= set(range(len(state.claims) - posts, len(state.claims)))
    disputes |= set(range(len(state.disputes) - contests, len(state.disputes)))
    claims |= {state.disputes[number].claim for number in disputes}
    return sorted(claims), sorted(disputes)


def _is(server: Endpoint, what: str, found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    if found != expected:
        raise UnavailableError(f"{server.name}: contradicts itself: its log leads to {expected} as {what}, not {found}")
