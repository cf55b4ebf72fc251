"""`tally --help`: the commands by what a person wants to do."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Record": ("train", "record-inference", "export-model"),
    "Audit": ("audit", "verify-segment", "fsck", "open", "judge", "verify-data", "prove-data", "targets"),
    "Answers": ("generate", "serve-model", "verify-response", "verify-graph", "open-states"),
    "Disputes": ("coordinator", "contract", "prover", "challenger", "committee", "rule", "dispute", "referee"),
    "Graphs": ("graph", "calibrate", "merge-profiles", "calibrate-training"),
    "Tools": ("demo", "example", "attack", "commit", "digest", "new-key", "economics"),
}


class RootHelp(TyperGroup):
    """The commands of `tally`, shown in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each group: every command with the first sentence of its help."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6
        for group, names in GROUPS.items():
            with formatter.section(group):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
                formatter.write_dl(rows)
