"""Every deception in disputes, by name."""

from __future__ import annotations

from itertools import chain

from tests.support.attacks.disputes import answers, escapes, openings, states, values
from tests.support.attacks.disputes.deception import Deception

DECEPTIONS: dict[str, Deception] = {
    each.name: each
    for each in chain.from_iterable(file.ATTACKS for file in (values, openings, escapes, states, answers))
}
