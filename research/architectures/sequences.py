"""Language models and others that read sequences, beside those of `models.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from research.architectures.example import VOCABULARY, Example, loss_of_tokens, normal, tokens

if TYPE_CHECKING:
    import torch

SHARED: Final = {"num_key_value_heads": 2}
GEMMA: Final = SHARED | {"head_dim": 8, "sliding_window": 4, "num_hidden_layers": 2}
UNMARKED: Final[Mapping[str, Any]] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def causal_model(kind: str, **settings: Any) -> Any:
    """A language model with random weights and eager attention; `settings` go into its configuration."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 16, "vocab_size": VOCABULARY}
    config = transformers.AutoConfig.for_model(kind, **UNMARKED, **(sizes | settings))
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def _causal(kind: str, **settings: Any) -> Example:
    return Example(causal_model(kind, **settings), loss_of_tokens, tokens, {"use_cache": False})


def _t5() -> Example:
    import transformers

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4}
    config = transformers.T5Config(vocab_size=VOCABULARY, **sizes, dropout_rate=0.0, decoder_start_token_id=0)
    return Example(
        transformers.T5ForConditionalGeneration(config), loss_of_tokens, _sources_and_tokens, {"use_cache": False}
    )


def _whisper() -> Example:
    import transformers

    layers = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in _WHISPER.items()}
    marks = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=4,
        d_model=16,
        max_source_positions=8,
        max_target_positions=16,
        dropout=0.0,
        **layers,
        **marks,
    )
    model = transformers.WhisperForConditionalGeneration._from_config(config, attn_implementation="eager")
    return Example(model, loss_of_tokens, _sounds_and_tokens, {"use_cache": False})


_WHISPER: Final = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}


def _sources_and_tokens(index: int) -> dict[str, torch.Tensor]:
    drawn = tokens(index + 50)
    return {**tokens(index), "decoder_input_ids": drawn["input_ids"], "target": drawn["target"]}


def _sounds_and_tokens(index: int) -> dict[str, torch.Tensor]:
    drawn = tokens(index)
    return {
        "input_features": normal(index, 4, 16),
        "decoder_input_ids": drawn["input_ids"],
        "target": drawn["target"],
    }


MODELS: Final[Mapping[str, Callable[[], Example]]] = {
    "Gemma 2": partial(_causal, "gemma2", **GEMMA),
    "Gemma 3": partial(_causal, "gemma3_text", **GEMMA, layer_types=["sliding_attention", "full_attention"]),
    "Mistral, window": partial(_causal, "mistral", **SHARED, sliding_window=4),
    "Phi-3": partial(_causal, "phi3", **SHARED),
    "OPT": partial(_causal, "opt", ffn_dim=48, dropout=0.0, word_embed_proj_dim=32),
    "Mamba": partial(_causal, "mamba", state_size=4, expand=2, conv_kernel=4, time_step_rank=4),
    "Mamba-2": partial(_causal, "mamba2", num_heads=4, head_dim=16, state_size=8, expand=2, n_groups=1, chunk_size=4),
    "T5": _t5,
    "Whisper": _whisper,
}
