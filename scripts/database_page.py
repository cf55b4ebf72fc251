"""Writes the views, their columns and the useful queries into docs/database.md: `python scripts/database_page.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

from tallystick.database.nouns import Noun
from tallystick.database.rows import NOUNS
from tallystick.database.sql import USEFUL_QUERIES, UsefulQuery

PAGE = Path(__file__).parents[1] / "docs" / "database.md"
BEGIN, END = "<!-- generated: {} -->\n", "<!-- end -->\n"
KINDS = {str: "text", int: "integer", float: "real", bool: "boolean"}


def written(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, text in (("views", views()), ("queries", queries())):
        before, _, rest = page.partition(BEGIN.format(name))
        _, _, after = rest.partition(END)
        page = f"{before}{BEGIN.format(name)}{text}\n{END}{after}"
    return page


def views() -> str:
    """A table: each view with its columns, and what it holds."""
    lines = ["| view | holds | columns |", "|---|---|---|"]
    return "\n".join([*lines, *(_view(noun) for noun in NOUNS.values())])


def _view(noun: Noun) -> str:
    said = " ".join((inspect.getdoc(noun.row) or "").split()).replace("|", "\\|")
    columns = (f"`{field.name}` {KINDS[field.kind]}" + "?" * field.is_optional for field in noun.fields)
    order = (f"`{name}`" for name in noun.key if name not in noun.types)
    return f"| `{noun.name}` | {said} | {', '.join([*columns, *order])} |"


def queries() -> str:
    """Every useful query with its SQL."""
    return "\n\n".join(map(_query, USEFUL_QUERIES))


def _query(query: UsefulQuery) -> str:
    return f"{query.title} (`{query.name}`):\n\n```sql\n{query.sql.strip()}\n```"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
