"""Records generation: around transformers' `generate`, or by a plain loop."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, Final, Literal

import torch
from pydantic import TypeAdapter, ValidationError
from transformers import GenerationConfig

from tallystick.core.errors import MalformedError, UsageError
from tallystick.engines.torch.generation.language_models import TorchLanguageModel, check_tokens
from tallystick.engines.torch.generation.layer_tap import LayerTap
from tallystick.engines.torch.generation.sampler import CanonicalSampling, TorchSampler
from tallystick.formats.receipt import Answer, BatchStatement, Identifier, Nonce, Request, Sampler, Tokens
from tallystick.recording.receipts import NATIVE, Issued, ReceiptIssuer, RecordSettings, batch_composition

# One call of transformers' `generate`: checks that a receipt can describe it, and rewrites it for the recording.
#
# A receipt states one canonical sampler per answer, and tokens that are fed one after another. A setting that changes
# logits or the order of tokens in another way is refused. So is a setting that this file does not know.

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
class _GenerateCall:
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
    def of(cls, model: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> _GenerateCall:
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


# Records generation: around transformers' `generate`, or by a plain loop.
#
# Kernels, batching and cache stay as they are. During the passes hidden states are only kept by reference. The content
# of a receipt is computed when its answer is complete.

GREEDY: Final = Sampler(temperature=0.0)
ID: Final = TypeAdapter(Identifier)
NONCE: Final = TypeAdapter(Nonce | None)
Finish = Literal["end", "stop", "length"]


def new_request_id() -> str:
    """A random request id of 24 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(12)


@dataclass(frozen=True)
class AnswerRequest:
    """The request of one answer: the provider's id, the customer's nonce, and the sampler.

    Without a sampler, the plain loop is greedy, and `generate` keeps its own settings with a seed drawn for the call.
    Raises `UsageError` for an id or a nonce that no receipt can hold.
    """

    id: str = field(default_factory=new_request_id)
    nonce: str | None = None
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        for name, form, value in (("id", ID, self.id), ("nonce", NONCE, self.nonce)):
            try:
                form.validate_python(value)
            except ValidationError:
                raise UsageError(f"request: {name}: {str(value)[:80]!r} is none that a receipt holds") from None


