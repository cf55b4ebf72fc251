"""The choice in PyTorch is the choice, filters are those of transformers, and `generate` takes the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tallystick.core.errors import MalformedError, UsageError
from tallystick.engines.torch.generation.sampler import (
    CanonicalSampling,
    TorchSampler,
    choose_on_device,
    choose_on_host,
)
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling.choice import choose
from tests.support.sampler_rows import kept

pytestmark = pytest.mark.usefixtures("one_thread")

SAMPLERS = [
    *(Sampler(), Sampler(seed=4), Sampler(form="cdf", seed=4), Sampler(temperature=0.0, repetition_penalty=1.4)),
    *(Sampler(top_k=5), Sampler(top_p=0.7), Sampler(top_p=0.0), Sampler(min_p=0.2), Sampler(top_k=5, seed=9)),
    Sampler(form="cdf", temperature=0.6, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.2),
]


def rows_of(vocabulary: int, scale: float = 3.0, rows: int = len(SAMPLERS)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * scale
    logits[:, 1:][torch.rand(rows, vocabulary - 1, generator=generator) < 0.05] = -torch.inf
    logits[:, 1:][torch.rand(rows, vocabulary - 1, generator=generator) < 0.02] = torch.nan
    return logits


def histories_of(rows: int, vocabulary: int) -> list[list[int]]:
    return [[token % vocabulary for token in range(row)] for row in range(rows)]


def expected(logits: torch.Tensor, positions: Any, histories: Any) -> list[int]:
    rows = zip(logits.float().numpy(), SAMPLERS, positions, histories, strict=True)
    return [int(choose(row[None], sampler, [place], [past])[0]) for row, sampler, place, past in rows]


@pytest.mark.parametrize("vocabulary", [1, 2, 16, 17, 384, 5003])
@pytest.mark.parametrize("scale", [0.0, 3.0, 300.0])
def test_rows_with_samplers_of_their_own_get_the_tokens_of_the_choice(vocabulary: int, scale: float) -> None:
    logits, positions = rows_of(vocabulary, scale), [3 * row for row in range(len(SAMPLERS))]
    histories = histories_of(len(SAMPLERS), vocabulary)
    wanted = expected(logits, positions, histories)
    tokens = TorchSampler(SAMPLERS).choose(logits, positions, histories)
    assert (tokens.dtype, tokens.tolist()) == (torch.int64, wanted)
    assert choose_on_device(logits, SAMPLERS, positions, histories) == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_other_widths_are_rounded_to_float32(dtype: torch.dtype) -> None:
    logits, positions = rows_of(50).to(dtype), range(len(SAMPLERS))
    histories = histories_of(len(SAMPLERS), 50)
    assert TorchSampler(SAMPLERS).choose(logits, positions, histories).tolist() == expected(
        logits, positions, histories
    )


@pytest.mark.parametrize("fetched", [1, 2, 16])
def test_where_more_tokens_may_win_than_are_fetched_the_host_decides(fetched: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("tallystick.engines.torch.generation.sampler.CANDIDATES", fetched)
    logits = rows_of(400, 0.5, rows=60)
    samplers, histories = [Sampler(seed=seed) for seed in range(60)], [()] * 60
    assert choose_on_device(logits, samplers, [0] * 60, histories) == choose_on_host(
        logits, samplers, [0] * 60, histories
    )


def test_gradients_and_inference_mode_do_not_matter() -> None:
    logits = rows_of(20).requires_grad_()
    histories = histories_of(len(SAMPLERS), 20)
    tokens = TorchSampler(SAMPLERS).choose(logits, range(len(SAMPLERS)), histories)
    assert tokens.tolist() == expected(logits.detach(), range(len(SAMPLERS)), histories)


def test_a_row_without_tokens_has_no_choice() -> None:
    logits = torch.tensor([[0.0, 1.0], [-torch.inf, torch.nan]])
    with pytest.raises(MalformedError, match="row 1 leaves no token"):
        TorchSampler(SAMPLERS[:2]).choose(logits, [0, 0], [[], []])
    for sampler in SAMPLERS:
        assert choose_on_device(logits[1:], [sampler], [0], [[]]) == [-1]
    assert TorchSampler(SAMPLERS[:1]).choose(logits[:1], [0], [[]]).shape == (1,)


def test_there_is_one_sampler_for_each_row() -> None:
    with pytest.raises(UsageError, match="1 samplers for 2 rows"):
        TorchSampler(SAMPLERS[:1]).choose(torch.zeros(2, 3), [0, 0], [[], []])
    with pytest.raises(MalformedError, match="outside the vocabulary"):
        TorchSampler(SAMPLERS[:1]).choose(torch.zeros(1, 3), [0], [[3]])


# ---- filters are those of transformers


@pytest.mark.parametrize(
    ("sampler", "processors"),
    [
        (Sampler(top_k=7), [TopKLogitsWarper(7)]),
        (Sampler(top_p=0.8), [TopPLogitsWarper(0.8)]),
        (Sampler(min_p=0.05), [MinPLogitsWarper(0.05)]),
        (Sampler(temperature=0.7, top_p=0.5), [TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.5)]),
        (Sampler(repetition_penalty=1.7, min_p=0.1), [RepetitionPenaltyLogitsProcessor(1.7), MinPLogitsWarper(0.1)]),
        (
            Sampler(temperature=1.3, top_k=20, top_p=0.9, min_p=0.03, repetition_penalty=1.2),
            [
                *(RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(1.3)),
                *(TopKLogitsWarper(20), TopPLogitsWarper(0.9), MinPLogitsWarper(0.03)),
            ],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Sampler) else f"{len(value)} processors",
)
def test_kept_tokens_are_those_of_transformers(sampler: Sampler, processors: list[Any]) -> None:
    """Rows without ties: normal logits, no two within float32 rounding of an edge of a filter."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 300, generator=generator) * 2.5
    past = torch.randint(0, 300, (40, 12), generator=generator)
    scores: Any = logits.clone()
    for processor in processors:
        scores = processor(past, scores)
    found = kept(logits.numpy(), sampler, range(40), past.tolist())
    assert (found == torch.isfinite(scores).numpy()).all()


