"""`python -m tallystick`: the command `tally`."""

from tallystick.cli.entry import main

main()
