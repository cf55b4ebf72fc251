"""Answers one prompt twice, from a model and from the same model in few bits, and keeps both receipts.

Usage: python scripts/readme_answers.py MODEL OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from tallystick.cli.demo_answer import quantised, served_answer
from tallystick.frameworks.torch.generation.language_models import load_language_model


def main(model: Path, out: Path) -> None:
    """Write OUT/receipt.json and OUT/forged.json."""
    promised = load_language_model(model)
    for name, provider in (("receipt", promised), ("forged", quantised(promised))):
        (out / f"{name}.json").write_bytes(served_answer(provider).to_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
