"""Figures of disputes by name, and how numbers of them are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tallystick.disputes.game.state import Rules

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


DATA: Final = DOCS / "data" / "benchmarks.json"


NAMES: Final = tuple(f"dispute_{name}" for name in ("rounds", "gas", "board", "work", "referee", "time", "idle"))


WAYS: Final = Rules(treasury="0" * 64).ways


Figure = Mapping[str, Any]


Held = Mapping[str, Mapping[str, Any]]


def read_data() -> Held:
    """The figures of disputes."""
    held = json.loads(DATA.read_text("utf-8"))
    missing = [name for name in NAMES if name not in held]
    if missing:
        raise SystemExit(f"{DATA.name}: run `python -m benchmarks {' '.join(missing)}` first")
    return {name: held[name] for name in NAMES}


def figures(held: Held, name: str) -> list[Figure]:
    """The figures of one benchmark."""
    return list(held[name]["figures"])


def find(held: Held, name: str) -> Figure:
    """One figure by its name."""
    (found,) = [each for each in figures(held, name.partition(":")[0]) if each["name"] == name]
    return found


def all_ways(held: Held) -> list[int]:
    """The numbers of children that were measured."""
    return sorted({each["ways"] for each in figures(held, "dispute_rounds")})


def own_size(held: Held) -> int:
    """The operators of the largest whole dispute."""
    return int(all_disputes(held)[-1]["operators"])


def all_disputes(held: Held) -> list[Figure]:
    """The whole disputes, by CPU time: over answers, and over a training."""
    return [each for each in figures(held, "dispute_time") if each["clock"] == "cpu"]


def on_the_wall(held: Held, cpu: Figure) -> Figure:
    """The same figure by the clock on the wall."""
    return find(held, cpu["name"].removesuffix("cpu") + "wall")


def proofs(held: Held) -> list[Figure]:
    """The bytes that a referee reads."""
    return [each for each in figures(held, "dispute_referee") if each["clock"] == "count"]


def is_time_of(each: Figure, proof: Figure) -> bool:
    """Whether a figure is the time of the ruling on this proof."""
    graph = after(proof["what"], "operator, ").partition(", V =")[0]
    return bool(each["clock"] == "cpu" and each["what"].endswith(graph))


def works_of(held: Held, arm: str) -> list[Figure]:
    """The work of one side, by workload."""
    found = figures(held, "dispute_work")
    return [each for each in found if each["name"].startswith(f"dispute_work: {arm}") and each["clock"] == "cpu"]


def workload(work: Figure) -> str:
    """The workload that a figure is about."""
    return str(work["name"]).partition(", ")[2].removesuffix(", cpu")


def at_default(held: Held, kind: str) -> Figure:
    """A figure at the default number of children."""
    (found,) = [each for each in of_graph(held, kind) if each["ways"] == WAYS]
    return found


def of_graph(held: Held, kind: str) -> list[Figure]:
    """All figures of one kind of the largest graph, by N."""
    found = figures(held, "dispute_board")
    largest = max(each["size"] for each in found)
    return [each for each in found if each["name"].startswith(f"dispute_board: {kind}{largest}/")]


def after(text: str, word: str) -> str:
    """What follows a word."""
    return text.partition(word)[2]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["-"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bold(text: str) -> str:
    """An outcome."""
    return f"**{text}**" if text else ""


def mark(ways: int) -> str:
    """The default number of children stands out."""
    return f"**{ways}**" if ways == WAYS else f"{ways}"


def counts(value: Sequence[float]) -> str:
    """A mean of counts, with the least and the most where they differ."""
    mean, least, most = value
    return f"{mean:.0f}" if least == most else f"{mean:.1f} [{least:.0f}, {most:.0f}]"


def seconds(value: Sequence[float]) -> str:
    """Seconds with the least and the most."""
    return f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"


def interval(value: Sequence[float]) -> str:
    """An estimate with its interval."""
    return f"{value[0]:.3g} [{value[1]:.3g}, {value[2]:.3g}]"


def noted(figure: Figure) -> str:
    """A ratio with its interval; a figure whose control failed says so."""
    void = ", **void**" if figure["outcome"] == "void" else ""
    return f"{interval(figure['value'])}, n = {figure['rounds']}{void}"
