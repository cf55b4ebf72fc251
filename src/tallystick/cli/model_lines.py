"""What was imported, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tallystick.presentation.sentence import counted
from tallystick.presentation.verdict_text import printable

if TYPE_CHECKING:
    from tallystick.recorders.importing import ImportedModel
    from tallystick.recorders.model_sources import ModelSource


def import_lines(source: ModelSource, done: ImportedModel, out: Path) -> Iterator[str]:
    """Where the model came from, what was changed on the way, and the digests that name it."""
    card = done.card
    yield f"from {printable(source.named)}" + ("" if done.sha256 is None else f", sha256 {done.sha256}")
    shape = f"{counted(card.layers, 'layer')} of width {card.width}, vocabulary {card.vocabulary:,}"
    yield f"{counted(done.weights, 'weight')}: {card.architecture}, {shape}"
    yield "stored: " + ", ".join(f"{counted(count, 'tensor')} in {name}" for name, count in sorted(done.stored.items()))
    yield f"written: {_written(done)}"
    for name, held in sorted(done.tied.items()):
        yield f"tied: {name} is {held}"
    yield f"weights {card.weights}"
    yield f"model {card.identity}"
    yield f"next: tally serve-model {quote(str(out))} --dtype {card.dtype} --key provider.key"


def _written(done: ImportedModel) -> str:
    if not done.dequantised:
        return f"in {done.card.dtype}"
    quantised = f"{' and '.join(sorted(done.dequantised))} dequantised to F32"
    return quantised if done.card.dtype == "F32" else f"{quantised}, then all rounded to {done.card.dtype}"
