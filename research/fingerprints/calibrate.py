"""Limits of fingerprints from honest distances, and how often they reject who is honest and who is not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from research.fingerprints.compare import DIRECT, Computed, Depth, Seen, compare_pair
from research.fingerprints.producers import DTYPES, PRODUCERS, Producer, job_of, stacks_of
from research.fingerprints.states import BATCH, file_name
from tallystick.answers.distance_limits import (
    DistanceLimits,
    FingerprintCalibration,
    FingerprintLimits,
    FingerprintRule,
    MeasuredModels,
)
from tallystick.answers.fingerprints import judge_fingerprint
from tallystick.calibration.training.calibrate import machine
from tallystick.calibration.training.processes import StackJob, run_all
from tallystick.frameworks.torch.generation.language_models import load_language_model
from tallystick.tolerances.confidence import clopper_pearson
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.workloads.fingerprints import make_fingerprint

MARGIN: Final = {"F32": 8.0, "BF16": 1.5, "F16": 1.5}
"""How far limits lie above the largest honest distance: precisions of 16 bits leave little room below the cheats."""
LEAST: Final = {"F32": 1e-5, "BF16": 1e-4, "F16": 1e-5}
"""No limit is set lower: another machine may always differ in a last bit that no stack here differed in."""
POSITIONS_MAX: Final = 175
PROMPT_MIN, PROMPT_MAX = 8, 40
MODULE: Final = "research.fingerprints.states"


class Trial(NamedTuple):
    """A fingerprint to try: its settings, and which of a model's layers it is of, −1 being the final one."""

    settings: FingerprintSettings
    places: tuple[int, ...] = (-1,)


@dataclass(frozen=True)
class Study:
    """The models, what they are fed, where the rows are written, and how many layers of what width each model has."""

    folder: Path
    models: Mapping[str, tuple[dict[str, Any], ...]]
    producers: tuple[Producer, ...] = PRODUCERS
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def computed(self, producer: Producer, model: str, dtype: str) -> Computed | None:
        """The rows of a producer; none where it could not compute them."""
        path = self.folder / file_name(producer.name, Path(model).name, dtype)
        return Computed.read(path, [each["count"] for each in self.models[model]]) if path.is_file() else None


