"""`tally --help` ÷ `python -c pass`, both as they are felt, and `tally verify-response` ÷ `import torch`.

Each arm is a process of its own, from start to exit; wall clock, rounds in random order, files in the page cache. The
goal of 0.15 s is for the command itself. `tally verify-response` judges an answer of a model so small that its pass and
its weights take no time: what is left is the start. It has one with a pass that `--keep-pass` kept, and one without.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Goal
from benchmarks.measure import Arm, interval, median_ratio, take_rounds
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, generate_plain
from tallystick.recording.receipts import ReceiptIssuer

TALLY = str(Path(sys.executable).with_name("tally"))
WORDS, INCONCLUSIVE = 256, 3
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "tally --help": [TALLY, "--help"],
    "tally --version": [TALLY, "--version"],
    "import tallystick": [sys.executable, "-c", "import tallystick"],
}


def figures(quick: bool) -> Iterator[Figure]:
    count, rng = (5 if quick else 40), random.Random(6)
    rounds = take_rounds({name: _process(command) for name, command in COMMANDS.items()}, count, rng)
    seconds = interval(rounds, lambda seen: median(spent["tally --help"].wall for spent in seen), rng)
    least = {f"{name}, least s": min(spent[name].wall for spent in rounds) for name in COMMANDS}
    what = "`tally --help` from start to exit"
    yield Figure("cold_start: seconds", what, seconds, count, "wall", "s", Goal(0.15), details=least)
    for name in ("tally --help", "tally --version", "import tallystick"):
        value = interval(rounds, median_ratio(name, "python -c pass", "wall"), rng)
        yield Figure(f"cold_start: {name}", f"`{name}` ÷ `python -c pass`", value, count, "wall")

    yield from _start_of_verification(quick, rng)


def _start_of_verification(quick: bool, rng: random.Random) -> Iterator[Figure]:
    """CPU time: the start reads and compiles, and waits for nothing."""
    count, torch = 5 if quick else 20, "import torch"
    with TemporaryDirectory() as folder, TemporaryDirectory() as kept, TemporaryDirectory() as empty:
        judging = [TALLY, "verify-response", str(_answer(Path(folder))), "--model", folder, "--rung", "2"]
        _process([*judging, "--keep-pass"], INCONCLUSIVE, kept)()
        arms = {
            "with a kept pass": _process(judging, INCONCLUSIVE, kept),
            "without": _process(judging, INCONCLUSIVE, empty),
            torch: _process([sys.executable, "-c", torch]),
        }
        rounds = take_rounds(arms, count, rng)
    least = {f"{name}, least s": min(spent[name].cpu for spent in rounds) for name in arms}
    for name, goal in (("with a kept pass", Goal(1.5)), ("without", None)):
        value = interval(rounds, median_ratio(name, torch, "cpu"), rng)
        what = f"`tally verify-response` {name} ÷ `python -c 'import torch'`"
        yield Figure(f"cold_start: tally verify-response, {name}", what, value, count, "cpu", goal=goal, details=least)


def _answer(folder: Path) -> Path:
    """A receipt of a random model in `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **shape)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0", bos_token="w1", model_max_length=WORDS)
    tokens.save_pretrained(folder)
    model = load_language_model(folder)
    asked = AnswerRequest("request", None, Sampler(seed=3))
    [answer] = generate_plain(model, [[3, 4, 5]], 16, [asked], ReceiptIssuer(model, SigningKey(bytes(32))))
    place = folder / "receipt.json"
    place.write_bytes(answer.issued.signed.to_bytes())
    return place


def _process(command: list[str], code: int = 0, cache: str | None = None) -> Arm:
    around = os.environ if cache is None else {**os.environ, "XDG_CACHE_HOME": cache}

    def run() -> None:
        found = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=around).returncode
        if found != code:
            raise RuntimeError(f"{command[0]} ended with {found}, and {code} was expected")

    return run
