#!/usr/bin/env python3
"""Play random moves through the game in Python and through the Ethereum contract, and write down how many agreed.

Usage: python -m research.agreement_run [--moves N] [--seed N] [--out docs]

Writes <out>/data/agreement.json. After every move the refusal's code or the move in the log, and all that the move can
touch, must be equal on both sides, and every game must end with all money paid out. The first difference stops the
run with the seed that reproduces it, and nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the walks are a test's

from tallystick.disputes.coordinators.ethereum.encoding import ARTEFACT  # noqa: E402
from tests.disputes.coordinators.ethereum.agreement import MOVES_A_GAME, Tally, play_game, spread  # noqa: E402
from tests.disputes.coordinators.ethereum.side import NODE_OPTIONS  # noqa: E402
from tests.support.ethereum_node import running_node  # noqa: E402

FIRST_SEED = 20_000


def report(tally: Tally, first: int, seconds: float) -> dict[str, Any]:
    """The figures as the document that is committed."""
    artefact = json.loads(ARTEFACT.read_bytes())
    return {
        "contract": hashlib.sha256(bytes.fromhex(artefact["bytecode"])).hexdigest(),
        "moves": tally.moves,
        "differences": 0,
        "games": tally.games,
        "moves_per_game_before_its_end": MOVES_A_GAME,
        "first_seed": first,
        "seconds": round(seconds, 1),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "accepted": dict(sorted(tally.accepted.items())),
        "refused": dict(sorted(tally.refused.items())),
    }


def main() -> None:
    """Play, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    asked = parser.parse_args()
    tally, start = Tally(), time.monotonic()
    with running_node(*NODE_OPTIONS) as node:
        for seed in track(spread(asked.moves, asked.seed), "games"):
            play_game(node, seed, MOVES_A_GAME, tally)
    document = report(tally, asked.seed, time.monotonic() - start)
    (asked.out / "data" / "agreement.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"{tally.moves:,} moves in {tally.games} games, no difference")


if __name__ == "__main__":
    main()
