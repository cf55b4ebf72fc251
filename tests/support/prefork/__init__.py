"""`tally` and `python` as processes that need not import libraries: forks of one that has imported them already.

A page or a dispute starts dozens of programs, and each would import PyTorch for seconds. `commands()` is a folder with
a `tally` and a `python`, both `client.py`: it hands its words, folder, variables, limits and streams to `server.py`,
which forks, and it passes on signals and the exit code. The fork is a process of its own; only its imports were made
before, and those of `python`, which runs a file or stdin, are of libraries alone: ours it imports afresh.
That `tally` starts by itself is shown by `tests/tally/cli/test_entry.py`, `tests/tally/cli/test_signals.py` and the
wheel's test.
"""
