#!/usr/bin/env python3
"""What the checks of an answer see of small changes, in one answer and in eight together.

Usage: python -m research.real.power pass MODEL ANSWERS… --passes DIR [--each N]
       python -m research.real.power judge MODEL ANSWERS… --passes DIR [--out DIR]

ANSWERS are folders that `research.real.power_answers` filled. `pass` computes two passes for N answers of each way and
stack, in the model's precision and in F32, and keeps in DIR what the judgement needs. `judge` writes
<out>/docs/data/real_power.json, the page <out>/docs/real_model_power.md, and into the shipped tables: the power of the
checks and how far honest stacks round.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import product
from operator import add
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from research.real.power_answers import named_answers
from research.real.power_page import render
from research.real.serving import Answered, read_answer
from research.shipped_limits import write_table
from tallystick.audits.answers.fingerprints import RoundingEvidence, judge_fingerprint, own_rounding, rounding_of
from tallystick.audits.answers.likelihoods import CHEAPER
from tallystick.audits.answers.limits import (
    FingerprintRule,
    Place,
    RoundingLimits,
    SamplerRule,
    place_of,
    shipped_calibration,
)
from tallystick.audits.answers.power import CheatPower, ModelPower, PowerTable, Subject, shipped_power
from tallystick.audits.answers.sampler import judge_sampler, shows_weights, with_cheaper
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_language_model
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import PUBLIC_SEED, FingerprintSettings, standard_fingerprints
from tallystick.formats.receipt import Fingerprint
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.evidence import Trials, log_mean
from tallystick.verdicts.fingerprints import block_norms, logit_rows, make_fingerprint, wire_bytes

SUBJECTS: Final[Mapping[str, Subject]] = {
    "int8 weights by row": "precision",
    "int8 weights in groups of 64": "precision",
    "int8 output matrix by row": "precision",
    "int8 tokens under honest fingerprints": "precision",
    "rotary base x1.2": "model",
    "tuned for 5 steps at 1e-5": "model",
    "one word of the system prompt": "prompt",
    "watermark of 0.5": "sampler",
}
IN_TOKENS: Final = ("watermark of 0.5", "int8 tokens under honest fingerprints")
"""Cheats that show in tokens alone, which were judged as a whole."""
LENGTHS: Final = (32, 64, 128)
AGAIN: Final = "--one_pass"
"""In the name of rows that were computed again for a text."""
POOLED: Final = 8
POOLS: Final = 20
SEED: Final = 11
SETTING: Final = ("batches of 16, sdpa", "batches of 16, eager", "one pass, eager", "one pass, sdpa, ATen AVX2")
"""The stacks whose answers set the limits; all others try them."""
LONG: Final = 64
"""So many tokens are a long answer: in shorter ones a single text may round much more on one stack than on another."""
ROOM: Final = {"block": 1.1, "final": 1.0, "logits": 1.0}
"""How far a limit lies above the largest ratio of a whole honest answer. A stack that rounds a little more than that is
not accused either: the least scale that the test looks for is 1.25."""
TABLE: Final = Path("src/tallystick/answers/power.json")
DATA: Final = Path("docs/data/real_power.json")
PAGE: Final = Path("docs/real_model_power.md")
Rows = dict[int, Any]
NO_TRIALS: Final = Trials()


@dataclass
class Judged:
    """One answer: its way and stack, rounding by length, and whether the other checks reject it at that length."""

    way: str
    stack: str
    tokens: int
    text: tuple[int, ...] = ()
    rounding: dict[int, RoundingEvidence] = field(default_factory=dict)
    others: dict[int, bool] = field(default_factory=dict)
    trials: Trials = NO_TRIALS
    log_others: tuple[float, ...] = ()
    log_cheaper: tuple[float, ...] = ()

    def is_seen(self, length: int, wide: bool = True) -> bool:
        """Whether any check rejects the first `length` tokens, with or without the pass in F32."""
        return self.others[length] or (wide and not self.rounding[length].finding.agrees)


def main() -> None:
    """Run one of the two parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("pass", "judge"))
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--passes", type=Path, required=True)
    parser.add_argument("--each", type=int, default=24)
    parser.add_argument("--dtype", default="BF16", choices=("BF16", "F16"))
    parser.add_argument("--name", default="SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_language_model(options.model, options.dtype)
    if options.part == "pass":
        for folder in options.answers:
            keep_passes(model, folder, options.passes, options.each)
        return
    honest = [each for folder in options.answers for each in ratios_of(model, folder, options.passes)]
    limits = limits_of(honest, model.card, options.name)
    rule = FingerprintRule(wide=True, rounding=limits)
    judged = [*judge_all(model, options.answers, options.passes, rule)]
    write(judged, honest, limits, model.card, options.name, options.out)


def keep_passes(model: TorchLanguageModel, folder: Path, out: Path, each: int) -> None:
    """Make both passes for the first answers of every way and stack, and keep rows and evidence about the sampler."""
    out.mkdir(parents=True, exist_ok=True)
    wide, count, final = model.widened(), Counter[tuple[str, str]](), model.card.layers
    assert wide is not None
    rule = SamplerRule(seed="customer").for_model(model.card)
    layers = (final // 3, final)
    for name, found in named_answers(folder):
        count[found.way, found.stack] += 1
        if count[found.way, found.stack] > each or (out / f"{name}.npz").is_file():
            continue
        prompt, answer = found.asked.prompt, found.answer
        fed = ((*prompt, *answer[:-1]), len(prompt) - 1, layers)
        own, true = model.prefill(*fed), wide.prefill(*fed)
        sampler = found.asked.sampler
        evidence = judge_sampler(own.logits, prompt, answer, sampler, rule, model.end_tokens)
        if AGAIN not in name and shows_weights(evidence, sampler):
            coarse = {form: wide.in_fewer_bits(form).prefill(*fed[:2]).logits for form in CHEAPER}
            evidence = with_cheaper(evidence, prompt, answer, sampler, (own.logits, true.logits, coarse))
        kept: dict[str, Any] = {f"o{layer}": rows for layer, rows in own.hidden.items()}
        kept |= {f"w{layer}": rows for layer, rows in true.hidden.items()}
        kept |= {f"{p}{final + 1}": logit_rows(e.logits, PUBLIC_SEED) for p, e in (("o", own), ("w", true))}
        decided = [evidence.decision == "accepted", evidence.decision == "rejected"]
        told: dict[str, Any] = {
            "graded": evidence.trials.graded,
            "trials": [evidence.trials.tokens, evidence.trials.mismatches],
            "others": evidence.others.against,
            "cheaper": evidence.cheaper.against,
            "acc": decided,
        }
        everything: dict[str, Any] = kept | {key: np.array(value) for key, value in told.items()}
        np.savez(out / f"{name}.npz", **everything)


def passed_answers(
    model: TorchLanguageModel, folder: Path, passes: Path
) -> Iterator[tuple[str, Answered, Rows, Rows, Any]]:
    """Every answer of a folder whose text was passed: its name, own rows, those in F32, and what else was kept.

    Rows that were computed again for a text share its passes.
    """
    final = model.card.layers
    for name, found in named_answers(folder):
        path = passes / f"{name.split(AGAIN)[0]}.npz"
        if path.is_file():
            kept = np.load(path)
            own, true = ({layer: kept[f"{p}{layer}"] for layer in (final // 3, final, final + 1)} for p in "ow")
            yield name, found, own, true, kept


def judge_all(
    model: TorchLanguageModel, folders: Sequence[Path], passes: Path, rule: FingerprintRule
) -> Iterator[Judged]:
    """Every answer whose text was passed; honest ones also by a verifier on the stack that passed the text again."""
    for folder in folders:
        for name, found, own, true, kept in passed_answers(model, folder, passes):
            claimed = claimed_rows(model, found)
            yield judge(found, claimed, own, true, model.card, kept, rule)
            if found.way == "honest" and AGAIN in name:
                # The other way round: this stack verifies what the others claim.
                there = found.stack.removeprefix("one pass, ")
                one = replace(found, stack=f"one pass, sdpa; verified on {there}")
                yield judge(one, own, claimed, true, model.card, kept, rule)
                for each in answers_named(folders, name.split(AGAIN)[0]):
                    if each.way == "honest":
                        rows = claimed_rows(model, each)
                        one = replace(each, stack=f"{each.stack}; verified on {there}")
                        yield judge(one, rows, {**claimed}, true, model.card, kept, rule)


def answers_named(folders: Sequence[Path], name: str) -> Iterator[Answered]:
    """The answers of this name."""
    yield from (read_answer(folder / f"{name}.json") for folder in folders if (folder / f"{name}.json").is_file())


def ratios_of(model: TorchLanguageModel, folder: Path, passes: Path) -> Iterator[tuple[str, int, dict[Place, float]]]:
    """Of every honest answer its stack and length, and by place how many times own rounding its own is."""
    card = model.card
    [settings] = standard_fingerprints(card.layers, card.dtype, (card.layers // 3, card.layers, card.layers + 1))
    for _, found, own, true, _ in passed_answers(model, folder, passes):
        if found.way == "honest":
            claimed = claimed_rows(model, found)
            yield (
                found.stack,
                len(found.answer),
                {place_of(layer, card.layers): _ratio(claimed, own, true, layer, settings) for layer in own},
            )


def limits_of(
    honest: Sequence[tuple[str, int, Mapping[Place, float]]], card: ModelCard, name: str
) -> tuple[RoundingLimits, ...]:
    """The limits that the setting stacks give, for models of this size, for any answer and for long ones."""
    found = []
    for tokens in (1, LONG):
        setting = [ratios for stack, count, ratios in honest if stack in SETTING and count >= tokens]
        for place in setting[0]:
            largest = max(each[place] for each in setting)
            found.append(
                RoundingLimits(
                    place=place,
                    tokens=tokens,
                    ratio=round(max(1.0, ROOM[place] * largest), 3),
                    largest=round(largest, 4),
                    dtype=card.dtype,
                    layers=card.layers,
                    width=card.width,
                    models=(name,),
                    answers=len(setting),
                )
            )
    return tuple(found)


def claimed_rows(model: TorchLanguageModel, found: Answered) -> Rows:
    """The rows that a provider kept; logits that were not kept follow from the final norm."""
    final = model.card.layers
    rows = {layer: each.float().numpy() for layer, each in found.rows.items()}
    if final + 1 not in rows:
        with torch.inference_mode():
            logits = model.model.get_output_embeddings()(found.rows[final]).float().numpy()
        rows[final + 1] = logit_rows(logits, PUBLIC_SEED)
    return rows


def judge(
    found: Answered, claimed: Rows, own: Rows, true: Rows, card: ModelCard, kept: Any, rule: FingerprintRule
) -> Judged:
    """What fingerprints show at every length, and the sampler in the whole answer."""
    tokens = len(found.answer)
    entry = Judged(found.way, found.stack, tokens, found.answer)
    settings = standard_fingerprints(card.layers, card.dtype)
    for length in sorted({*(each for each in LENGTHS if each <= tokens), tokens}):
        rows = [{layer: each[:length] for layer, each in rows.items()} for rows in (claimed, own, true)]
        made = [make_fingerprint({layer: rows[0][layer] for layer in each.layers}, each) for each in settings]
        evidence = rounding_of(made, partial(_same, (rows[1], rows[2])), rule, card)
        assert evidence is not None
        entry.rounding[length] = evidence
        far = [f for each in made for f in judge_fingerprint(each, rows[1], rule, card) if not f.agrees]
        entry.others[length] = bool(far)
    if found.stack.startswith("batches") and "verified" not in found.stack:
        # Rows that were computed again show nothing of the tokens.
        entry.others[tokens] |= bool(kept["acc"][1])
        counted, beyond = (int(each) for each in kept["trials"])
        entry.trials = Trials(counted, beyond, tuple(kept["graded"].tolist()))
        entry.log_others = tuple(kept["others"].tolist())
        entry.log_cheaper = tuple(kept["cheaper"].tolist())
    return entry


def _same(rows: tuple[Rows, Rows], _: Fingerprint) -> tuple[Rows, Rows]:
    return rows


def _ratio(claimed: Rows, own: Rows, true: Rows, layer: int, settings: FingerprintSettings) -> float:
    """How many times own rounding that of an answer is: the root of the mean of squares over its blocks."""
    blocks = block_norms(claimed[layer] - true[layer], settings.block) / own_rounding(own, true, layer, settings)[:, 0]
    return float(np.sqrt(np.square(blocks).mean()))


def write(
    judged: Sequence[Judged],
    ratios: Sequence[tuple[str, int, Mapping[Place, float]]],
    limits: tuple[RoundingLimits, ...],
    card: ModelCard,
    name: str,
    out: Path,
) -> None:
    """The data, the page and both shipped tables."""
    by_way: dict[str, list[Judged]] = defaultdict(list)
    for each in judged:
        by_way[each.way].append(each)
    honest = by_way.pop("honest")
    cheats = [*_cheats(by_way)]
    size: dict[str, Any] = {"dtype": card.dtype, "layers": card.layers, "width": card.width}
    figures: dict[str, Any] = {"machine": machine(), "software": f"torch {torch.__version__}", "model": name, **size}
    figures["bytes"] = sum(wire_bytes(32, card.width, each) for each in standard_fingerprints(card.layers, card.dtype))
    figures |= {
        "limits": {f"{each.place}, {each.tokens}": [each.largest, each.ratio] for each in limits},
        "ratios": _ratios(ratios),
    }
    figures |= {"honest": _honest(honest), "cheats": [each.to_json() for each in cheats]}
    figures["logs"] = {way: _logs(each) for way, each in by_way.items()}
    (out / DATA).parent.mkdir(parents=True, exist_ok=True)
    (out / DATA).write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    (out / PAGE).write_text("\n".join(render(figures)) + "\n")
    _write_power(ModelPower(model=name, cheats=tuple(cheats), **size), out)
    shipped = shipped_calibration()
    others = [each for each in shipped.rounding if (each.dtype, each.layers, each.width) != (*size.values(),)]
    write_table(shipped.model_copy(update={"rounding": (*others, *limits)}), out)


def _write_power(found: ModelPower, out: Path) -> None:
    """Put the new figures into the shipped table; cheats that were not measured here keep theirs."""
    shipped = shipped_power()
    new = {each.cheat for each in found.cheats}
    size = (found.dtype, found.layers, found.width)
    alike = [each for each in shipped.models if (each.dtype, each.layers, each.width) == size]
    held = [each for one in alike for each in one.cheats if each.cheat not in new]
    one = found.model_copy(update={"cheats": (*held, *found.cheats)})
    models = (*(each for each in shipped.models if each not in alike), one)
    table = PowerTable(machine=machine(), models=models)
    (out / TABLE).parent.mkdir(parents=True, exist_ok=True)
    (out / TABLE).write_bytes(table.to_bytes() + b"\n")


def _honest(honest: Sequence[Judged]) -> dict[str, Any]:
    """By stack and over all: answers and rejections; and pools of 8 of one stack."""
    rng, stacks = np.random.default_rng(SEED), sorted({each.stack for each in honest})
    rows, pools = {}, []
    for stack in stacks:
        alike = [each for each in honest if each.stack == stack]
        logs = [each.rounding[each.tokens].finding.distance for each in alike]
        pools += [_pool(each) for each in _drawn(alike, rng)]
        seen = sum(each.is_seen(each.tokens) for each in alike)
        rows[stack] = {"answers": len(alike), "rejected": seen, "largest": round(max(logs), 2)}
    return {
        "answers": len(honest),
        "texts": len({each.text for each in honest}),
        "rejected": sum(each.is_seen(each.tokens) for each in honest),
        "stacks": rows,
        "pools": len(pools),
        "pools_rejected": sum(pools),
    }


def _ratios(honest: Sequence[tuple[str, int, Mapping[Place, float]]]) -> dict[str, Any]:
    """By stack and place, how many times own rounding that of whole answers is: median and largest."""
    found: dict[str, list[Mapping[Place, float]]] = defaultdict(list)
    for stack, _, ratios in honest:
        found[stack].append(ratios)
    return {
        stack: {
            place: [round(float(f([each[place] for each in alike])), 3) for f in (np.median, np.max)]
            for place in alike[0]
        }
        for stack, alike in sorted(found.items())
    }


def _cheats(by_way: Mapping[str, Sequence[Judged]]) -> Iterator[CheatPower]:
    """Power by length, in one answer and in eight, with the pass in F32 and without."""
    for wide, (way, found) in product((False, True), by_way.items()):
        rng = np.random.default_rng(SEED)
        told: dict[str, Any] = {"subject": SUBJECTS[way], "cheat": way, "wide": wide}
        for length in LENGTHS:
            long = [each for each in found if each.tokens >= length]
            if long and (way not in IN_TOKENS or all(each.tokens == length for each in long)):
                seen = sum(each.is_seen(length, wide) for each in long)
                yield CheatPower(tokens=length, seen=seen, of=len(long), **told)
        whole = [each for each in found if each.tokens >= LENGTHS[-1]]
        pools = [_pool(each, wide) for each in _drawn(whole, rng)]
        if pools:
            yield CheatPower(tokens=LENGTHS[-1], seen=sum(pools), of=len(pools), pooled=POOLED, **told)


def _drawn(found: Sequence[Judged], rng: np.random.Generator) -> Iterator[list[Judged]]:
    """Pools of answers, drawn without replacement inside a pool."""
    if len(found) >= POOLED:
        for _ in range(POOLS):
            yield [found[place] for place in rng.permutation(len(found))[:POOLED]]


def _pool(answers: Sequence[Judged], wide: bool = True) -> bool:
    """Whether answers together are rejected: by rounding, by tokens, or by one of them alone."""
    rounding = reduce(add, (each.rounding[each.tokens] for each in answers))
    return (
        any(each.is_seen(each.tokens, wide) for each in answers)
        or (wide and not rounding.finding.agrees)
        or log_tokens(answers) > -math.log(SamplerRule().alpha / 2)
    )


def log_tokens(answers: Iterable[Judged]) -> float:
    """The logarithm of the e-value of all tokens together against the stated sampler."""
    held = [*answers]
    told = [[each.log_others for each in held], [each.log_cheaper for each in held]]
    sums = [[sum(column) for column in zip(*filter(None, each), strict=True)] for each in told]
    return log_mean([sum((each.trials for each in held), NO_TRIALS).log_against(), *map(log_mean, filter(None, sums))])


def _logs(found: Sequence[Judged]) -> dict[str, Any]:
    """Quartiles of the evidence of whole answers, and of the tokens of all answers together."""
    logs = [each.rounding[each.tokens].finding.distance for each in found]
    quartiles = [round(float(each), 1) for each in np.quantile(logs, (0.25, 0.5, 0.75))]
    tokens = sum(each.tokens for each in found)
    return {"answers": len(found), "rounding": quartiles, "tokens": tokens, "log_tokens": round(log_tokens(found), 1)}


if __name__ == "__main__":
    main()
