"""A difference as lines for people, causes before what follows from them."""

from __future__ import annotations

from typing import Final

from tallystick.differences.difference import Difference, StateDifference
from tallystick.differences.fields import FieldDifference
from tallystick.differences.operators import OpeningsDifference
from tallystick.presentation.verdict_text import printable

FIELDS_SHOWN: Final = 12
TENSORS_SHOWN: Final = 3
SOURCES_SHOWN: Final = 3


def difference_lines(found: Difference) -> list[str]:
    """What differs, where it begins, what was not compared, and notes."""
    lines = [f"{found.found.upper()}  {found.names[0]} / {found.names[1]}"]
    lines += [f"begins       {found.begins}"] * bool(found.begins)
    lines += _fields("spec", found.spec)
    lines += _fields("environment", found.environment)
    if found.operators is None or found.opened_step is not None:
        lines += _records(found)
    if found.state is not None:
        lines += _state(found.state)
    if found.operators is not None:
        lines += _operators(found.operators, found.opened_step)
    lines += [f"not compared: {each}" for each in found.open]
    notes = (*found.notes, *(found.operators.notes if found.operators is not None else ()))
    lines += [f"note: {each}" for each in notes]
    return [printable(line) for line in lines]


def _fields(title: str, fields: tuple[FieldDifference, ...]) -> list[str]:
    lines = [f"{title:<12} {each}" for each in fields[:FIELDS_SHOWN]]
    if len(fields) > FIELDS_SHOWN:
        lines.append(f"{title:<12} and {len(fields) - FIELDS_SHOWN} more; --json lists all of them")
    return lines


def _records(found: Difference) -> list[str]:
    steps = str(found.steps[0]) if found.steps[0] == found.steps[1] else f"{found.steps[0]} / {found.steps[1]}"
    if found.records is None:
        return [f"records      no difference in {steps} steps"]
    agreeing = f"; equal there: {', '.join(found.records.agreeing)}" if found.records.agreeing else ""
    lines = [f"records      the first that differs is step {found.records.step} of {steps}{agreeing}"]
    return [*lines, *(f"             {each}" for each in found.records.fields)]


def _state(state: StateDifference) -> list[str]:
    when = f"after step {state.step}" if state.step else "before step 1"
    known = "" if state.equal_until is None else f", equal after step {state.equal_until}" * (state.equal_until > 0)
    known = known or (", equal before step 1" if state.equal_until == 0 else "")
    how = "by replaying here" if state.source == "replays" else "in the anchors"
    count = f"{len(state.tensors)} tensor{' differs' if len(state.tensors) == 1 else 's differ'}"
    lines = [f"states       {when} {count} ({how}){known}"]
    lines += [f"             {each}" for each in state.tensors[:TENSORS_SHOWN]]
    if len(state.tensors) > TENSORS_SHOWN:
        lines.append(f"             and {len(state.tensors) - TENSORS_SHOWN} more; --json lists all of them")
    return lines


def _operators(found: OpeningsDifference, step: int | None) -> list[str]:
    where = "" if step is None else f" of step {step}"
    lines = [f"graphs       {each}" for each in found.graphs]
    if found.sources:
        shown = ", ".join(found.sources[:SOURCES_SHOWN]) + (", …" if len(found.sources) > SOURCES_SHOWN else "")
        count = "1 input" if len(found.sources) == 1 else f"{len(found.sources)} inputs"
        lines.append(f"inputs       {count}{where} with other values: {shown}")
    if found.operator is None:
        return lines if found.graphs else [*lines, f"operator     none{where} gives another result"]
    named = found.operator
    does = "reads equal values and gives others" if named.departs else "is the first with another result"
    lines.append(f"operator     {named.title} {does}")
    lines += [f"             {each}" for each in named.results]
    if named.shares is not None:
        mine, theirs = (f"{each:.3g}" for each in named.shares)
        lines.append(f"             {mine} / {theirs} of its error bound away from the exact result")
    return [*lines, f"             {named.others} operators after it differ too"]
