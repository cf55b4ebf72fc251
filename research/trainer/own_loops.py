"""DPO and GRPO as loops of somebody's own, recorded by `record_training`, which watches the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import tallystick
from research.trainer import chats

ROWS, BATCH, LENGTH, BETA, CLIPPED, PROMPT = 16, 2, 32, 0.1, 0.2, 10


def run(kind: str, model: Any, folder: Path) -> int:
    """Train a few steps of `dpo-loop` or `grpo-loop`; the number that were taken."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    batches, loss_of = (pairs(model), dpo_loss) if kind == "dpo-loop" else (rollouts(model), grpo_loss)
    taken = 0
    with tallystick.record_training(folder / "run", model, optimizer, anchor_stride=2) as recorder:
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recorder.step(loss, batch=batch)
            taken += 1
    return taken


def log_probabilities(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probability of each token but the first, F32[rows, length − 1]."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return functional.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def pairs(model: Any) -> Any:
    """Batches of chosen rows over rejected ones; the reference model's log-probabilities are data."""
    tokenizer, rows = chats.tokenizer(), chats.preferences(ROWS)
    for start in range(0, ROWS, BATCH):
        some = rows[start : start + BATCH]
        texts = [each["prompt"] + each[which] for which in ("chosen", "rejected") for each in some]
        rendered = tokenizer.apply_chat_template(texts, return_dict=True, padding="max_length", max_length=LENGTH)
        tokens = torch.tensor(rendered["input_ids"])
        batch = {"tokens": tokens, "mask": (tokens != 0).float()[:, 1:]}
        if start == 0:
            reference = _copy(model)
        with torch.no_grad():
            held = (log_probabilities(reference, tokens) * batch["mask"]).sum(-1)
        yield batch | {"reference": held}


def dpo_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Rafailov et al. 2023, equation 7."""
    ratio = (log_probabilities(model, batch["tokens"]) * batch["mask"]).sum(-1) - batch["reference"]
    chosen, rejected = ratio[:BATCH], ratio[BATCH:]
    return -functional.logsigmoid(BETA * (chosen - rejected)).mean()


def rollouts(model: Any) -> Any:
    """Sampled completions with their advantages; tokens and old log-probabilities are data of the step."""
    for step in range(4):
        torch.manual_seed(step)
        prompt = torch.randint(4, 99, (1, PROMPT)).repeat(2 * BATCH, 1)
        model.eval()
        with torch.no_grad():
            tokens = model.generate(prompt, do_sample=True, min_new_tokens=8, max_new_tokens=8, pad_token_id=0)
            old = log_probabilities(model, tokens)
        model.train()
        reward = (tokens[:, PROMPT:] % 7).float().mean(-1)
        yield {"tokens": tokens, "old": old, "advantage": (reward - reward.mean()) / (reward.std() + 1e-4)}


def grpo_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Shao et al. 2024, equation 3, without the penalty."""
    ratio = (log_probabilities(model, batch["tokens"]) - batch["old"]).exp()[:, PROMPT - 1 :]
    advantage = batch["advantage"][:, None]
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIPPED, 1 + CLIPPED) * advantage).mean()


def _copy(model: Any) -> Any:
    made = type(model)(model.config)
    made.load_state_dict(model.state_dict())
    return made
