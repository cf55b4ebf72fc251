"""How well fingerprints of few bytes tell every cheat from honest serving: areas under ROC curves, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from research.inference.models import Cast
from research.inference.observe import Work, observe, window_distances
from research.inference.statistics import Scores, area_with_interval, curve
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.verdicts.fingerprints import wire_bytes
from tests.support.attacks.serving.catalogue import CHEATS, HONEST, Cheat

WINDOW: Final = 32
TEMPERATURE: Final = 0.8
CURVE_POINTS: Final = 200
SMALLEST: Final = 1e-9
"""The unit of a distance where honest ones are all zero, as they are where float32 is promised."""


def settings_for(final: int) -> dict[str, FingerprintSettings]:
    """What is compared: the final norm and a middle block in few bits, and TOPLOC as published."""
    middle = final // 3
    return {
        "final, 1 bit × 15 of 32": FingerprintSettings(layers=(final,), bits=1, width=15),
        "final, 1 bit × 127 of 32": FingerprintSettings(layers=(final,), bits=1, width=127),
        "final, 4 bits × 13 of 32": FingerprintSettings(layers=(final,), bits=4, width=13),
        "final, 4 bits × 29 of 32": FingerprintSettings(layers=(final,), bits=4, width=29),
        "final, 8 bits × 15 of 32": FingerprintSettings(layers=(final,), bits=8, width=15),
        "final, 8 bits × 3 of 8": FingerprintSettings(layers=(final,), block=8, bits=8, width=3),
        "middle, 4 bits × 29 of 32": FingerprintSettings(layers=(middle,), bits=4, width=29),
        "both, 4 bits × 13 of 32": FingerprintSettings(layers=(middle, final), bits=4, width=13),
        "both, 8 bits × 7 of 32": FingerprintSettings(layers=(middle, final), bits=8, width=7),
        "both, 8 bits × 31 of 8": FingerprintSettings(layers=(middle, final), block=8, bits=8, width=31),
        "TOPLOC": FingerprintSettings.toploc(final),
    }


def separate(cast: Cast, work: Work) -> Iterator[dict[str, Any]]:
    """One entry for every way of serving and setting: bytes a token, area and interval, points of the curve.

    A window's score is the largest distance over its blocks and layers, each in units of the layer's median in honest
    serving.
    """
    settings = settings_for(cast.promised.card.layers)
    sizes = {name: wire_bytes(WINDOW, cast.promised.card.width, each) / WINDOW for name, each in settings.items()}
    honest, *others = (HONEST[0], HONEST[1], *CHEATS)
    base = _distances(cast, honest, work, settings)
    scales = {name: np.maximum(np.median(base[name], (0, 1)), SMALLEST) for name in settings}
    for way in others:
        found = _distances(cast, way, work, settings)
        for name, scale in scales.items():
            clean, dirty = ((each[name] / scale).max(-1) for each in (base, found))
            area = area_with_interval(clean, dirty)
            yield {
                "way": way.name,
                "setting": name,
                "bytes": sizes[name],
                "area": asdict(area),
                "curve": _points(clean, dirty),
            }


def _distances(cast: Cast, way: Cheat, work: Work, settings: Mapping[str, FingerprintSettings]) -> dict[str, Scores]:
    """The distances of every setting, [answers, windows, layers]."""
    seen: dict[str, list[list[list[float]]]] = {name: [] for name in settings}
    for each in observe(cast, way, TEMPERATURE, work):
        for name, setting in settings.items():
            seen[name].append(window_distances(each, setting, WINDOW))
    return {name: np.array(found) for name, found in seen.items()}


def _points(honest: Scores, cheated: Scores) -> list[list[float]]:
    """At most `CURVE_POINTS` points of the curve, as (false positive rate, true positive rate)."""
    false, true = curve(honest, cheated)
    chosen = np.unique(np.linspace(0, len(false) - 1, CURVE_POINTS).astype(int))
    return [[round(float(false[place]), 5), round(float(true[place]), 5)] for place in chosen]