def test_of_tokens_tied_at_the_edge_transformers_keeps_all_and_we_the_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0]])
    theirs: Any = TopKLogitsWarper(2)(torch.zeros(1, 0, dtype=torch.long), logits.clone())  # type: ignore[arg-type]
    assert torch.isfinite(theirs).tolist() == [[True, True, True, True]]
    assert kept(logits.numpy(), Sampler(top_k=2), [0], [[]]).tolist() == [[True, True, False, False]]


def test_penalised_logits_are_those_of_transformers_to_a_float32_rounding() -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(3))
    past = torch.arange(100)[None]
    theirs: Any = RepetitionPenaltyLogitsProcessor(1.3)(past, logits.clone())  # type: ignore[arg-type]
    factors = np.where(logits > 0, np.float32(1 / 1.3), np.float32(1.3)).astype(np.float64)
    ours = np.where(np.arange(200) < 100, logits.numpy().astype(np.float64) * factors, logits.numpy())
    assert np.abs(theirs.numpy() / ours - 1).max() < 2.0**-22


# ---- generate


def test_generate_takes_the_chosen_tokens_in_a_padded_batch(language_model: Any) -> None:
    """The tokens of each row are those that a loop of single passes chooses from the model's logits."""
    model, prompts = language_model.model, [[5, 6, 7, 8], [9, 10]]
    samplers = [Sampler(seed=1, repetition_penalty=1.3, temperature=0.9), Sampler(form="cdf", seed=2, top_p=0.95)]
    width = 4
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    rows: list[torch.Tensor] = []
    canonical = CanonicalSampling(samplers, prompts)

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows.append(scores.clone())
        return canonical(input_ids, scores)

    found = model.generate(
        *(ids,), attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, logits_processor=[processor]
    )
    for row, (prompt, sampler) in enumerate(zip(prompts, samplers, strict=True)):
        answer = found[row, width:].tolist()
        assert len(set(answer)) > 1
        for place, token in enumerate(answer):
            logits = rows[place][row : row + 1].numpy()
            assert choose(logits, sampler, [place], [prompt + answer[:place]]).tolist() == [token]


def test_all_other_scores_are_out() -> None:
    scores = torch.randn(2, 9)
    found = CanonicalSampling(SAMPLERS[:2], [[1], [2, 3]])(torch.tensor([[0, 1, 4], [2, 3, 5]]), scores)
    assert (torch.isfinite(found).sum(1) == 1).all()
    assert found.argmax(1).tolist() == TorchSampler(SAMPLERS[:2]).choose(scores, [1, 1], [[1, 4], [2, 3, 5]]).tolist()
