"""Writes what `tally --help` prints into src/tallystick/tally/cli/root_help.txt: `python scripts/root_page.py`."""

from __future__ import annotations

from tallystick.tally.cli.application import application
from tallystick.tally.cli.entry import HELP_PAGE

WIDTH = 80


def written() -> str:
    """The help of `tally` on a terminal of 80 columns."""
    command = application()
    with command.make_context("tally", ["demo"], terminal_width=WIDTH, max_content_width=WIDTH) as context:
        return f"{command.get_help(context)}\n"


if __name__ == "__main__":
    HELP_PAGE.write_text(written(), "utf-8")
