"""The help of `tally`: the commands by the role of whoever needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from typer.core import TyperGroup


@dataclass(frozen=True)
class HelpSection:
    """What somebody wants to do, as a section of the help: the command to begin with, and all commands for it."""

    name: str
    first: str
    commands: tuple[str, ...]


SECTIONS: Final = (
    HelpSection(
        "Train", "tally train CONFIG.toml --out RUN", ("train", "thin", "rows", "record-inference", "export-model")
    ),
    HelpSection(
        "Audit",
        "tally audit RUN",
        ("audit", "verify-segment", "fsck", "diff", "open", "judge", "verify-data", "prove-data", "targets"),
    ),
    HelpSection(
        "Verify answers",
        "tally verify-response RECEIPT --model DIR",
        (
            "verify-response",
            "serve-model",
            "serve-vllm",
            "import-model",
            "model-root",
            "new-key",
            "generate",
            "open-states",
            "verify-graph",
        ),
    ),
    HelpSection(
        "Run a network",
        "tally coordinator init --demo",
        ("coordinator", "prover", "watchtower", "challenger", "committee", "rule", "dispute", "referee", "contract"),
    ),
    HelpSection("Look and ask", "tally db add RUN", ("db", "query", "ui", "serve", "token", "push")),
    HelpSection(
        "Graphs and limits",
        "tally graph show GRAPH",
        ("graph", "calibrate", "merge-profiles", "calibrate-training", "calibrate-answers"),
    ),
    HelpSection(
        "Timelines",
        "tally cluster describe --out cluster.json",
        ("cluster", "profile-step", "import-trace", "audit-trace", "export-trace"),
    ),
    HelpSection("Tools", "tally demo", ("demo", "example", "attack", "commit", "digest", "economics", "completion")),
)


class RootHelp(TyperGroup):
    """The commands of `tally`, shown by role."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each role: every command with the first sentence of its help."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6
        for section in SECTIONS:
            with formatter.section(f"{section.name} (first: {section.first})"):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in section.commands]
                formatter.write_dl(rows)
