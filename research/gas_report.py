#!/usr/bin/env python3
"""Measure what each function of the Ethereum contract costs on a local node, and write the figures down.

Usage: python -m research.gas_report [--out docs]

Writes <out>/data/gas.json. Gas depends on the compiled contract alone, not on the machine; the rules are the default
ones. A test compares the figures with fresh ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the scenario is a test's

from tallystick.disputes.coordinators.ethereum.encoding import ARTEFACT  # noqa: E402
from tests.disputes.coordinators.ethereum.gas import NODE_OPTIONS, Cost, measure  # noqa: E402
from tests.support.ethereum_node import running_node  # noqa: E402


def report(costs: list[Cost]) -> dict[str, Any]:
    """The figures as the document that is committed."""
    artefact = json.loads(ARTEFACT.read_bytes())
    return {
        "contract": hashlib.sha256(bytes.fromhex(artefact["bytecode"])).hexdigest(),
        "compiler": artefact["compiler"],
        "unit": "gas of the whole transaction, of which 21,000 and the bytes of its call are the chain's",
        "costs": [asdict(cost) for cost in costs],
    }


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    out = parser.parse_args().out / "data" / "gas.json"
    with running_node(*NODE_OPTIONS) as node:
        costs = measure(node)
    out.write_text(json.dumps(report(costs), indent=1) + "\n")
    for cost in costs:
        print(f"{cost.function:10} {cost.case:16} {cost.gas:>10,} gas {cost.call_bytes:>7,} bytes")


if __name__ == "__main__":
    main()
