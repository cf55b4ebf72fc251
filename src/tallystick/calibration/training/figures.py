"""The published figures of a study: the content of `docs/data/power.json`."""

from __future__ import annotations

import platform
from itertools import product
from typing import Any

from tallystick.calibration.training.calibrate import (
    FAMILIES,
    FROM_STEPS,
    Study,
    belongs,
    is_held_out,
    machine,
    rounded,
)
from tallystick.calibration.training.limits import largest, limits_of
from tallystick.calibration.training.power import Climb, furthest_by_cheat
from tallystick.calibration.training.recipes import OPTIMIZERS, PRECISIONS, WINDOWS
from tallystick.calibration.training.stacks import STACKS

SHARES = (0.95, 0.99)


def figures_of(study: Study) -> dict[str, Any]:
    """Every figure behind the limits, as JSON values."""
    return {
        "machine": study.calibration.machine,
        "torch": study.calibration.torch,
        "python": platform.python_version(),
        "ladders_machine": machine(),
        "calibration": str(study.calibration.digest_as("calibration")),
        "honest": _honest(study),
        "cheats": _cheats(study),
        "ladders": [_ladder(climb) for climb in study.climbs],
    }


def _honest(study: Study) -> list[dict[str, Any]]:
    """For every stack, first steps and later ones apart: the largest distances, and how often bits were equal."""
    found = []
    for family, optimizer, dtype, window, late, stack in product(
        FAMILIES, OPTIMIZERS, PRECISIONS, WINDOWS, (False, True), STACKS
    ):
        group = [
            sample
            for sample in study.samples
            if belongs(sample.case, family, optimizer, dtype)
            and (sample.stack, sample.steps) == (stack, window)
            and (sample.start >= FROM_STEPS[-1]) == late
        ]
        if group:
            found.append(
                {
                    "family": family,
                    "optimizer": optimizer,
                    "dtype": dtype,
                    "window": window,
                    "late": late,
                    "stack": stack.name,
                    "segments": len(group),
                    "held_out": sum(is_held_out(sample) for sample in group),
                    "same_bits": sum(sample.same_bits for sample in group),
                    "largest": rounded(largest(group)),
                    "undetermined": max(sample.drift.undetermined for sample in group),
                }
            )
    return found


def _cheats(study: Study) -> list[dict[str, Any]]:
    """For every entry and named cheat: distance ÷ limit of the clearest check, in the trial where it is smallest."""
    found = []
    for entry in study.calibration.entries:
        key = (entry.family, entry.optimizer, entry.dtype)
        trials = [t for t in study.claims if belongs(t.case, *key) and t.steps == entry.window]
        for cheat, (excess, check) in furthest_by_cheat(trials, limits_of(entry)).items():
            found.append(
                {
                    "family": entry.family,
                    "optimizer": entry.optimizer,
                    "dtype": entry.dtype,
                    "window": entry.window,
                    "from_step": entry.from_step,
                    "cheat": cheat,
                    "times_limit": float(f"{excess:.3g}"),
                    "check": check,
                    "trials": sum(trial.cheat == cheat for trial in trials),
                }
            )
    return found


def _ladder(climb: Climb) -> dict[str, Any]:
    shown = {f"{share:g}": climb.smallest(share) for share in SHARES}
    return {
        "optimizer": climb.optimizer,
        "dtype": climb.dtype,
        "kind": climb.kind,
        "window": climb.window,
        "rates": [rate.to_json() for rate in climb.rates],
        "smallest": {share: None if rate is None else rate.size for share, rate in shown.items()},
    }
