"""Records generation: around transformers' `generate`, or by a plain loop.

Kernels, batching and cache stay as they are. During the passes hidden states are only kept by reference. The content of
a receipt is computed when its answer is complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from tallystick.errors import UsageError
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel, check_tokens
from tallystick.frameworks.torch.generation.layer_tap import LayerTap
from tallystick.frameworks.torch.generation.sampler import CanonicalSampling, TorchSampler
from tallystick.recorders.generate_call import GenerateCall
from tallystick.recorders.receipts import NATIVE, Issued, ReceiptIssuer, RecordSettings, batch_composition
from tallystick.transcripts.receipt import Answer, BatchStatement, Identifier, Nonce, Request, Tokens
from tallystick.transcripts.sampler import Sampler

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
        call = GenerateCall.of(model, given, named)
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
    named = [each for each, _ in zip(_endless(asked), prompts, strict=False)]
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
    call: GenerateCall,
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


def _endless(asked: Sequence[AnswerRequest]) -> Iterator[AnswerRequest]:
    """The given requests, then new ones without end."""
    yield from asked
    while True:
        yield AnswerRequest()
