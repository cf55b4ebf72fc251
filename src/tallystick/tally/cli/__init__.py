"""The command `tally`, one file per group of commands."""
