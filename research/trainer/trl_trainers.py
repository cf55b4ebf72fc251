"""Trainers of trl on very small data, recorded as they come or with what mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import LlamaConfig, LlamaForCausalLM

import tallystick
from research.trainer import chats
from research.trainer.own_loops import run
from research.trainer.settings import Setting

ROWS, LENGTH, STEPS = 16, 32, 4
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TOKENS = {"vocab_size": chats.VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 100, "save_strategy": "no"}
SMALL = {"max_steps": STEPS, "per_device_train_batch_size": 2, "bf16": False, "gradient_checkpointing": False}


def trained_by(setting: Setting, folder: Path) -> tuple[int, str]:
    """The steps that were trained, and the error that ended the training, if any."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, **TOKENS)).save_pretrained(folder / "model")
    model = LlamaForCausalLM.from_pretrained(folder / "model")  # DPOTrainer loads its reference model from there
    if setting.adapter is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **setting.adapter))
    try:
        if setting.trainer.endswith("-loop"):
            return run(setting.trainer, model, folder), ""
        callbacks = [tallystick.TallyCallback(folder / "run", anchor_stride=2)]
        trainer = trl_trainer(setting.trainer, model, folder, {**QUIET, **SMALL, **setting.arguments}, callbacks)
        trainer.train()
    except Exception as error:  # noqa: BLE001 (the row says whatever broke the training)
        return 0, f"{type(error).__name__}: {error}".splitlines()[0]
    return trainer.state.global_step, ""


def trl_trainer(kind: str, model: Any, folder: Path, arguments: dict[str, Any], callbacks: list[Any]) -> Any:
    """The trainer of trl that `kind` names; `plain-sft` lets the model compute its loss."""
    if kind in ("sft", "plain-sft"):
        return _sft(kind == "plain-sft", model, folder, arguments, callbacks)
    return (_dpo if kind == "dpo" else _grpo)(model, folder, arguments, callbacks)


def _sft(is_plain: bool, model: Any, folder: Path, arguments: dict[str, Any], callbacks: list[Any]) -> Any:
    from trl import SFTConfig, SFTTrainer

    class PlainSFTTrainer(SFTTrainer):  # type: ignore[misc]
        """The line that the recorder's warning asks for."""

        compute_loss = transformers.Trainer.compute_loss

    settings = SFTConfig(str(folder / "trainer"), max_length=LENGTH, **arguments)
    given = {"processing_class": chats.tokenizer(), "callbacks": callbacks}
    made = PlainSFTTrainer if is_plain else SFTTrainer
    return made(model, settings, train_dataset=Dataset.from_list(chats.chats(ROWS)), **given)


def _dpo(model: Any, folder: Path, arguments: dict[str, Any], callbacks: list[Any]) -> Any:
    from trl import DPOConfig, DPOTrainer

    settings = DPOConfig(str(folder / "trainer"), max_length=LENGTH, **arguments)
    given = {"processing_class": chats.tokenizer(), "callbacks": callbacks}
    return DPOTrainer(model, args=settings, train_dataset=Dataset.from_list(chats.preferences(ROWS)), **given)


def _grpo(model: Any, folder: Path, arguments: dict[str, Any], callbacks: list[Any]) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(str(folder / "trainer"), max_completion_length=8, num_generations=2, **arguments)
    given = {"processing_class": chats.tokenizer(), "callbacks": callbacks, "reward_funcs": by_length}
    return GRPOTrainer(model, args=settings, train_dataset=Dataset.from_list(chats.prompts(ROWS)), **given)


def by_length(completions: list[Any], **_others: Any) -> list[float]:
    """A reward that differs between completions."""
    return [float(len(str(each))) for each in completions]
