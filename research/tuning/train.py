"""Fine-tunes a model with the Trainer as it comes, in a process of its own, and prints what it took as JSON.

`python -m research.tuning.train MODEL KIND STEPS STRIDE FOLDER [RUN]`: KIND is `lora` or `full`. With RUN, the training
is recorded there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

import tallystick

LENGTH = 64


class Clock(TrainerCallback):  # type: ignore[misc]
    """The time at the end of every step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The time before the first step."""
        self.times.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The time after a step, with what was recorded of it."""
        self.times.append(time.perf_counter())


def row(tokenizer: Any, a: int, b: int) -> dict[str, list[int]]:
    """A conversation of 64 tokens, of which only the answer is learned."""
    asked = [{"role": "user", "content": f"What is {a} times {b}?"}]
    chat = [*asked, {"role": "assistant", "content": f"{a} times {b} is {a * b}."}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(chat, return_dict=False)
    rest = LENGTH - len(whole)
    labels = [-100] * len(prompt) + whole[len(prompt) :] + [-100] * rest
    return {"input_ids": whole + [tokenizer.pad_token_id] * rest, "labels": labels}


def main(path: str, kind: str, steps: int, stride: int, folder: str, run: str | None) -> dict[str, Any]:
    """Train, and return the seconds of each step."""
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    rows = [row(tokenizer, a, b) for a in range(2, 22) for b in range(2, 12)]
    quiet = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(folder, max_steps=steps, per_device_train_batch_size=1, **quiet)
    recorders = [] if run is None else [tallystick.TallyCallback(run, anchor_stride=stride, initial=path)]
    clock = Clock()
    Trainer(model, arguments, train_dataset=rows, callbacks=[*recorders, clock]).train()
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    return {"seconds": seconds, "weights": sum(each.numel() for each in model.parameters()), "trained": trained}


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(main(given[0], given[1], int(given[2]), int(given[3]), given[4], given[5] if given[5:] else None)))
