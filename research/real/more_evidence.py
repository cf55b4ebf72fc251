#!/usr/bin/env python3
"""Puts what opened layers show, and what nobody could see, into the page and the shipped tables.

Usage: python -m research.real.more_evidence [--out DIR]

Reads the figures of `research.real.power`, `research.real.opened` and `research.real.ceilings` in docs/data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from research.real.power import DATA as POWER, PAGE, POOLED, POOLS, SEED, SUBJECTS, TABLE
from research.real.power_page import render
from research.shipped_limits import write_table
from tallystick.audits.answers.limits import shipped_calibration
from tallystick.audits.answers.power import CheatPower, PowerTable, shipped_power
from tallystick.verdicts.evidence import clopper_pearson

OPENED: Final = Path("docs/data/real_opened.json")
CEILINGS: Final = Path("docs/data/real_ceilings.json")
SETTING: Final = ("honest: batches of 16, sdpa", "honest: batches of 8, eager")
"""The stacks that set the limit; the others try it."""
ROOM: Final = 1.25
"""How far the limit of a layer lies above the largest distance on those stacks."""
SHARE: Final = 4
"""So many of eight answers are opened: the default share of a policy."""
WHOLE: Final = 128
Figures = Mapping[str, Any]


def main() -> int:
    """Write page and tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    out = parser.parse_args().out
    figures, opened, ceilings = (json.loads(each.read_text()) for each in (POWER, OPENED, CEILINGS))
    (out / PAGE).write_text("\n".join([*render(figures), *render_more(opened, ceilings)]) + "\n")
    shipped = shipped_calibration()
    others = [each for each in shipped.rounding if each.place != "layer"]
    model = next(each for each in others if (each.place, each.tokens) == ("block", 1))
    largest, allowed = limit_of(opened)
    answers = sum(map(len, honest_of(opened).values()))
    layer = model.model_copy(update={"place": "layer", "ratio": allowed, "largest": largest, "answers": answers})
    write_table(shipped.model_copy(update={"rounding": (*others, layer)}), out)
    table = shipped_power()
    [one] = [each for each in table.models if each.model == figures["model"]]
    more = [*cheats_of(opened)]

    held = [each for each in one.cheats if not each.opened]
    whole = PowerTable(
        machine=table.machine,
        models=tuple(
            each if each is not one else one.model_copy(update={"cheats": (*held, *more)}) for each in table.models
        ),
    )
    (out / TABLE).write_bytes(whole.to_bytes() + b"\n")
    return 0


def honest_of(opened: Figures) -> dict[str, list[Any]]:
    """The honest answers by stack."""
    return {way: held for way, held in opened["ways"].items() if way.startswith("honest")}


def limit_of(opened: Figures) -> tuple[float, float]:
    """The largest honest distance of a layer, and what is allowed."""
    setting = (held for way, held in honest_of(opened).items() if way in SETTING)
    largest = max(each for held in setting for one in held for each in one["ratios"])
    return round(largest, 4), round(ROOM * largest, 3)


def drawn_of(answer: Figures, allowed: float) -> list[bool]:
    """For each challenge of an answer, whether it is rejected."""
    if answer.get("other_length"):
        return [True]
    return [far or answer["ratios"][layer] > allowed for layer, far in answer["drawn"]]


def cheats_of(opened: Figures) -> Iterator[CheatPower]:
    """The power of opened layers, in one answer and in pools of eight."""
    _, allowed = limit_of(opened)
    for way, held in opened["ways"].items():
        if way.startswith("honest"):
            continue
        rng = np.random.default_rng(SEED)
        seen = [drawn_of(each, allowed)[0] for each in held if each["tokens"] == WHOLE]
        told: dict[str, Any] = {"subject": SUBJECTS[way], "cheat": way, "wide": True, "tokens": WHOLE}
        yield CheatPower(seen=sum(seen), of=len(seen), opened=1, **told)
        pools = [any(seen[place] for place in rng.permutation(len(seen))[:SHARE]) for _ in range(POOLS)]
        yield CheatPower(seen=sum(pools), of=POOLS, pooled=POOLED, opened=SHARE, **told)


def render_more(opened: Figures, ceilings: Figures) -> Iterator[str]:
    """The sections on opened layers and ceilings."""
    largest, allowed = limit_of(opened)
    honest = honest_of(opened)
    drawn = [each for held in honest.values() for one in held for each in drawn_of(one, allowed)]
    layers = [each > allowed for held in honest.values() for one in held for each in one["ratios"]]
    low, high = clopper_pearson(sum(layers), len(layers))
    yield f"""
## One layer, opened

By `python -m research.real.opened`, from [data/real_opened.json](data/real_opened.json); {opened["machine"]},
{opened["software"]}. A provider that commits to its states opens one layer and the one before, drawn by a nonce. The
verifier runs that layer from the opened input on its own stacks, with fused and eager attention, and in F32. In one
layer most rounding is the same everywhere, so an honest layer lies near one of them. Other weights do not. Rows are
also compared one by one with the verifier's own, where one other word of a prompt moves its own row.

On the two stacks without other vector code, honest layers lie {largest:.2f} of own rounding off at most;
allowed is {ROOM} times that, {allowed:.2f}. The other honest stacks try it. Beyond it: {sum(layers)} of {len(layers)}
honest layers [{low:.1%}, {high:.1%}]; rejected challenges, with all checks of states: {sum(drawn)} of {len(drawn)}.

| provider | answers | distance of layers: least, median, largest | drawn layers rejected |
|---|--:|--:|--:|"""
    for way, held in opened["ways"].items():
        ratios = [each for one in held for each in one["ratios"]]
        told = [each for one in held for each in drawn_of(one, allowed)]
        spread = ", ".join(f"{each:.2f}" for each in (min(ratios), float(np.median(ratios)), max(ratios)))
        yield f"| {way} | {len(held)} | {spread} | {sum(told)} of {len(told)} |"
    yield """
Who states another engine or device than transformers on a CPU, where this was measured, is not rejected for it: how far
such a stack lies is not known. Beyond the limit, the verdict is then inconclusive.
"""
    yield from _ceilings(ceilings)


def _ceilings(ceilings: Figures) -> Iterator[str]:
    int8, tuned = ceilings["int8 tokens"], ceilings["tuned"]
    yield f"""## Ceilings

By `python -m research.real.ceilings`, from [data/real_ceilings.json](data/real_ceilings.json); {ceilings["machine"]}.
What an oracle sees that knows the cheater's weights and how honest stacks round: the likelihood-ratio test on what a
receipt without opened states holds. Of int8 tokens ({int8["answers"]} answers) it sees tokens, of the tuned model
({tuned["answers"]} answers) numbers of fingerprints. Power at false accusations of 10⁻³ and 10⁻⁶, drawn from these
answers with replacement:

| answers of 128 tokens | int8 tokens | tuned for 5 steps at 1e-5 |
|--:|--:|--:|"""
    for count, power in int8["power"].items():
        yield f"| {count} | {power[0]:.3f}, {power[1]:.3f} | {', '.join(f'{e:.3f}' for e in tuned['power'][count])} |"
    yield f"""
Nobody has the weights of a tuned model whose owner hides them. A signed mean of residuals does not replace them: at the
final norm, the mean shift of the tuning over an answer has {tuned["signed_tuning"]:.4f} of the energy of own rounding,
and the mean of honest rounding itself {tuned["signed_rounding"]:.4f} (medians). More such numbers would accuse honest
stacks first, so no number of answers helps fingerprints: an opened layer does."""


if __name__ == "__main__":
    sys.exit(main())
