#!/usr/bin/env python3
"""Write the Python language reference topics of this interpreter (`pydoc_data.topics`) as one text file.

Usage: python scripts/extract_topics.py examples/data/python-topics.txt
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics


def main() -> None:
    """Write the topics in the order of their names, each under its name as a heading."""
    sections = [f"# {name}\n\n{topics[name].strip()}\n" for name in sorted(topics)]
    text = "\n".join(sections).replace("\r\n", "\n")
    Path(sys.argv[1]).write_bytes(text.encode())
    print(f"{len(sections)} topics, {len(text.encode())} bytes, from Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
