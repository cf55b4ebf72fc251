"""One call of transformers' `generate`: checks that a receipt can describe it, and rewrites it for the recording.

A receipt states one canonical sampler per answer, and tokens that are fed one after another. A setting that changes
logits or the order of tokens in another way is refused. So is a setting that this file does not know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, Final

import torch
from transformers import GenerationConfig

from tallystick.errors import MalformedError, UsageError
from tallystick.recorders.receipts import NATIVE
from tallystick.transcripts.sampler import Sampler

SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
CHANGES_NO_TOKEN: Final = frozenset(
    {
        *("max_length", "max_new_tokens", "max_time", "stop_strings", "prefill_chunk_size"),
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
        *("transformers_version", "early_stopping", "length_penalty"),
    }
)
"""Settings of `generate` that change neither logits nor sampling; the last two serve beam search, which is refused."""
DESCRIBED: Final = CHANGES_NO_TOKEN | {*SAMPLING, "do_sample"}
UNDESCRIBED: Final = (
    *("prefix_allowed_tokens_fn", "assistant_model", "negative_prompt_ids", "negative_prompt_attention_mask"),
    "custom_generate",
)
INPUTS: Final = frozenset(
    {
        *("inputs", "input_ids", "attention_mask", "past_key_values", "generation_config", "stopping_criteria"),
        *("streamer", "synced_gpus", "tokenizer", "trust_remote_code", "logits_processor", *UNDESCRIBED),
    }
)
"""Arguments that a call may have besides settings; any other would be passed to the model without a check."""
AS_COMPUTED: Final = (
    *("dynamic", "offloaded", "static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked"),
    *("DynamicCache", "StaticCache", "OffloadedCache", "EncoderDecoderCache"),
)
COMPILED: Final = ("static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked")


@dataclass(frozen=True)
class GenerateCall:
    """A call of `generate` that a receipt can describe.

    Each of `settings` comes from the first that states it: the call, its configuration, the model's, transformers'
    defaults. `ids` and `mask` are I64 [batch, length], padded on the left; the first `cached` positions are in the
    cache already.
    """

    arguments: Mapping[str, Any]
    settings: SimpleNamespace
    ids: torch.Tensor
    mask: torch.Tensor
    cached: int
    kv_cache: str
    max_tokens: int

    @classmethod
    def of(cls, model: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> GenerateCall:
        """Read the arguments of a call; raises `UsageError` for what a receipt cannot describe."""
        parameters = _parameters(type(model).generate) if given else ()
        arguments = {**dict(zip(parameters, given, strict=False)), **named}
        settings = _settings(model, arguments)
        _check_describable(model, arguments, settings)
        ids, mask = _prompts(arguments, settings)
        _check_stopping(arguments, settings, len(ids))
        cache = arguments.get("past_key_values")
        limit = _limit(settings, ids.shape[1])
        return cls(arguments, settings, ids, mask, _cached(cache, ids), _kind_of_cache(settings, cache), limit)

    @cached_property
    def prompts(self) -> list[list[int]]:
        """The token ids of each prompt without padding."""
        rows = zip(self.ids.tolist(), self.mask.tolist(), strict=True)
        return [row[kept.index(1) :] for row, kept in rows]

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens after which this call ends an answer."""
        listed = self.settings.eos_token_id
        return frozenset() if listed is None else frozenset([listed] if isinstance(listed, int) else listed)

    def sampler(self, seed: int) -> Sampler:
        """The canonical sampler with this call's settings; raises `UsageError` if there is none."""
        if not self.settings.do_sample:
            return Sampler(temperature=0.0, repetition_penalty=float(self.settings.repetition_penalty or 1.0))
        stated = {name: getattr(self.settings, name) for name in SAMPLING}
        fields = {name: value for name, value in stated.items() if value is not None}
        as_numbers = {name: value if name == "top_k" else float(value) for name, value in fields.items()}
        try:
            return Sampler.from_json({**as_numbers, "seed": seed}, "generate")
        except MalformedError as error:
            raise UsageError(f"{error}: nothing that the canonical sampler does") from None

    def with_processor(self, processor: Any | None) -> dict[str, Any]:
        """The arguments of the same call, where `processor` chooses each token, or else the largest logit does."""
        neutral = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}
        arguments = {name: value for name, value in self.arguments.items() if name not in {*SAMPLING, "do_sample"}}
        arguments |= {"logits_processor": [processor] if processor else [], "attention_mask": self.mask}
        given = self.arguments.get("generation_config")
        if given is None:
            return arguments | neutral
        config = deepcopy(given)
        config.update(**neutral)
        return arguments | {"generation_config": config}


