"""Every attack on opened operators, by name."""

from __future__ import annotations

from itertools import chain

from tallystick.attacks.openings import proofs, records, values
from tallystick.attacks.openings.attack import OpeningAttack

FILES = (records, values, proofs)
OPENING_ATTACKS: dict[str, OpeningAttack] = {
    attack.name: attack for attack in chain.from_iterable(file.ATTACKS for file in FILES)
}
