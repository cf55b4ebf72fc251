"""The settings that are tried: what a script of the Trainer may say, one at a time beside the defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torch.optim import AdamW
from transformers.optimization import Adafactor, AdafactorSchedule


@dataclass(frozen=True)
class Setting:
    """A row: arguments of `TrainingArguments`, of the model's configuration, and how the data comes.

    `batches` is `equal` (every batch has one shape), `short` (the last one of an epoch has fewer rows) or `padded`
    (each batch is as long as its longest row). `adapter` trains LoRA of peft. `seed` is given to the recorder. `loss`
    says who computes it, `start` how the training begins. `optimizer` makes one and its schedule from parameters, in
    place of the Trainer's own. `trainer` is one of trl's, or a loop of one's own, in the place of the Trainer.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    batches: str = "equal"
    adapter: dict[str, Any] | None = None
    seed: int | None = None
    loss: str = "model"
    start: str = "fresh"
    optimizer: Callable[[Any], Any] | None = None
    trainer: str = ""


UNFUSED: Final = {"optim": "adamw_torch"}
MIXED: Final = UNFUSED | {"bf16": True, "gradient_accumulation_steps": 2}
CHECKPOINTED: Final = {"gradient_checkpointing": True}
VALIDATED: Final = {"eval_strategy": "steps", "eval_steps": 4, "save_steps": 4}
DROPPING: Final = {"attention_dropout": 0.1}
EAGER: Final = {"attn_implementation": "eager"}


def _relative(weights: Any) -> tuple[Any, Any]:
    """Adafactor with learning rates of its own."""
    optimizer = Adafactor(weights, warmup_init=True)
    return optimizer, AdafactorSchedule(optimizer)


def _with(name: str, **arguments: Any) -> Setting:
    return Setting(name, UNFUSED | arguments)


SETTINGS: Final = (
    Setting("the defaults (`adamw_torch_fused`)"),
    _with("`adamw_torch`"),
    _with("`adamw_torch`, betas, epsilon, weight decay", adam_beta1=0.8, adam_beta2=0.95, weight_decay=0.1),
    Setting("`sgd`", {"optim": "sgd"}),
    Setting("`sgd` with Nesterov's momentum", {"optim": "sgd", "optim_args": "momentum=0.9,nesterov=True"}),
    Setting("`adafactor`", {"optim": "adafactor"}),
    Setting("`Adafactor(lr=None, warmup_init=True)`", optimizer=_relative),
    Setting("`AdamW(amsgrad=True)`", optimizer=lambda weights: (AdamW(weights, amsgrad=True), None)),
    Setting("`rmsprop`", {"optim": "rmsprop"}),
    Setting("`rmsprop` with momentum", {"optim": "rmsprop", "optim_args": "momentum=0.9"}),
    Setting("`adagrad`", {"optim": "adagrad"}),
    _with("cosine schedule with warm-up", lr_scheduler_type="cosine", warmup_steps=3),
    _with("constant learning rate", lr_scheduler_type="constant"),
    _with("no clipping", max_grad_norm=0.0),
    _with("clipping at 0.1", max_grad_norm=0.1),
    _with("2 micro-batches a step", gradient_accumulation_steps=2),
    _with("3 micro-batches a step", gradient_accumulation_steps=3),
    _with("gradient checkpointing", gradient_checkpointing=True),
    _with("label smoothing", label_smoothing_factor=0.1),
    Setting("label smoothing, `bf16`, 2 micro-batches", MIXED | {"label_smoothing_factor": 0.1}),
    Setting("label smoothing, LoRA", UNFUSED | {"label_smoothing_factor": 0.1}, adapter={"lora_dropout": 0.0}),
    Setting("a `compute_loss_func`", UNFUSED, loss="function"),
    Setting("an own `compute_loss`", UNFUSED, loss="method"),
    Setting("an own `compute_loss` that logs", UNFUSED, loss="logging"),
    _with("`bf16`", bf16=True),
    _with("`torch_compile`", torch_compile=True),
    _with("2 processes load the data", dataloader_num_workers=2),
    _with("NEFTune noise", neftune_noise_alpha=5.0),
    Setting("NEFTune noise, `seed=1`", UNFUSED | {"neftune_noise_alpha": 5.0}, seed=1),
    Setting("eager attention", UNFUSED, {"attn_implementation": "eager"}),
    Setting("rows of 128 tokens", UNFUSED, {"length": 128}),
    Setting("rows of 128 tokens, eager attention", UNFUSED, {"length": 128, "attn_implementation": "eager"}),
    Setting("attention dropout", UNFUSED, {"attention_dropout": 0.1}),
    Setting("attention dropout, `seed=1`", UNFUSED, {"attention_dropout": 0.1}, seed=1),
    Setting("attention dropout, eager attention, `seed=1`", UNFUSED, DROPPING | EAGER, seed=1),
    Setting("attention dropout, `bf16`, 2 micro-batches, `seed=1`", MIXED, DROPPING, seed=1),
    Setting("attention dropout, gradient checkpointing, `seed=1`", UNFUSED | CHECKPOINTED, DROPPING, seed=1),
    Setting("weights in bfloat16", UNFUSED, {"dtype": "bfloat16"}),
    Setting("weights in bfloat16, `adamw_torch_fused`", {}, {"dtype": "bfloat16"}),
    Setting(
        "weights in bfloat16, `sgd` with momentum",
        {"optim": "sgd", "optim_args": "momentum=0.9"},
        {"dtype": "bfloat16"},
    ),
    Setting("a smaller last batch", UNFUSED, batches="short"),
    Setting("batches padded to their longest row", UNFUSED, batches="padded"),
    Setting("LoRA of peft", UNFUSED, adapter={"lora_dropout": 0.0}),
    Setting("LoRA with dropout", UNFUSED, adapter={"lora_dropout": 0.1}),
    Setting("LoRA with dropout, `seed=1`", UNFUSED, adapter={"lora_dropout": 0.1}, seed=1),
    Setting("steps by `max_steps`", UNFUSED | {"max_steps": 9}),
    Setting("two epochs", UNFUSED | {"num_train_epochs": 2}),
    Setting("evaluated and saved while it trains", UNFUSED | VALIDATED),
    Setting("the best model loaded at the end", UNFUSED | VALIDATED | {"load_best_model_at_end": True}),
    Setting("resumed from a checkpoint", UNFUSED, start="resumed"),
    Setting("a second `train()` with one callback", UNFUSED, start="twice"),
    Setting("`SFTTrainer` of trl", trainer="sft"),
    Setting("`SFTTrainer`, `compute_loss` of transformers", trainer="plain-sft"),
    Setting("the same, packed rows", {"packing": True}, trainer="plain-sft"),
    Setting("the same, loss on the assistant's turns", {"assistant_only_loss": True}, trainer="plain-sft"),
    Setting("the same, LoRA of peft", adapter={"lora_dropout": 0.0}, trainer="plain-sft"),
    Setting("`DPOTrainer` of trl", trainer="dpo"),
    Setting("`GRPOTrainer` of trl", trainer="grpo"),
    Setting("DPO, a loop of one's own", trainer="dpo-loop"),
    Setting("GRPO, a loop of one's own", trainer="grpo-loop"),
)
