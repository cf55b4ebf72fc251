"""Runs one page by hand: `python -m tests.support.pages PAGE [--write] [--limit SECONDS]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.pages.reading import Block, PageError, read_page
from tests.support.pages.running import LIMIT_S, possible, run_block, run_page, session
from tests.support.pages.showing import ANY


def tell(block: Block, seconds: float) -> None:
    """One line for each block: where, what, how long, and how it begins."""
    print(f"{block.line:5}  {block.kind:6} {seconds:5.1f} s  {block.text.splitlines()[0][:80]}")


def write(path: Path, limit_s: float) -> None:
    """Put what is printed into the `text` blocks of a page; blocks with `…` are only compared."""
    page = path.read_text().splitlines(keepends=True)
    printed: list[tuple[Block, str]] = []
    blocks = read_page("".join(page))
    with session(blocks, limit_s) as here:
        for block in possible(blocks):
            if block.kind == "text" and ANY not in block.text:
                here.shown_by(block).wait(here.ends_at)
                printed.append((block, here.printed(block)))
            else:
                run_block(here, block)
    for block, text in reversed(printed):
        page[block.line - 1 : block.line - 1 + block.text.count("\n")] = text
    path.write_text("".join(page))


def main(path: Path, *options: str) -> None:
    began = time.monotonic()
    limit_s = float(options[options.index("--limit") + 1]) if "--limit" in options else LIMIT_S
    if "--write" in options:
        write(path, limit_s)
    else:
        run_page(read_page(path.read_text()), limit_s, told=tell)
    print(f"{path}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except PageError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