@dataclass(frozen=True)
class Generated:
    """An answer, the reason why it ended, and its receipt if one was issued."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    finish: Finish
    sampler: Sampler
    issued: Issued | None = None


@contextmanager
def record_generation(
    language_model: TorchLanguageModel, issuer: ReceiptIssuer, asked: Iterable[AnswerRequest] = ()
) -> Iterator[list[Generated]]:
    """Inside the block, every row that `language_model.model.generate` answers gets a receipt.

    Yields the list to which the answers are added. Rows use the entries of `asked` in order; later rows get new request
    ids. The canonical sampler chooses the tokens, with the settings of the call or those in `asked`.

    Raises, from `generate`:
        UsageError: a receipt cannot describe the call: beams, logits processors, an assistant, padding on
            the right, compiled passes.
    """
    model, waiting, answered = language_model.model, iter(asked), []
    generate = model.generate

    def recorded(*given: Any, **named: Any) -> Any:
        call = _GenerateCall.of(model, given, named)
        output, answers = _generate(language_model, issuer, call, generate, waiting)
        answered.extend(answers)
        return output

    had_own = "generate" in vars(model)
    model.generate = recorded
    try:
        yield answered
    finally:
        if had_own:
            model.generate = generate
        else:
            del model.generate


def generate_plain(
    language_model: TorchLanguageModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    asked: Sequence[AnswerRequest] = (),
    issuer: ReceiptIssuer | None = None,
) -> list[Generated]:
    """Answer `prompts` as one batch by a loop with a cache, at most `max_tokens` tokens each; receipts if `issuer`.

    Raises:
        MalformedError: a prompt is empty or has a token outside the vocabulary.
        UsageError: there is no prompt, `max_tokens` is below 1, or prompt and answer exceed the model's positions.
    """
    _check_prompts(language_model, prompts, max_tokens)
    named = [*asked[: len(prompts)], *(AnswerRequest() for _ in prompts[len(asked) :])]
    samplers = [each.sampler or GREEDY for each in named]
    settings = issuer.settings if issuer else RecordSettings()
    with LayerTap(language_model.model, settings.layers, seed=settings.seed, prompt=settings.prompt) as tap:
        answers = _decode(language_model, prompts, samplers, max_tokens)
    batch = _Batch(prompts, answers, named, samplers, max_tokens, language_model.end_tokens)
    return batch.answered(issuer, tap, fed=max(map(len, prompts)))


@dataclass(frozen=True)
class _Batch:
    """Answers that were computed together."""

    prompts: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    asked: Sequence[AnswerRequest]
    samplers: Sequence[Sampler]
    max_tokens: int
    end_tokens: frozenset[int]
    kv_cache: str = NATIVE

    def answered(self, issuer: ReceiptIssuer | None, tap: LayerTap, fed: int) -> list[Generated]:
        passes = max(map(len, self.answers))
        composition = batch_composition([(passes, [each.id for each in self.asked])])
        batch = BatchStatement(largest=len(self.prompts), composition=composition)
        return [self._row(row, issuer, tap, fed, batch) for row in range(len(self.prompts))]

    def _row(self, row: int, issuer: ReceiptIssuer | None, tap: LayerTap, fed: int, batch: BatchStatement) -> Generated:
        prompt, tokens, asked = tuple(self.prompts[row]), tuple(self.answers[row]), self.asked[row]
        finish = _finish(tokens, self.end_tokens, self.max_tokens)
        issued = None
        if issuer is not None:
            request = Request(id=asked.id, prompt=Tokens.of(prompt), max_tokens=self.max_tokens, nonce=asked.nonce)
            answer = Answer(tokens=Tokens.of(tokens), finish=finish)
            rows = tap.rows(row, len(tokens), fed)
            before = tap.prompt_rows(row, len(prompt), fed) if issuer.settings.prompt else None
            issued = issuer.issue(request, answer, self.samplers[row], rows, batch, before, self.kv_cache)
        return Generated(prompt, tokens, finish, self.samplers[row], issued)


def _generate(
    language_model: TorchLanguageModel,
    issuer: ReceiptIssuer,
    call: _GenerateCall,
    generate: Any,
    asked: Iterator[AnswerRequest],
) -> tuple[Any, list[Generated]]:
    prompts = call.prompts
    named = [next(asked, None) or AnswerRequest() for _ in prompts]
    samplers = [each.sampler or call.sampler(secrets.randbelow(1 << 53)) for each in named]
    # if the canonical choice is the first largest logit in every row, `generate` takes it by itself
    is_argmax = all(each.is_greedy and each.repetition_penalty == 1.0 and not each.adjustments for each in samplers)
    processor = None if is_argmax else CanonicalSampling(samplers, prompts, call.ids.shape[1])
    settings = issuer.settings
    with LayerTap(language_model.model, settings.layers, seed=settings.seed, prompt=settings.prompt) as tap:
        output = generate(**call.with_processor(processor))
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    rows = sequences[:, call.ids.shape[1] :].tolist()
    answers = [_until_end(row, call.end_tokens) for row in rows]
    end_tokens = language_model.end_tokens
    batch = _Batch(prompts, answers, named, samplers, call.max_tokens, end_tokens, call.kv_cache)
    return output, batch.answered(issuer, tap, fed=call.ids.shape[1] - call.cached)


@torch.inference_mode()
def _decode(
    language_model: TorchLanguageModel, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler], max_tokens: int
) -> list[list[int]]:
    model, device = language_model.model, language_model.device
    ids, mask = _padded(prompts, device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    choose, cache = TorchSampler(samplers).choose, None
    histories, answers = [list(each) for each in prompts], [list[int]() for _ in prompts]
    open_rows = set(range(len(prompts)))
    for place in range(max_tokens):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        chosen = choose(output.logits[:, -1].float(), [place] * len(prompts), histories)
        for row, token in enumerate(chosen.tolist()):
            histories[row].append(token)
            if row in open_rows:
                answers[row].append(token)
                open_rows -= {row} if token in language_model.end_tokens else set()
        if not open_rows:
            break
        cache, ids, positions = output.past_key_values, chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
    return answers


def _padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [batch, length], padded on the left."""
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(each)) + list(each) for each in prompts], device=device)
    mask = torch.tensor([[0] * (length - len(each)) + [1] * len(each) for each in prompts], device=device)
    return ids, mask


def _check_prompts(language_model: TorchLanguageModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    if not prompts or max_tokens < 1:
        raise UsageError("generate: at least one prompt and one token are needed")
    for each in prompts:
        check_tokens(each, language_model.card.vocabulary)
    room = getattr(language_model.model.config, "max_position_embeddings", None)
    longest = max(map(len, prompts))
    if room is not None and longest + max_tokens - 1 > room:
        raise UsageError(f"a prompt of {longest} tokens and {max_tokens} more do not fit into {room} positions")


def _until_end(tokens: list[int], end_tokens: frozenset[int]) -> list[int]:
    """An answer without the padding after its first end token."""
    ends = [place for place, token in enumerate(tokens) if token in end_tokens]
    return tokens[: ends[0] + 1] if ends else tokens


def _finish(tokens: Sequence[int], end_tokens: frozenset[int], max_tokens: int) -> Finish:
    if tokens[-1] in end_tokens:
        return "end"
    return "length" if len(tokens) == max_tokens else "stop"
