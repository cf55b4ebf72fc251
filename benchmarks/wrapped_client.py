"""An answer through `tallystick.wrap` ÷ the same answer through the bare client, as its caller waits for it.

`tally serve-model` answers over HTTP as a process of its own, with SmolLM2-135M-Instruct in BF16; the client is that of
the `openai` library. Every arm begins when all verdicts are there. Of two answers in a row, the second one is computed
while the first one is verified in the client's process, so that both share the cores of the machine. Rounds in random
order, wall clock. Without the package that holds the model there are no figures.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Figure
from benchmarks.measure import interval, median_ratio, take_rounds
from tests.support import real_model

TALLY = str(Path(sys.executable).with_name("tally"))
ROUNDS, TOKENS = 12, 24
MESSAGES = [{"role": "user", "content": "Name three rivers."}]


def figures(quick: bool) -> Iterator[Figure]:
    if real_model.missing():
        return
    import openai

    import tallystick

    directory, count, rng = real_model.directory("BF16"), 2 if quick else ROUNDS, random.Random(7)
    with _served(directory) as url:
        bare = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
        wrapped = tallystick.wrap(bare.copy(), model=directory, on_inconclusive="ignore")
        for answers in (1, 2):
            arms = {name: partial(_ask, each, answers) for name, each in (("bare", bare), ("wrapped", wrapped))}
            rounds = take_rounds(arms, count, rng, between=wrapped.wait)
            verdicts = Counter(each.verdict.outcome for each in wrapped.wait())
            name = "one answer" if answers == 1 else "two answers in a row"
            yield Figure(
                f"wrapped_client: {name}",
                f"{name} of {TOKENS} tokens through `wrap` ÷ the bare client",
                interval(rounds, median_ratio("wrapped", "bare", "wall"), rng),
                count,
                "wall",
                details={"bare_s": median(each["bare"].wall for each in rounds), **verdicts},
            )
        wrapped.close()


def _ask(client: Any, answers: int) -> None:
    for _ in range(answers):
        client.chat.completions.create(model="served", messages=MESSAGES, max_tokens=TOKENS, temperature=0.7, seed=3)


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    """The address of a server of the model, as long as it runs."""
    command = [TALLY, "serve-model", str(directory), "--dtype", "BF16", "--name", "served"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
