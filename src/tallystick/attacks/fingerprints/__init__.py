"""Hidden states and fingerprints other than those of the promised model at work."""

from tallystick.attacks.fingerprints.altered import (
    blocks_dropped,
    blocks_swapped,
    layers_swapped,
    rows_shifted,
    signs_flipped,
)
from tallystick.attacks.fingerprints.forged import forge_states

__all__ = ["blocks_dropped", "blocks_swapped", "forge_states", "layers_swapped", "rows_shifted", "signs_flipped"]
