"""A tiny Llama in a GGUF file: linear layers in 4 bits, the embedding in 8, norms in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

WIDTH, INNER, LAYERS, HEADS = 32, 64, 2, 2
PIECES = [*(chr(code) for code in range(0x21, 0x7F)), "Ġ", "th", "in", "ing"]
MERGES = ("t h", "i n", "in g")


def write_gguf(path: Path, architecture: str = "llama", without: str = "", merges: Sequence[str] = MERGES) -> Path:
    """Write the file, all but the tensor `without`; the same bytes each time."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(PIECES))
    _add_tokenizer(writer, merges)
    random = np.random.default_rng(0)
    for name, shape in _shapes().items():
        if name != without:
            _add_tensor(writer, name, random.standard_normal(shape, np.float32) / 8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, merges: Sequence[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(PIECES))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(PIECES), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.{name}_norm.weight": (WIDTH,) for name in ("attn", "ffn")}
        shapes |= {f"{block}.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"{block}.ffn_{name}.weight": (INNER, WIDTH) for name in ("gate", "up")}
        shapes[f"{block}.ffn_down.weight"] = (WIDTH, INNER)
    return shapes


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0 if name.startswith("token") else gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
