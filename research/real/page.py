"""The page of figures on a real model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tallystick.verdicts.evidence import clopper_pearson

LENGTHS: Final = (8, 16, 32, 64, 128, 256, 512)
OUTCOMES: Final = ("accepted", "inconclusive", "rejected")
Entry = Mapping[str, Any]


def render(figures: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    yield "# Figures on a real model"
    yield ""
    yield "Written by `python -m research.real_model MODEL ANSWERS`; the data are in `data/real_model.json`."
    yield "Answers of our own server's engine, each judged by one pass of transformers under the default policy with"
    yield "the customer's own request and seed. Intervals are exact, at 95 %."
    for dtype, each in figures.items():
        yield from ("", f"## {each['model']} in {dtype}", "", f"{each['machine']}, {each['software']}.")
        yield from _honest(each.get("honest", []))
        yield from _cheats(each.get("cheats", {}))


def _honest(entries: Sequence[Entry]) -> Iterator[str]:
    if not entries:
        return
    stacks = Counter(each["stack"] for each in entries)
    tokens = sum(each["tokens"] for each in entries)
    yield from ("", "### Honest answers", "")
    yield f"{len(entries)} answers, {tokens} tokens: {'; '.join(f'{n} in {stack}' for stack, n in stacks.items())}."
    yield f"Rejected: {_rate([each['outcomes'][str_last(each)] for each in entries], 'rejected')}."
    yield "No calibration of tokens has seen them; two thirds of those in BF16 also set the limits on distances"
    yield "(`research.real.distances`)."
    yield from ("", "| tokens | answers | accepted | inconclusive | rejected |", "|---|---|---|---|---|")
    for low, high in zip((0, *LENGTHS), (*LENGTHS, 1 << 30), strict=True):
        found = [e["outcomes"][str_last(e)] for e in entries if low <= e["tokens"] < high]
        if found:
            name = f"{low}–{high - 1}" if high < 1 << 30 else f"{low} and more"
            yield f"| {name} | {len(found)} | {' | '.join(_rate(found, each) for each in OUTCOMES)} |"
    yield from ("", "| temperature, top-p | answers | accepted | inconclusive | rejected | without the seed |")
    yield "|---|---|---|---|---|---|"
    for key in sorted({(e["temperature"], e["top_p"]) for e in entries}):
        alike = [e for e in entries if (e["temperature"], e["top_p"]) == key]
        found = [e["outcomes"][str_last(e)] for e in alike]
        unseeded = Counter(e["unseeded"] for e in alike if "unseeded" in e)
        shown = ", ".join(f"{unseeded[o]} {o}" for o in OUTCOMES if unseeded[o]) or "–"
        counts = " | ".join(str(found.count(o)) for o in OUTCOMES)
        yield f"| {key[0]:g}, {key[1]:g} | {len(found)} | {counts} | {shown} |"


def _cheats(ways: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    if not ways:
        return
    lengths = [each for each in LENGTHS if any(str(each) in e["outcomes"] for es in ways.values() for e in es)]
    yield from ("", "### Cheats", "", "Answers rejected of those that are so long, and the checks that object.", "")
    yield f"| cheat | {' | '.join(f'{each} tokens' for each in lengths)} | whole | accepted | by |"
    yield f"|---|{'---|' * (len(lengths) + 3)}"
    for name, entries in ways.items():
        cells = [_share(entries, str(each)) for each in lengths]
        last = [e["outcomes"][str_last(e)] for e in entries]
        by = ", ".join(sorted({check for e in entries for check in e["objections"]})) or "–"
        whole = f"{last.count('rejected')} of {len(last)} | {last.count('accepted')}"
        yield f"| {name} | {' | '.join(cells)} | {whole} | {by} |"


def str_last(entry: Entry) -> str:
    """The key of the whole answer among the outcomes."""
    return str(entry["tokens"])


def _share(entries: Sequence[Entry], length: str) -> str:
    found = [each["outcomes"][length] for each in entries if length in each["outcomes"]]
    return f"{found.count('rejected')} of {len(found)}" if found else "–"


def _rate(found: Sequence[str], outcome: str) -> str:
    low, high = clopper_pearson(found.count(outcome), len(found))
    return f"{found.count(outcome)} of {len(found)} [{low:.1%}, {high:.1%}]"
