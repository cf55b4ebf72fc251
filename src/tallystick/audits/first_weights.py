"""Judges whether a run begins with the weights of a directory that the verifier has."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.audits.checked_run import CheckedRun
from tallystick.judging.findings import AGREES, DIFFERS
from tallystick.judging.first_weights import FirstWeights, compare_first_weights
from tallystick.tensors.conversion import in_dtype
from tallystick.tensors.tensor import State
from tallystick.tolerances.exact import describe_difference
from tallystick.workloads.origin import Origin

SHOWN = 2


def judge_first_weights(evidence: CheckedRun, origin: Origin, state: State) -> None:
    """Compare the first anchor with the verifier's origin.

    Another state contradicts only a spec that names this origin; otherwise the check stays open.
    """
    found, stated = compare_first_weights(state, origin.weights), evidence.spec.first_weights
    if found.differing and stated == origin.digest:
        _object(evidence, found, state)
    elif not found.agrees:
        evidence.findings.undecided.append(f"first weights: {_why_open(found, origin, stated)}")
    else:
        evidence.findings.note(AGREES, "first weights")
        evidence.first_weights = found
        evidence.shown.append(f"the run begins with the weights of {origin.path}, {origin.digest}")
        evidence.left_out.extend(_left_out(evidence, found, origin, stated))


def _object(evidence: CheckedRun, found: FirstWeights, state: State) -> None:
    for place in found.differing:
        wanted = in_dtype(found.places[place], state[place].dtype)
        is_same_kind = wanted is not None and wanted.shape == state[place].shape
        detail = describe_difference(state[place], wanted) if is_same_kind and wanted is not None else "another shape"
        evidence.findings.note(DIFFERS, "first weights", f"step 0, {place}", detail)


def _why_open(found: FirstWeights, origin: Origin, stated: str | None) -> str:
    if found.differing:
        states = "no origin" if stated is None else stated
        other = f"{origin.path}, {origin.digest}, holds other numbers in {_some(found.differing)}"
        return f"{other}, and the spec states {states}: give the directory that the run began with"
    return f"the run holds nowhere {_some(found.missing)} of {origin.path}"


def _left_out(evidence: CheckedRun, found: FirstWeights, origin: Origin, stated: str | None) -> Iterable[str]:
    if stated not in (None, origin.digest):
        yield f"whether the weights that the spec states, {stated}, are the same numbers in another precision"
    if found.added and evidence.spec.recipe is None:
        yield f"where the first values of {_some(found.added)} come from, which {origin.path} does not hold"


def _some(names: tuple[str, ...]) -> str:
    more = " …" if len(names) > SHOWN else ""
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} ({', '.join(names[:SHOWN])}{more})"
