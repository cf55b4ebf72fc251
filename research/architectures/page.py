"""The page of architectures: `docs/architectures.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, Final, TypeAlias

VERSIONS: Final = (
    *("torch", "transformers", "diffusers", "jax", "flax", "equinox", "optax", "iree-base-compiler", "numpy"),
)
Row: TypeAlias = Mapping[str, Any]
HEAD = """# Architectures: captured, sliced, replayed and judged

Written by `{command}`; every figure is in `data/architectures.json`, with the root of each graph.

Models are small: tiny configurations with random weights, a batch of 3; MiniLM is the whole pre-trained encoder. A
training step is the second step of AdamW with clipped gradients, forward, backward and optimizer in one graph. That of
the JAX transformer is `jax.grad` and Adam; Flax and Equinox are trained by the optimizers of optax (AdamW with clipped
gradients and a schedule, Lion, and gradient descent with Nesterov's momentum). All is F32. Flax, Equinox and optax are
not in the locked environment; `requirements/jax-models.txt` adds them to another one:

    VENV=build/jax scripts/bootstrap.sh
    build/jax/bin/uv pip install --python build/jax --require-hashes -r requirements/jax-models.txt

Machine: {machine}. Versions: {versions}.

The strict reader accepts every graph with its root unchanged, and its own framework replays it with the bits of the
native run{bits}, but for loops of JAX that it unrolls: *Refused, and why* names them."""
GLANCE = """
## At a glance

*Captured*: the number of operators. *Bits*: the graph gives those of the native run. *Accepted on*: engines on which
every operator of the run lies within its bound.

| architecture | graph | captured | bits | accepted on | refused |
|---|---|---|---|---|---|"""
GRAPHS = """
## Graphs and their slices

*Kinds* counts operators that move data, are exact, round once, accumulate, call a library function, or are composite.
*Middle slice*: operators of the slice that computes the middle third from the values before it, run alone. *One
example*: the graph for a single example, if it can be proved that examples do not mix. Its operators accept every row
of the whole run; the figure is the distance of its outputs from those rows.
"""
ENGINES = """
## Engines

How far other engines are from the framework's own results, as the largest |Δ| of a tensor ÷ its largest element. The
first number is for loss and outputs, the second for the worst of all tensors. The reference is NumPy in float64,
without a framework. The second number leaves out parameters whose gradient is 0 in exact arithmetic: kernels give only
rounding for it, and Adam scales it to the size of any other. These are biases of keys, because softmax ignores a shift,
and biases before a normalization that removes them. GPT-2 keeps the bias of its keys inside a larger tensor, so there
it is included.
"""
JUDGED = """
## Judged

Every operator of every run is judged on that run's own values against its deterministic bound. The figure is the
largest share of a bound that any element used; sums of two numbers can use all of it. *Undecided* is a result beyond
a bound that its engine is known to leave: nobody is accused of it, and it is not accepted.
"""


def render(examinations: Iterable[Row], machine: str, command: str) -> str:
    """The page for examinations as JSON values."""
    rows = list(examinations)
    failures = [f"{row['architecture']}, {row['part']}: {line}" for row in rows for line in row["failures"]]
    bits = ", except where the list of failures says otherwise" if failures else ""
    head = HEAD.format(command=command, machine=machine, versions=", ".join(versions()), bits=bits)
    seen = [row for row in rows if row["nodes"]]
    parts = [head, *_failures(failures), GLANCE, *map(_glance, rows), GRAPHS, *_graphs(seen)]
    parts += [ENGINES, *_engines(seen), JUDGED, *_judged(seen)]
    return "\n".join([*parts, "\n## Refused, and why\n", *_refused(rows)]) + "\n"


def versions() -> Iterator[str]:
    """The versions of the libraries that are installed."""
    for name in VERSIONS:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _failures(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n## Failures\n"
        yield from (f"- {line}" for line in lines)


def _glance(row: Row) -> str:
    if not row["nodes"]:
        return _line(row, "no", "", "", row["refused"]["capture"])
    same = "native bits" not in row["refused"] and not any(line.startswith("replay") for line in row["failures"])
    judged = row["judged"].items()
    accepted = [name for name, found in judged if not found["rejected"] and not found.get("undecided")]
    refused = [name for name in row["refused"] if name not in ("single examples", "native bits")]
    refused += [f"{name} (undecided)" for name, found in judged if found.get("undecided")]
    return _line(row, row["nodes"], "equal" if same else "other", ", ".join(accepted), ", ".join(refused))


def _graphs(rows: list[Row]) -> Iterator[str]:
    yield "| architecture | graph | operators | kinds | depth | middle slice | one example |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        yield _line(row, row["nodes"], kinds, row["depth"], _slice(row["slice"]), _example(row["examples"]))


def _slice(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not run"
    if not found["differing"]:
        return f"{found['nodes']}, same bits"
    return f"{found['nodes']}, within bounds, {found['worst']:.1g}"


def _example(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "refused"
    return f"accepted, {found['worst']:.1g}" if found["worst"] else "accepted, same bits"


def _engines(rows: list[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["distances"]))
    yield f"| architecture | graph | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"
    for row in rows:
        yield _line(row, *(_distance(row["distances"].get(name)) for name in names))


def _distance(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "refused"
    figures = found["observed"], found["worst"]
    return " / ".join(f"{figure:.1e}" if figure else "0" for figure in figures)


def _judged(rows: list[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row["judged"]))
    yield f"| architecture | graph | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"
    for row in rows:
        yield _line(row, *(_judgement(row["judged"].get(name)) for name in names))
    every = [found for row in rows for found in row["judged"].values()]
    operators, rejected = sum(found["operators"] for found in every), sum(len(found["rejected"]) for found in every)
    undecided = sum(len(found.get("undecided", ())) for found in every)
    yield f"\nAll together: {operators:,} operators judged, {rejected} rejected, {undecided} undecided."
    for key, what in (("unbounded", "no element"), ("partly_unbounded", "not every element")):
        found = sorted({name for each in every for name in each[key]})
        named = ", ".join(f"`{name}`" for name in found) or "none"
        yield f"Operators that had a finite bound on {what}: {named}."
    yield "An element has no finite bound where its exact result may leave the range of F32."


def _judgement(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "refused"
    undecided = found.get("undecided", ())
    verdict = f"{len(undecided)} undecided" if undecided else "accepted"
    verdict = f"{len(found['rejected'])} rejected" if found["rejected"] else verdict
    return f"{verdict}, {found['share']:.3g}"


def _refused(rows: list[Row]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for what, reason in row["refused"].items():
            reasons.setdefault((what, reason), []).append(f"{row['architecture']} {row['part']}")
        for name, judged in row["judged"].items():
            for line in judged.get("undecided", ()):
                reasons.setdefault((f"{name}, undecided", line), []).append(f"{row['architecture']} {row['part']}")
        found = row["slice"]
        if found and found["differing"]:
            reason = "other bits than in the whole run: it starts from row-major tensors, the run had another layout"
            reasons.setdefault(("middle slice", reason), []).append(f"{row['architecture']} {row['part']}")
    for (what, reason), subjects in reasons.items():
        yield f"- {what}, {'; '.join(subjects)}: {reason}"


def _line(row: Row, *cells: object) -> str:
    return f"| {row['architecture']} | {row['part']} | {' | '.join(map(str, cells))} |"
