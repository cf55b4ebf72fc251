"""The page `docs/inference.md`, from the parts of the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from research.inference.tables import least_bytes, plain_table, separation_table, tokens_table

Parts = Mapping[str, Any]
DTYPES: Final = {"F32": "float32", "BF16": "bfloat16"}

INTRODUCTION: Final = """# Verified inference: what checks of served answers see

Written by `{command}`; every figure is in `data/inference.json`. Machine: {machine}.

A provider serves a language model, honestly or not, and states what an honest one would. A verifier that holds the
promised model makes one pass over the tokens. The promised model is a Llama of 6 layers and width 128 that is trained
for 1,500 steps on the shipped text (`examples/served.toml`); the cheaper one has 2 layers and width 64. They are small,
and trained on one subject: areas for larger models have to be measured separately. Prompts have 32 tokens and answers
256; the honest provider decodes with a cache, a batch at a time.

**Fingerprints** detect ways of serving that change what is computed. The **sampler's test**, which needs no bytes,
detects ways that change which tokens are chosen. The tables show that neither does the work of the other.
"""

SEPARATION: Final = """
## Fingerprints, {dtype} promised

Area under the ROC curve over windows of 32 tokens, {answers} answers per way of serving ({windows} windows); 0.5 means
no detection, 1 means that all windows are separated. A setting is layers, bits × numbers of how many tokens; *middle*
is the block after a third of the model, *both* that and the final norm, and its score is the larger distance in units
of the honest median of the layer. Intervals are in the data: if all windows are separated, the lower end for so many
answers is {low:.3f} (Clopper–Pearson over answers, because windows of one answer go together).
"""

LEAST: Final = """
Fewest bytes per token for an area of at least 0.999 within 32 tokens, compared with TOPLOC (8.06 bytes per token):
"""

CURVES: Final = """
![ROC curves]({picture})
"""

TOKENS: Final = """
## The sampler's test, {dtype} promised

Decisions after a number of tokens of an answer: rejected ✗, accepted ✓, all others are inconclusive; {answers} answers
per way of serving. The rule is the shipped one (`docs/evidence.md`): an honest provider is rejected with probability
1e-6 at most, and an acceptance excludes the stated alternative with error 0.01.
"""
SETTING_HEADS: Final = {
    "seed known": "The customer chose the seed; temperature 0.8",
    "seed unknown": "Nobody looks at the seed; temperature 0.8",
    "greedy": "Temperature 0",
}


def render(parts: Parts, command: str, machine: str) -> Iterator[str]:
    """The lines of the page; parts that were not run are left out."""
    yield INTRODUCTION.format(command=command, machine=machine)
    for dtype, name in DTYPES.items():
        if entries := parts.get(f"separation {dtype}"):
            yield from _separation(entries, name, f"inference_curves_{dtype.lower()}.png")
    for dtype, name in DTYPES.items():
        if entries := parts.get(f"tokens {dtype}"):
            yield from _tokens(entries, name, f"inference_tokens_{dtype.lower()}.png")
    for part, write in (("encoder", _encoder), ("forgeries", _forgeries), ("stacks", _stacks)):
        if part in parts:
            yield from write(parts[part])


def _separation(entries: Sequence[Mapping[str, Any]], name: str, picture: str) -> Iterator[str]:
    areas = [each["area"] for each in entries]
    answers = areas[0]["honest"]
    low = min((each["low"] for each in areas if each["value"] == 1), default=0.0)
    yield SEPARATION.format(dtype=name, answers=answers, windows=answers * 8, low=low)
    yield from separation_table(entries)
    yield LEAST
    yield from least_bytes(entries)
    yield CURVES.format(picture=picture)


def _tokens(entries: Sequence[Mapping[str, Any]], name: str, picture: str) -> Iterator[str]:
    yield TOKENS.format(dtype=name, answers=entries[0]["answers"])
    for setting in dict.fromkeys(each["setting"] for each in entries):
        yield f"\n### {SETTING_HEADS[setting]}\n"
        yield from tokens_table(entries, setting)
    yield f"\n![Detection against tokens]({picture})\n"


def _encoder(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## An encoder: MiniLM\n\n{found['text']}\n"
    yield from plain_table(found["headings"], found["rows"])


def _forgeries(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## Receipts forged, replayed, reordered, dropped\n\n{found['text']}\n"
    yield from plain_table(found["headings"], found["rows"])


def _stacks(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## Made on one stack, verified on the others\n\n{found['text']}\n"
    yield from plain_table(found["headings"], found["rows"])
