"""Limits of fingerprints from honest distances, and how often they reject who is honest and who is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from research.fingerprints.compare import Computed
from research.fingerprints.producers import DTYPES, PRODUCERS, Producer, job_of, stacks_of
from research.fingerprints.states import BATCH, file_name
from tallystick.audits.answers.fingerprints import judge_fingerprint
from tallystick.audits.answers.limits import FingerprintCalibration, FingerprintRule, MeasuredModels
from tallystick.core.digests import digest
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.tally.calibration.answer_limits import Class, SeenRuns, add_up, compare_answer, row_limits
from tallystick.tally.calibration.drift import round_up
from tallystick.tally.calibration.stacks import StackJob, machine, run_all
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.fingerprints import make_fingerprint

POSITIONS_MAX: Final = 175
PROMPT_MIN, PROMPT_MAX = 8, 40
STATES: Final = "research.fingerprints.states:states_on"


class Trial(NamedTuple):
    """A fingerprint to try: its settings, and which of a model's layers it is of, −1 being the logits."""

    settings: FingerprintSettings
    places: tuple[int, ...] = (-2,)


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
        tasks.append(StackJob(STATES, stack, f"states {stack.name}", job))
    return [refused for found in run_all(study.folder, tasks) for refused in found]


def calibrate(study: Study) -> FingerprintCalibration:
    """Limits from the first half of the answers, over all pairs that are not held out."""
    import torch

    rows = [row_limits(_honest(study, each.dtype), each) for each in measured(study)]
    return FingerprintCalibration(
        machine=machine(),
        software=f"torch {torch.__version__}",
        stacks=tuple(each.name for each in study.producers if not each.cheat and not each.held_out),
        held_out=tuple(each.name for each in study.producers if each.held_out),
        rows=tuple(limits for of_dtype in rows for limits in of_dtype),
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
                    rejected = _is_rejected(claimed, own, number, each, rule, card_of(study, model, dtype))
                    if rejected is not None:
                        counts[name][0] += rejected
                        counts[name][1] += 1
    return {name: rate(*found) for name, found in counts.items() if found[1]}


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its exact interval."""
    low, high = clopper_pearson(successes, trials)
    return {"rejected": successes, "of": trials, "interval_95": [round_up(low), round_up(high)]}


def _is_rejected(
    claimed: Computed, own: Computed, number: int, trial: Trial, rule: FingerprintRule, card: ModelCard
) -> bool | None:
    """Whether one answer is rejected; none where the rule has no limits for such fingerprints."""
    theirs, mine = claimed.answer(number), own.answer(number)
    layers = sorted(set(theirs) & set(mine))
    if layers[-1] == card.layers:
        layers.append(card.layers + 1)  # an engine that gives no logits
    chosen = tuple(sorted(layers[place] for place in trial.places))
    if chosen[-1] not in theirs or chosen[-1] not in mine:
        return None
    settings = replace(trial.settings, layers=chosen)
    findings = judge_fingerprint(make_fingerprint(theirs, settings), mine, rule, card)
    return any(not each.agrees for each in findings) if findings else None


def card_of(study: Study, model: str, dtype: Any) -> ModelCard:
    """A card with the sizes of a model, which are all that limits depend on."""
    layers, width = study.sizes[model]
    none = digest("blob", b"")
    return ModelCard(
        architecture="study",
        config=none,
        weights=none,
        tokenizer=none,
        template=None,
        dtype=dtype,
        vocabulary=1,
        layers=layers,
        width=width,
    )


def _honest(study: Study, dtype: str) -> dict[Class, SeenRuns]:
    total: dict[Class, SeenRuns] = {}
    for model, answers in study.models.items():
        final, held = study.sizes[model][0], dict[str, Computed | None]()
        for pair in honest_pairs(study, held_out=False):
            for each in pair:
                if each.name not in held:
                    held[each.name] = study.computed(each, model, dtype)
            claimed, own = held[pair[0].name], held[pair[1].name]
            if claimed is not None and own is not None:
                seen = (compare_answer(claimed.answer(n), own.answer(n), final) for n in range(len(answers) // 2))
                total = add_up([total, *seen])
    return total


def write_json(path: Path, value: Any) -> None:
    """Readable JSON with a line feed at its end."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
