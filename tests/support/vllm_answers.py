"""Answers of vLLM itself with receipts, for tests with the marker `vllm`, each way of running it in its own process.

`python -m tests.support.vllm_answers MODEL OUT WAY` writes one JSON line for each answer: the receipt and its request.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from research.vllm.interpreted.triton_interpreter import let_triton_interpret

LAYERS, VOCABULARY, CONTEXT = 3, 256, 256
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}
WAYS: dict[str, dict[str, str]] = {
    "V1": {},
    "V1 with async scheduling": {},
    "V1 compiled, in processes": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
    "V2": {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"},
}
CROWDED = {"block_size": 32, "num_gpu_blocks_override": 10, "disable_log_stats": False}
"""Too few blocks of the cache for four answers at once: some are preempted, and computed again."""
LONG = [(7 * place) % 200 + 20 for place in range(90)]
"""A prompt that is fed in several parts, and that the prefix cache holds afterwards."""
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.0, "n": 2},
    {"temperature": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"temperature": 1.0, "logit_bias": {30: 3.0, 31: -100.0}},
    {"temperature": 1.0, "allowed_token_ids": [*range(40, 240)]},
    {"temperature": 1.0, "prompt": LONG},
    {"temperature": 0.9, "prompt": LONG},
]


def write_model(out: Path) -> None:
    """A random Llama that vLLM's kernels for the CPU can run, with a tokenizer of as many words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        eos_token_id=0,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(out)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", bos_token="w1").save_pretrained(out)


def schedule_ahead() -> None:
    """Let vLLM schedule a pass before the one before it has ended, which it does not on a CPU of itself."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_schedule(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(check_and_schedule)


def preemptions(llm: Any) -> int:
    """How often an answer was preempted."""
    return next(int(each.value) for each in llm.get_metrics() if each.name == "vllm:num_preemptions")


def generate(model: Path, out: Path, way: str) -> None:
    from vllm import LLM, SamplingParams

    import tallystick

    is_compiled = "compiled" in way
    options = {"max_model_len": CONTEXT, "max_num_batched_tokens": 32, "max_num_seqs": 4, "dtype": "float32"} | CROWDED
    llm = LLM(str(model), enforce_eager=not is_compiled, **options, **tallystick.VLLM_OPTIONS)
    card, key = tallystick.card_of(model), tallystick.SigningKey(bytes(32))
    settings = tallystick.RecordSettings(
        tallystick.standard_fingerprints(LAYERS, "F32", (LAYERS, LAYERS + 1) if is_compiled else None)
    )
    requests = [
        {"prompt": [number + 3, 40, 41], "max_tokens": 96, "seed": 100 + number} | each
        for number, each in enumerate(SETTINGS)
    ]
    params = [
        SamplingParams(**{name: value for name, value in each.items() if name != "prompt"}, extra_args={"tally": 1})
        for each in requests
    ]
    with tallystick.vllm_issuer(llm, card, key, settings) as issuer:
        outputs = llm.generate([{"prompt_token_ids": each["prompt"]} for each in requests], params, use_tqdm=False)
        issued = iter(tallystick.issue_receipts(llm, outputs, params, issuer))
    assert preemptions(llm) > 0
    with out.open("w") as file:
        for request in requests:
            for choice in range(request.pop("n", 1)):
                asked = request | {"seed": request["seed"] + choice}
                file.write(json.dumps({"receipt": next(issued).signed.to_json(), "request": asked}) + "\n")


if __name__ == "__main__":
    os.environ |= ENVIRONMENT | WAYS[sys.argv[3]]
    if sys.argv[3] == "V2":
        let_triton_interpret()
    if "async" in sys.argv[3]:
        schedule_ahead()
    generate(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
