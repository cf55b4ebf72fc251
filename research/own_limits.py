"""How far limits of one's own run lie above the shipped ones: of healthy runs, and of runs made chaotic.

`python -m research.own_limits` trains small runs, measures limits on each of them as `tally calibrate-training --run`
does, and writes the largest ratio of each distance to docs/data/own_limits.json.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tallystick.audits.limits import Calibration, compared
from tallystick.formats.recipe import Recipe
from tallystick.recording.training import Config, train
from tallystick.tally.calibration import own_run
from tallystick.tally.calibration.runs import Case, corpus
from tallystick.tally.calibration.stacks import stack_named

OUT: Final = Path(__file__).parents[1] / "docs" / "data" / "own_limits.json"
STEPS: Final = 32
STACKS: Final = ("base", "AVX2 vector code", "portable vector code")
CASES: Final[dict[str, tuple[Any, ...]]] = {
    # name: model, optimizer, dtype, stride, rate (as a multiple of the usual one), clip_norm, width, healthy
    "llama adamw fp32, rate 0.3, no clipping": ("llama", "adamw", "fp32", 8, 150.0, None, 96, False),
    "llama adamw fp32": ("llama", "adamw", "fp32", 8, 1.0, 1.0, 96, True),
    "llama adamw fp32, rate x 5": ("llama", "adamw", "fp32", 8, 5.0, 1.0, 96, True),
    "llama adamw fp32, no clipping": ("llama", "adamw", "fp32", 8, 1.0, None, 96, True),
    "llama adamw fp32, three times as wide": ("llama", "adamw", "fp32", 8, 1.0, 1.0, 288, True),
    "llama adamw fp32, one anchor": ("llama", "adamw", "fp32", 32, 1.0, 1.0, 96, True),
    "llama adamw bf16": ("llama", "adamw", "bf16", 8, 1.0, 1.0, 96, True),
    "llama sgd fp32": ("llama", "sgd", "fp32", 8, 1.0, 1.0, 96, True),
    "llama sgd fp32, rate 0.5, no clipping": ("llama", "sgd", "fp32", 8, 10.0, None, 96, False),
    "cnn adamw fp32": ("cnn", "adamw", "fp32", 8, 1.0, 1.0, 0, True),
    "cnn adamw fp32, rate 0.3, no clipping": ("cnn", "adamw", "fp32", 8, 150.0, None, 0, False),
    "cnn sgd fp32": ("cnn", "sgd", "fp32", 8, 1.0, 1.0, 0, True),
}


def recipe_of(number: int, name: str) -> Recipe:
    """The recipe of a case: that of the study of shipped limits with its changes."""
    model, optimizer, dtype, stride, rate, clip, width, _ = CASES[name]
    table: Any = copy.deepcopy(Case(model, optimizer, dtype, 40 + number).recipe().to_json())
    table["training"]["steps"] = STEPS
    table["record"]["anchor_stride"] = stride
    table["optimizer"]["learning_rate"] *= rate
    if clip is None:
        table["optimizer"].pop("clip_norm", None)
    if width:
        config = table["model"]["config"]
        config |= {"hidden_size": width, "intermediate_size": 8 * width // 3}
    return Recipe.from_json(table, name)


def measured(source: Path) -> Iterator[dict[str, Any]]:
    """The limits of each case over the shipped ones, entry by entry."""
    own_run.graph_stacks = lambda: [stack_named(name) for name in STACKS]
    for number, name in enumerate(CASES):
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(Config(recipe_of(number, name), source), run)
            (Path(folder) / "work").mkdir()
            table: Calibration = own_run.calibrate_on(run, Path(folder) / "work", 3)[0]
        found = [
            {
                "window": entry.window,
                "from_step": entry.from_step,
                "ratios": {name: float(f"{own / base:.3g}") for name, (own, base) in compared(entry).items()},
            }
            for entry in table.entries
        ]
        row = {"case": name, "healthy": CASES[name][-1], "entries": found}
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def main() -> None:
    """Measure all cases and write them."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.txt"
        source.write_text(corpus())
        rows = list(measured(source))
    OUT.write_text(json.dumps({"steps": STEPS, "stacks": STACKS, "rows": rows}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
