"""All attacks by name."""

from __future__ import annotations

from itertools import chain

from tallystick.tally.attacks.data import CORPUS_FORGED, DATA_RECOMMITTED, DATA_SUBSTITUTED, HIDDEN_BATCH
from tallystick.tally.attacks.forging import Attack
from tallystick.tally.attacks.honest_twins import HONEST_TWINS
from tallystick.tally.attacks.loop_batches import LOOP_BATCHES, LOOP_END
from tallystick.tally.attacks.loop_claims import LOOP_START, LOOP_WITHOUT_GRAPH
from tallystick.tally.attacks.loop_graphs import LOOP_FURTHER_GRAPH, LOOP_GRAPH, LOOP_VARIATION
from tallystick.tally.attacks.names import require_attack
from tallystick.tally.attacks.recipe import BAD_SEED, ENVIRONMENT_FORGED, WRONG_RECIPE
from tallystick.tally.attacks.records import IMPLAUSIBLE, RECORD_EDITED, RECORD_INSERTED, RECORD_REMOVED, RECORD_SWAPPED
from tallystick.tally.attacks.rows_forged import ROWS_FORGED
from tallystick.tally.attacks.states import (
    ANCHOR_REPLACED,
    BROKEN_SEAL,
    OPTIMIZER_RESET,
    UNDETERMINED_MOVED,
    WEIGHTS_EDITED,
)
from tallystick.tally.attacks.step_graphs import STEP_GRAPH_EDITED, STEP_GRAPH_FILE
from tallystick.tally.attacks.steps import FABRICATED, GRADIENT_NOISE, NONCE_GROUND, OUT_OF_REACH, RUNS_SPLICED

LISTS = (
    HONEST_TWINS,
    BAD_SEED,
    GRADIENT_NOISE,
    WEIGHTS_EDITED,
    BROKEN_SEAL,
    RECORD_INSERTED,
    RECORD_REMOVED,
    RECORD_SWAPPED,
    RECORD_EDITED,
    DATA_SUBSTITUTED,
    DATA_RECOMMITTED,
    CORPUS_FORGED,
    WRONG_RECIPE,
    FABRICATED,
    RUNS_SPLICED,
    OPTIMIZER_RESET,
    ANCHOR_REPLACED,
    ENVIRONMENT_FORGED,
    NONCE_GROUND,
    HIDDEN_BATCH,
    OUT_OF_REACH,
    IMPLAUSIBLE,
    STEP_GRAPH_EDITED,
    STEP_GRAPH_FILE,
    LOOP_BATCHES,
    LOOP_GRAPH,
    LOOP_FURTHER_GRAPH,
    LOOP_START,
    LOOP_VARIATION,
    LOOP_WITHOUT_GRAPH,
    LOOP_END,
    ROWS_FORGED,
    UNDETERMINED_MOVED,
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in chain.from_iterable(LISTS)}


def find_attack(name: str) -> Attack:
    """The attack of this name; raises `UsageError` with the one that was meant if there is none."""
    return ATTACKS[require_attack(name)]
