"""The tutorial runs: each block of Python, each command, and what the page says they print."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "graphs.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ tally (.*?)(?:  # exit code (\d))?$", re.MULTILINE)

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("iree.compiler")
pytest.importorskip("accelerate")


class Block(NamedTuple):
    """A fenced block, what kind it is, and the line of the page on which it begins."""

    kind: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    for match in BLOCK.finditer(page):
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 2)


def as_shown(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed; `...` stands for anything."""
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def commands(text: str) -> Iterator[tuple[list[str], int, str]]:
    """The words behind `$ tally`, the exit code, and what is shown below."""
    found = list(COMMAND.finditer(text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        shown = text[match.end() + 1 : following.start() if following else len(text)]
        yield shlex.split(match[1]), int(match[2] or 0), shown


@pytest.mark.filterwarnings("default")
def test_the_page_does_what_it_says(
    one_thread: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed = ""
    for kind, text, line in blocks(PAGE.read_text()):
        if kind == "python":
            printed = run_python(text, line, names)
        elif kind == "console":
            run_commands(text, capfdbinary)
        else:
            assert as_shown(text, printed), f"line {line} shows something else than\n{printed}"


def run_python(text: str, line: int, names: dict[str, Any]) -> str:
    """Run a block where the blocks before it have run, and return what it printed."""
    code = compile("\n" * (line - 1) + text, str(PAGE), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def run_commands(text: str, streams: pytest.CaptureFixture[bytes]) -> None:
    from tallystick.tally.cli.entry import run

    for words, code, shown in commands(text):
        streams.readouterr()
        assert run(words) == code, f"tally {shlex.join(words)}: {streams.readouterr()}"
        printed = streams.readouterr().out.decode()
        assert as_shown(shown, printed), f"tally {shlex.join(words)} printed\n{printed}"


def test_a_page_that_shows_something_else_is_seen() -> None:
    assert as_shown("a\n...\nc 1\n", "a\nb\nb\nc 1\n")
    assert not as_shown("a\n...\nc 1\n", "a\nb\nc 2\n")
    assert list(commands("$ tally a b\n1\n$ tally c  # exit code 3\n")) == [(["a", "b"], 0, "1\n"), (["c"], 3, "")]
    assert [block.kind for block in blocks(PAGE.read_text())].count("python") > 8


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text()))
def test_every_file_the_page_links_to_is_there(target: str) -> None:
    assert (PAGE.parent / target).exists()


def test_the_example_runs(
    one_thread: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], run_example: Callable[[Path], None]
) -> None:
    run_example(tmp_path / "out")
    assert capsys.readouterr().out.splitlines()[-1].startswith("accepted")


@pytest.fixture
def run_example() -> Callable[[Path], None]:
    """The example's `main`."""
    main: Callable[[str], None] = runpy.run_path(str(ROOT / "examples" / "graphs.py"))["main"]
    return lambda out: main(str(out))
