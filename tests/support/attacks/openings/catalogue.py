"""Every attack on opened operators, by name."""

from __future__ import annotations

from itertools import chain

from tests.support.attacks.openings import proofs, records, values
from tests.support.attacks.openings.attack import OpeningAttack

FILES = (records, values, proofs)
OPENING_ATTACKS: dict[str, OpeningAttack] = {
    attack.name: attack for attack in chain.from_iterable(file.ATTACKS for file in FILES)
}