def feed(model: Path, text: str, answers: int, seed: int) -> tuple[dict[str, Any], ...]:
    """Prompts and answers of the model's tokenizer out of `text`: half of the answers as long as fits, others shorter.

    Every batch of the study has prompts of one length.
    """
    language_model = load_language_model(model)
    rng, ids = np.random.default_rng(seed), language_model.encode_text(text)
    positions = min(POSITIONS_MAX, language_model.model.config.max_position_embeddings - 1, len(ids))
    found = []
    for number in range(answers):
        if number % BATCH == 0:
            first = int(rng.integers(PROMPT_MIN, max(PROMPT_MIN, min(PROMPT_MAX, positions // 4)) + 1)) - 1
        start, longest = int(rng.integers(0, len(ids) - positions + 1)), positions - first
        count = longest if number % 2 else int(rng.integers(1, longest + 1))
        found.append({"ids": ids[start : start + positions], "first": first, "count": count})
    return tuple(found)


def compute_all(study: Study) -> list[dict[str, str]]:
    """Have every producer compute, each stack in a process of its own; what could not be computed, with the reason."""
    tasks = []
    for stack in stacks_of(study.producers):
        producers = [job_of(each) for each in study.producers if each.stack == stack.name]
        job = {"folder": str(study.folder), "producers": producers, "models": study.models}
        tasks.append(StackJob(MODULE, stack, f"states {stack.name}", job))
    return [refused for found in run_all(study.folder, tasks) for refused in found]


def calibrate(study: Study) -> FingerprintCalibration:
    """Limits from the first half of the answers, over all pairs that are not held out."""
    limits, states = [], []
    for dtype in DTYPES:
        for depth, seen in sorted(_honest(study, dtype).items()):
            common = _limits(seen, dtype) | {"dtype": dtype, "tokens": depth.kind.tokens}
            if math.isfinite(depth.layer_max):
                common["layer_max"] = depth.layer_max
            if depth.kind.bits == DIRECT:
                states.append(DistanceLimits.from_json(common, "limits"))
            else:
                common |= {"bits": depth.kind.bits, "width": depth.kind.width}
                limits.append(FingerprintLimits.from_json(common, "limits"))
    import torch

    return FingerprintCalibration(
        machine=machine(),
        software=f"torch {torch.__version__}",
        models=tuple(Path(model).name for model in study.models),
        stacks=tuple(each.name for each in study.producers if not each.cheat and not each.held_out),
        held_out=tuple(each.name for each in study.producers if each.held_out),
        measured=measured(study),
        limits=tuple(limits),
        states=tuple(states),
    )


def measured(study: Study) -> tuple[MeasuredModels, ...]:
    """The models for which the limits hold, in each dtype that was computed."""
    if not study.sizes:
        return ()
    layers, width = (max(each) for each in zip(*study.sizes.values(), strict=True))
    models = tuple(Path(model).name for model in study.models)
    answers = sum(map(len, study.models.values()))
    kinds: list[Any] = [each for each in DTYPES if any(each in producer.dtypes for producer in study.producers)]
    return tuple(
        MeasuredModels(dtype=kind, layers=layers, width=width, models=models, answers=answers) for kind in kinds
    )


def size_of(model: Path) -> tuple[int, int]:
    """The layers and the width of the model in a directory."""
    config = json.loads((model / "config.json").read_text())
    return config["num_hidden_layers"], config["hidden_size"]


def honest_pairs(study: Study, *, held_out: bool) -> Iterator[tuple[Producer, Producer]]:
    """Provider and verifier: neither held out, or with `held_out` at least one of them."""
    honest = [each for each in study.producers if not each.cheat]
    for provider, verifier in product(honest, honest):
        if verifier.is_verifier and provider != verifier and (provider.held_out or verifier.held_out) == held_out:
            yield provider, verifier


def rejections(
    study: Study,
    pairs: Sequence[tuple[Producer, Producer]],
    trials: Mapping[str, Trial],
    rule: FingerprintRule,
    dtype: Any,
    tokens_min: int,
) -> dict[str, dict[str, Any]]:
    """How many answers of the second half, of at least `tokens_min` tokens, are rejected; 95 % intervals.

    Answers for whose fingerprint the rule has no limits do not count.
    """
    counts = {name: [0, 0] for name in trials}
    for model, answers in study.models.items():
        numbers = [n for n in range(len(answers) // 2, len(answers)) if answers[n]["count"] >= tokens_min]
        for provider, verifier in pairs:
            claimed, own = study.computed(provider, model, dtype), study.computed(verifier, model, dtype)
            if claimed is not None and own is not None:
                for (name, each), number in product(trials.items(), numbers):
                    rejected = _is_rejected(claimed, own, number, each, rule, dtype)
                    if rejected is not None:
                        counts[name][0] += rejected
                        counts[name][1] += 1
    return {name: rate(*found) for name, found in counts.items() if found[1]}


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its exact interval."""
    low, high = clopper_pearson(successes, trials)
    return {"rejected": successes, "of": trials, "interval_95": [round_up(low), round_up(high)]}


def round_up(value: float) -> float:
    """Three digits, none made smaller."""
    if value == 0.0:
        return 0.0
    digits = float(f"{value:.2e}")
    return digits if digits >= value else float(f"{math.nextafter(value, math.inf) * 1.005:.2e}")


def _is_rejected(
    claimed: Computed, own: Computed, number: int, trial: Trial, rule: FingerprintRule, dtype: Any
) -> bool | None:
    """Whether one answer is rejected; none where the rule has no limits for such fingerprints."""
    theirs, mine = claimed.answer(number), own.answer(number)
    layers = tuple(sorted(set(theirs) & set(mine)))
    chosen = replace(trial.settings, layers=tuple(layers[place] for place in trial.places))
    findings = judge_fingerprint(make_fingerprint(theirs, chosen), mine, rule, dtype=dtype)
    return any(not each.agrees for each in findings) if findings else None


def _honest(study: Study, dtype: str) -> dict[Depth, Seen]:
    seen: dict[Depth, Seen] = {}
    for model, answers in study.models.items():
        held: dict[str, Computed | None] = {}
        for pair in honest_pairs(study, held_out=False):
            for each in pair:
                if each.name not in held:
                    held[each.name] = study.computed(each, model, dtype)
            claimed, own = held[pair[0].name], held[pair[1].name]
            if claimed is not None and own is not None:
                for depth, found in compare_pair(claimed, own, len(answers) // 2).items():
                    seen[depth] = seen.get(depth, Seen()) + found
    return seen


def _limits(seen: Seen, dtype: str) -> dict[str, Any]:
    typical = seen.typical if seen.typical else seen.largest
    return {
        "honest": seen.blocks,
        "honest_largest": round_up(seen.largest),
        "honest_typical": round_up(typical),
        "largest": round_up(max(LEAST[dtype], MARGIN[dtype] * seen.largest)),
        "typical": round_up(max(LEAST[dtype], MARGIN[dtype] * typical)),
    }


def write_json(path: Path, value: Any) -> None:
    """Readable JSON with a line feed at its end."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
