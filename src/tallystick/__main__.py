"""`python -m tallystick`: the command `tally`."""

from __future__ import annotations

from tallystick.tally.cli.entry import main

main()
