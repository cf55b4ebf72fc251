"""Offline generation: requests with several choices, of which some are preempted and fed again."""

from __future__ import annotations

import importlib
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from vllm.runners import CONTEXT, Row, RunnerV1, RunnerV2

RUNNERS = {"V1": RunnerV1, "V2": RunnerV2}


@dataclass
class SamplingParams:
    """What a request asks for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    structured_outputs: Any = None
    thinking_token_budget: int | None = None
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = 16
    extra_args: dict[str, Any] | None = None


def config(*processors: str, mode: str = "NONE") -> SimpleNamespace:
    """A configuration in which nothing is set."""
    named = SimpleNamespace(name=mode)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="stub", max_model_len=CONTEXT, dtype=torch.float32, quantization=None, logprobs_mode="raw_logprobs",
            logits_processors=list(processors),
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(),
        compilation_config=SimpleNamespace(mode=named, cudagraph_mode=named),
        speculative_config=None,
        lora_config=None,
    )  # fmt: skip


class LLM:
    """Offline generation with at most `rows` requests at once; with `preempts`, one is now and then fed again."""

    def __init__(
        self,
        logits_processors: list[type],
        worker_extension_cls: str = "",
        rows: int = 3,
        runner: str = "V1",
        preempts: float = 0.0,
        vllm_config: Any = None,
    ) -> None:
        module, _, name = worker_extension_cls.rpartition(".")
        extension = getattr(importlib.import_module(module), name) if module else object
        self.vllm_config = vllm_config or config()
        self.model_config = self.vllm_config.model_config
        self.runner = RUNNERS[runner](logits_processors, self.vllm_config, rows)
        self.model = self.runner.get_model()
        self.worker = type("Worker", (extension,), {})()
        self.worker.model_runner, self.worker.vllm_config, self.worker.rank = self.runner, self.vllm_config, 0
        self._types, self._preempts = logits_processors, preempts

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> list[Any]:
        """The results of a method of every worker."""
        return [getattr(self.worker, method)(*args)]

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
        """Answers in the order of the prompts."""
        for kind in self._types:
            for each in params:
                kind.validate_params(each)
        asked = [self._rows(number, *each) for number, each in enumerate(zip(prompts, params, strict=True))]
        waiting = [row for rows in asked for row in rows]
        done: dict[str, Row] = {}
        while waiting or self.runner.batch:
            self.runner.update(waiting)
            if self.runner.batch:
                self.runner.step()
                done |= {row.name: row for row in self.runner.batch}
            if self.runner.luck.random() < self._preempts and (row := self.runner.preempt()) is not None:
                waiting.insert(0, row)
        return [self._output(number, [done[row.name] for row in rows]) for number, rows in enumerate(asked)]

    def _rows(self, number: int, prompt: list[int], params: SamplingParams) -> list[Row]:
        rows = []
        for choice in range(params.n):
            own = copy(params)
            own.seed = None if params.seed is None else params.seed + choice
            name = f"{number}-{number:08x}" if params.n == 1 else f"{choice}_{number}-{number:08x}"
            limit = CONTEXT - len(prompt) if params.max_tokens is None else params.max_tokens
            rows.append(Row(name, own, prompt, limit=limit))
        return rows

    def _output(self, number: int, rows: list[Row]) -> Any:
        answers = [
            SimpleNamespace(index=index, token_ids=row.answer, finish_reason="length", stop_reason=None)
            for index, row in enumerate(rows)
        ]
        return SimpleNamespace(request_id=f"{number}", prompt_token_ids=rows[0].prompt, outputs=answers)
