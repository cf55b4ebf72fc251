"""The tables of `docs/inference.md`, from the entries of the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Entries = Sequence[Mapping[str, Any]]
GOAL: Final = 0.999


def separation_table(entries: Entries) -> Iterator[str]:
    """Areas of every way of serving under every setting, bytes a token in the heading."""
    settings = list(dict.fromkeys(each["setting"] for each in entries))
    sizes = {each["setting"]: each["bytes"] for each in entries}
    yield from _head(["way of serving", *(f"{name}<br>{sizes[name]:.2f} B" for name in settings)])
    for way in dict.fromkeys(each["way"] for each in entries):
        found = {each["setting"]: each["area"] for each in entries if each["way"] == way}
        yield _row([way, *(_area(found[name]) for name in settings)])


def least_bytes(entries: Entries) -> Iterator[str]:
    """For every cheat the setting of fewest bytes with an area of at least `GOAL`, and TOPLOC's area beside it."""
    yield from _head(["cheat", "fewest bytes a token", "setting", "÷ TOPLOC's", "TOPLOC's own area"])
    for way in dict.fromkeys(each["way"] for each in entries):
        found = [each for each in entries if each["way"] == way]
        toploc = next(each for each in found if each["setting"] == "TOPLOC")
        good = [each for each in found if each["area"]["value"] >= GOAL]
        if not good or way.startswith("honest"):
            continue
        best = min(good, key=lambda each: (each["bytes"], -each["area"]["value"]))
        share = f"{best['bytes'] / toploc['bytes']:.3f}"
        yield _row([way, f"{best['bytes']:.2f}", best["setting"], share, _area(toploc["area"])])


def tokens_table(entries: Entries, setting: str) -> Iterator[str]:
    """Answers rejected and accepted after so many tokens; the rest are inconclusive."""
    chosen = [each for each in entries if each["setting"] == setting]
    counts = list(dict.fromkeys(each["tokens"] for each in chosen))
    yield from _head(["way of serving", *(f"{count} tokens" for count in counts)])
    for way in dict.fromkeys(each["way"] for each in chosen):
        found = {each["tokens"]: each for each in chosen if each["way"] == way}
        yield _row([way, *(_decided(found[count]) for count in counts)])


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A table of what is given."""
    yield from _head(headings)
    for row in rows:
        yield _row([str(cell) for cell in row])


def _decided(entry: Mapping[str, Any]) -> str:
    return f"{entry['rejected']} ✗ {entry['accepted']} ✓"


def _area(area: Mapping[str, Any]) -> str:
    return f"{area['value']:.4f}" if area["value"] < 1 else "1"


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _row(cells)
    yield _row(["---", *(["--:"] * (len(cells) - 1))])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
