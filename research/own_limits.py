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

from tallystick.audits.calibration import Calibration
from tallystick.audits.own_limits import ratios
from tallystick.calibration.training.own_run import calibrate_on
from tallystick.calibration.training.recipes import Case, corpus
from tallystick.recorders.training import train
from tallystick.transcripts.recipe import Recipe

OUT: Final = Path(__file__).parents[1] / "docs" / "data" / "own_limits.json"
STEPS: Final = 32
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
    "llama sgd fp32, rate 2, no clipping": ("llama", "sgd", "fp32", 8, 40.0, None, 96, False),
    "cnn adamw fp32": ("cnn", "adamw", "fp32", 8, 1.0, 1.0, 0, True),
    "cnn adamw fp32, rate 0.3, no clipping": ("cnn", "adamw", "fp32", 8, 150.0, None, 0, False),
    "cnn sgd fp32": ("cnn", "sgd", "fp32", 8, 1.0, 1.0, 0, True),
}


def recipe_of(number: int, name: str) -> Recipe:
    """The recipe of a case: that of the study of shipped limits with its changes."""
    model, optimizer, dtype, stride, rate, clip, width, _ = CASES[name]
    table: dict[str, Any] = copy.deepcopy(Case(model, optimizer, dtype, 40 + number).recipe().to_json())  # type: ignore[assignment]
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
    """The ratios of each case, the largest of each distance over its entries."""
    for number, name in enumerate(CASES):
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(recipe_of(number, name), source, run)
            (Path(folder) / "work").mkdir()
            table: Calibration = calibrate_on(run, Path(folder) / "work", 3).calibration
        found: dict[str, float] = {}
        for entry in table.entries:
            for path, ratio in ratios(entry).items():
                found[path] = max(ratio, found.get(path, 0.0))
        row = {"case": name, "healthy": CASES[name][-1], "ratios": {k: float(f"{v:.3g}") for k, v in found.items()}}
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def main() -> None:
    """Measure all cases and write them."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.txt"
        source.write_text(corpus())
        rows = list(measured(source))
    OUT.write_text(json.dumps({"steps": STEPS, "rows": rows}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