@lru_cache(maxsize=64)
def _parameters(generate: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments of `generate` in order, without the model."""
    return tuple(inspect.signature(generate).parameters)[1:]


@lru_cache(maxsize=1)
def _usual() -> Mapping[str, Any]:
    """Every setting that transformers knows, with its default; `max_length` has none."""
    config = GenerationConfig()
    config.update(**config._get_default_generation_params(), defaults_only=True)
    return {name: value for name, value in vars(config).items() if name[0] != "_"} | {"max_length": None}


def _settings(model: Any, arguments: Mapping[str, Any]) -> SimpleNamespace:
    """The settings of a call, in transformers' order: the call, its configuration, the model's, the defaults."""
    usual, own = _usual(), vars(model.generation_config)
    given = vars(arguments["generation_config"]) if arguments.get("generation_config") is not None else {}
    settings = {}
    for name in (name for name in {**usual, **own, **given} if name[0] != "_"):
        stated = (source[name] for source in (given, own, usual) if source.get(name) is not None)
        settings[name] = arguments[name] if name in arguments else next(stated, None)
    return SimpleNamespace(**settings)


def _check_describable(model: Any, arguments: Mapping[str, Any], settings: SimpleNamespace) -> None:
    for name in (*UNDESCRIBED, "logits_processor"):
        if arguments.get(name) is not None and (name != "logits_processor" or len(arguments[name])):
            raise UsageError(f"generate: {name} is nothing that a receipt describes")
    for name in arguments:
        if name not in INPUTS and name not in vars(settings):
            raise UsageError(f"generate: {name} is nothing that a receipt describes")
    if model.config.is_encoder_decoder:
        raise UsageError("generate: a model with an encoder is nothing that a receipt describes")
    usual = _usual()
    for name, value in vars(settings).items():
        if name not in DESCRIBED and value != usual.get(name) and value is not None:
            raise UsageError(f"generate: {name}={value!r} is nothing that a receipt describes")
    if settings.cache_implementation == "paged":
        raise UsageError("generate: continuous batching cannot be recorded")
    is_compiled = settings.cache_implementation in COMPILED or settings.compile_config is not None
    if is_compiled and model.device.type != "cpu" and not settings.disable_compile:
        raise UsageError("generate: compiled passes cannot be recorded; add disable_compile=True")


def _prompts(arguments: Mapping[str, Any], settings: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids = arguments.get("inputs")
    ids = arguments.get("input_ids") if ids is None else ids
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or not ids.shape[1]:
        raise UsageError("generate: input_ids of the form [batch, length] are needed")
    mask = arguments.get("attention_mask")
    if mask is None and settings.pad_token_id is not None and bool((ids == settings.pad_token_id).any()):
        raise UsageError("generate: attention_mask is needed to tell padding from the prompt")
    mask = torch.ones_like(ids) if mask is None else mask
    if mask.shape != ids.shape or not _is_left_padded(mask):
        raise UsageError("generate: attention_mask: pad prompts on the left, and give their tokens even if cached")
    return ids, mask


def _is_left_padded(mask: torch.Tensor) -> bool:
    rows = mask.tolist()
    return all(row[-1] == 1 and row == sorted(row) and row[0] in (0, 1) for row in rows)


def _check_stopping(arguments: Mapping[str, Any], settings: SimpleNamespace, batch: int) -> None:
    """Refuse a stop rule of the caller for several prompts: an answer's end would look like the padding after it."""
    if batch > 1 and (settings.stop_strings or arguments.get("stopping_criteria")):
        raise UsageError("generate: stop_strings and stopping_criteria can be recorded for one prompt at a time")


def _cached(cache: Any, ids: torch.Tensor) -> int:
    length = 0 if cache is None else int(cache.get_seq_length())
    if length >= ids.shape[1]:
        raise UsageError("generate: the cache holds the whole prompt; its last token has to be fed")
    return length


def _kind_of_cache(settings: SimpleNamespace, cache: Any) -> str:
    """The kind of cache for keys and values; `NATIVE` for those that keep them as computed."""
    kind = str(settings.cache_implementation or "dynamic") if cache is None else type(cache).__name__
    return NATIVE if kind in AS_COMPUTED else kind


def _limit(settings: SimpleNamespace, length: int) -> int:
    if settings.max_new_tokens is not None:
        return int(settings.max_new_tokens)
    if settings.max_length is None:
        raise UsageError("generate: say max_new_tokens; a receipt states the limit")
    return int(settings.max_length) - length
