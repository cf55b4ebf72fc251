"""All attacks by name."""

from __future__ import annotations

from itertools import chain

from tallystick.attacks import (
    anchor_replaced,
    bad_seed,
    broken_seal,
    corpus_forged,
    data_recommitted,
    data_substituted,
    environment_forged,
    fabricated,
    gradient_noise,
    hidden_batch,
    honest_twins,
    implausible,
    loop_batches,
    loop_end,
    loop_further_graph,
    loop_graph,
    loop_start,
    loop_variation,
    loop_without_graph,
    nonce_ground,
    optimizer_reset,
    out_of_reach,
    record_edited,
    record_inserted,
    record_removed,
    record_swapped,
    rows_forged,
    runs_spliced,
    step_graph_edited,
    step_graph_file,
    undetermined_moved,
    weights_edited,
    wrong_recipe,
)
from tallystick.attacks.attack import Attack
from tallystick.attacks.names import require_attack

FILES = (
    honest_twins,
    bad_seed,
    gradient_noise,
    weights_edited,
    broken_seal,
    record_inserted,
    record_removed,
    record_swapped,
    record_edited,
    data_substituted,
    data_recommitted,
    corpus_forged,
    wrong_recipe,
    fabricated,
    runs_spliced,
    optimizer_reset,
    anchor_replaced,
    environment_forged,
    nonce_ground,
    hidden_batch,
    out_of_reach,
    implausible,
    step_graph_edited,
    step_graph_file,
    loop_batches,
    loop_graph,
    loop_further_graph,
    loop_start,
    loop_variation,
    loop_without_graph,
    loop_end,
    rows_forged,
    undetermined_moved,
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in chain.from_iterable(file.ATTACKS for file in FILES)}


def find_attack(name: str) -> Attack:
    """The attack of this name; raises `UsageError` with the one that was meant if there is none."""
    return ATTACKS[require_attack(name)]
