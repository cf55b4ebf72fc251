"""Runs a page: its blocks in order, each in its terminal, in a fresh folder away from the clone."""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tallystick
from tests.support.pages.reading import NEEDS, Block, PageError
from tests.support.pages.showing import lines_of, shows
from tests.support.pages.terminal import Terminal
from tests.support.prefork.commands import commands

LIMIT_S: Final = 540.0
"""For a whole page. It takes less than a minute on two quiet cores, but machines are not always quiet."""
PAGE_TIMEOUT_S: Final = 600
"""For the test of a page: the page's own limit comes first, and says where it was."""
CLONE: Final = Path(__file__).parents[3]
HAS: Final[Mapping[str, Callable[[], bool]]] = {"vllm": (CLONE / ".vllm" / "bin" / "vllm").is_file}
"""Whether what a block may need is there."""
PORT: Final = re.compile(r"(?:--port[ =]|127\.0\.0\.1:|localhost:)(\d+)")
PYTHON: Final = "python - <<'END_OF_THE_BLOCK'\n{}END_OF_THE_BLOCK\n"


@dataclass
class Session:
    """A page that is being run: its folder, its terminals, and the paste that was made last."""

    folder: Path
    scratch: Path
    variables: Mapping[str, str]
    ends_at: float
    terminals: dict[str, Terminal] = field(default_factory=dict)
    latest: Terminal | None = None

    def terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            self.terminals[name] = Terminal(name, self.folder, self.scratch, self.variables)
        return self.terminals[name]

    def run(self, block: Block) -> None:
        """Do what a reader does with the block; raises `PageError` where it does not go as the page says."""
        if "file" in block.notes:
            self.save(block)
        elif block.kind == "text":
            self.compare(block)
        else:
            self.paste(block)

    def save(self, block: Block) -> None:
        path = self.folder / block.notes["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def paste(self, block: Block) -> None:
        terminal = self.latest = self.terminal(block.terminal)
        terminal.wait(self.ends_at)
        paste = terminal.paste(PYTHON.format(block.text) if block.kind == "python" else block.text)
        if "until" in block.notes:
            return terminal.wait_for(block.notes["until"], self.ends_at)
        terminal.wait(self.ends_at)
        expected = [int(block.notes["exit"])] if block.notes.get("exit", "0") != "0" else []
        if paste.failed != expected:
            raise PageError(f"failed with {paste.failed}, and the page says {expected}:\n{paste.all_printed}")
        return None

    def compare(self, block: Block) -> None:
        """Wait until what the block shows has been printed; at once where the command has ended."""
        terminal = self.shown_by(block)
        paste = terminal.pastes[-1]
        while True:
            is_done, printed = paste.is_done, self.printed(block)
            if shows(block.text, printed):
                return
            if is_done:
                raise PageError(difference(block.text, printed))
            terminal.check_time(paste, self.ends_at)

    def shown_by(self, block: Block) -> Terminal:
        """The terminal whose output the block shows."""
        terminal = self.terminals.get(block.terminal) if "terminal" in block.notes else self.latest
        if terminal is None:
            raise PageError("shows an output, and nothing has run there before it")
        return terminal

    def printed(self, block: Block) -> str:
        """What the block shows part of, with the reader's own folder for the folder of this run."""
        return self.shown_by(block).pastes[-1].printed(block.stream).replace(str(self.folder), "~")

    def close(self) -> None:
        for terminal in self.terminals.values():
            terminal.close()


def difference(shown: str, printed: str) -> str:
    """Line by line, what the page shows and what was printed, without what is masked."""
    lines = difflib.unified_diff(lines_of(shown), lines_of(printed), "the page", "printed", lineterm="")
    return "\n".join(["shows something else than was printed:", *lines, "", printed])


def environment(folder: Path) -> dict[str, str]:
    """The variables of a reader who has installed this Tallystick, and whose home is `folder`."""
    package = Path(tallystick.__file__).parents[1]
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(commands()), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(package),
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / ".local" / "state"),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def own_ports(blocks: Sequence[Block]) -> Iterator[None]:
    """Keep other pages off the ports that these blocks name, for a page is run as it is written."""
    ports = sorted({int(port) for block in blocks for port in PORT.findall(block.text)})
    with ExitStack() as held:
        for port in ports:
            lock = held.enter_context((Path(tempfile.gettempdir()) / f"tally-page-port-{port}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def session(blocks: Sequence[Block], limit_s: float) -> Iterator[Session]:
    """A fresh folder and its terminals; afterwards nothing of them is left."""
    with own_ports(blocks), tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as outer:
        folder, scratch = Path(outer, "home"), Path(outer, "scratch")
        folder.mkdir(), scratch.mkdir()
        if any("needs" in block.notes for block in blocks):
            (folder / "tallystick").symlink_to(CLONE)
        here = Session(folder, scratch, environment(folder), time.monotonic() + limit_s)
        try:
            yield here
        finally:
            here.close()


def possible(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that can be run here; one line on stdout for what the others need."""
    lacking = {need for need in NEEDS if not HAS[need]()}
    for need in sorted(lacking & {block.notes.get("needs") for block in blocks}):
        count = sum(block.notes.get("needs") == need for block in blocks)
        print(f"left out, because `make {need}` has installed nothing here: {count} blocks")
    return [block for block in blocks if block.notes.get("needs") not in lacking]


def run_block(here: Session, block: Block) -> None:
    """Run one block; its `PageError` begins with the line of the page."""
    try:
        here.run(block)
    except PageError as error:
        raise PageError(f"line {block.line}: {error}") from None


def run_page(
    blocks: Sequence[Block],
    limit_s: float = LIMIT_S,
    told: Callable[[Block, float], None] = lambda block, seconds: None,
) -> None:
    """Run every block; raises `PageError` at the first that does not do what the page says."""
    with session(blocks, limit_s) as here:
        for block in possible(blocks):
            began = time.monotonic()
            run_block(here, block)
            told(block, time.monotonic() - began)
