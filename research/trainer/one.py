"""Trains under one setting, audits the run, and prints what happened as JSON.

Usage: python -m research.trainer.one NUMBER FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import tallystick
from research.trainer.settings import SETTINGS, Setting
from research.trainer.trl_trainers import trained_by
from tallystick.audits.policy import Policy
from tallystick.core.errors import TallyError

ROWS, BATCH, LENGTH, VOCABULARY = 48, 4, 16, 64
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 100, "num_train_epochs": 1}


def main() -> None:
    """One row."""
    setting, folder = SETTINGS[int(sys.argv[1])], Path(sys.argv[2])
    print(json.dumps(tried(setting, folder)))


def tried(setting: Setting, folder: Path) -> dict[str, Any]:
    """What recording and auditing a training under a setting give: steps, what was said, and the verdict."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps, error = trained(setting, folder)
    said = [str(each.message) for each in caught if is_ours(each)]
    row: dict[str, Any] = {"name": setting.name, "steps": steps, "error": error, "said": said}
    return row | audited(folder / "run")


def is_ours(warning: warnings.WarningMessage) -> bool:
    """Whether a warning is one of the recorder's."""
    text = str(warning.message)
    return any(word in text for word in ("audit of this run", "cannot be replayed", "recording ended", "not recorded"))


def trained(setting: Setting, folder: Path) -> tuple[int, str]:
    """The steps that were trained, and the error that ended the training, if any."""
    if setting.trainer:
        return trained_by(setting, folder)
    trainer = trainer_of(setting, folder)
    try:
        if setting.start == "twice":
            trainer.train()
        trainer.train(resume_from_checkpoint=first_half(setting, folder) if setting.start == "resumed" else None)
    except Exception as error:  # noqa: BLE001 (the row says whatever broke the training)
        return trainer.state.global_step, f"{type(error).__name__}: {error}".splitlines()[0]
    return trainer.state.global_step, ""


def first_half(setting: Setting, folder: Path) -> str:
    """Train the first half of the steps unrecorded; the checkpoint that the recorded half starts from."""
    half = Setting(setting.name, setting.arguments | {"max_steps": 6, "save_steps": 6}, setting.config)
    trainer = trainer_of(half, folder / "half", is_recorded=False)
    trainer.train()
    return str(folder / "half" / "trainer" / "checkpoint-6")


def trainer_of(setting: Setting, folder: Path, *, is_recorded: bool = True) -> Trainer:
    """A Trainer on random rows under a setting."""
    torch.manual_seed(0)
    config = dict(setting.config)
    length, dtype = config.pop("length", LENGTH), config.pop("dtype", "float32")
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **SIZES, **config)).to(getattr(torch, dtype))
    if setting.adapter is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **setting.adapter))
    save = {"save_strategy": "steps" if "save_steps" in setting.arguments else "no"}
    arguments = TrainingArguments(
        str(folder / "trainer"), per_device_train_batch_size=BATCH, **QUIET | save | setting.arguments
    )
    recorder = tallystick.TallyCallback(folder / "run", anchor_stride=4, seed=setting.seed)
    callbacks = [recorder] if is_recorded else []
    data: dict[str, Any] = {"train_dataset": rows_of(setting, length), "data_collator": padded}
    if "eval_strategy" in setting.arguments:
        data["eval_dataset"] = data["train_dataset"][:8]
    if setting.optimizer is not None:
        data["optimizers"] = setting.optimizer(model.parameters())
    of_function = {"compute_loss_func": weighted} if setting.loss == "function" else {}
    return TRAINERS[setting.loss](model, arguments, **data, callbacks=callbacks, **of_function)


def weighted(output: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss that weighs later tokens more."""
    each = torch.nn.functional.cross_entropy(output.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    loss: torch.Tensor = (each * torch.linspace(0.5, 1.5, each.shape[1])).sum() / num_items_in_batch
    return loss


class WithOwnLoss(Trainer):  # type: ignore[misc]
    """Computes the loss itself, from logits."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a micro-batch."""
        labels = inputs.pop("labels")
        return weighted(model(**inputs), labels, num_items_in_batch)


class WithLogs(WithOwnLoss):
    """Reads the loss while it is computed, as for a log."""

    def compute_loss(self, *args: Any, **settings: Any) -> Any:
        """Return the loss of a micro-batch."""
        loss = super().compute_loss(*args, **settings)
        self.seen = [*getattr(self, "seen", []), loss.item()]
        return loss


TRAINERS = {"model": Trainer, "function": Trainer, "method": WithOwnLoss, "logging": WithLogs}


def rows_of(setting: Setting, length: int) -> list[torch.Tensor]:
    """Random rows; of other lengths where batches are padded, and one too many where the last batch is short."""
    count = ROWS + (setting.batches == "short")
    lengths = [length - (row % 5 if setting.batches == "padded" else 0) for row in range(count)]
    return [torch.randint(1, VOCABULARY, (each,)) for each in lengths]


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest row."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100), "attention_mask": (ids > 0).long()}


def audited(run: Path) -> dict[str, Any]:
    """The verdict of a full audit on the same stack."""
    try:
        result = tallystick.audit(run, Policy(full=True))
    except TallyError as error:
        return {"outcome": "none", "why": str(error), "replayed": 0}
    coverage = result.verdict.coverage
    why = [str(each) for each in (*result.objections, *result.verdict.unavailable)]
    return {"outcome": result.outcome, "why": why[0] if why else "", "replayed": coverage.done if coverage else 0}


if __name__ == "__main__":
    main()
