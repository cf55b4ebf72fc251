"""The runner of pages: what a reader would paste is run, and a page that says something else is refused."""

from __future__ import annotations

import os

import pytest

from tests.support.pages import running
from tests.support.pages.reading import PageError, read_page
from tests.support.pages.running import run_page, session
from tests.support.pages.showing import shows

LIMIT_S = 60.0
SHORT_S = 2.0
"""For a page that ends by taking too long, wherever it is by then."""
HONEST = """\
Two files, a command that fails, and two terminals.

**File `settings/greeting.toml`:**
```toml
word = "hello"
```

**File `greet.py`:**
```python
import pathlib, tomllib
print(tomllib.loads(pathlib.Path("greeting.toml").read_text())["word"], "0123456789abcdef")
```

```sh
cd settings
name=reader
```

```sh
python ../greet.py; echo "$name in $PWD"
```

```text
hello fedcba9876543210
reader in ~/settings
```

**Exit code 3:**
```sh
echo this is wrong >&2
sh -c 'exit 3'
```

<!-- stream: stderr -->
```text
this is …
```

**A second terminal, `server`:**
<!-- until: listening -->
```sh
echo $$ > ~/server.pid
echo listening; sleep 0.2; echo served in 3 s; sleep 1000
```

```sh
ps -o args= -p $(cat ~/server.pid)
```

```text
…
bash --noprofile --norc
```

**Terminal `server`:**
```text
…
served in 7 s
```

```python
print("pasted")
```

```text
pasted
```
"""


def run(page: str, limit_s: float = LIMIT_S) -> None:
    run_page(read_page(page), limit_s)


def test_a_page_that_says_what_happens_passes() -> None:
    run(HONEST)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("hello fedcba9876543210", "goodbye fedcba9876543210", "line 24: shows something else"),
        ("this is …", "that is …", "line 36: shows something else"),
        ("**Exit code 3:**", "**Exit code 1:**", r"failed with \[3\], and the page says \[1\]"),
        ("echo this is wrong >&2", "sh -c 'exit 5'", r"failed with \[5, 3\], and the page says \[3\]"),
        ("name=reader", "exit", "closed the terminal"),
        ("cd settings", "cd nowhere", r"failed with \[1\], and the page says \[\]"),
        ("until: listening", "until: ready", "took too long"),
        ("served in 7 s", "served nothing", "took too long"),
        ('print("pasted")', 'raise SystemExit("no")', r"failed with \[1\]"),
    ],
)
def test_a_page_that_says_something_else_is_refused(before: str, after: str, complaint: str) -> None:
    assert HONEST.count(before) == 1
    with pytest.raises(PageError, match=complaint):
        run(HONEST.replace(before, after), SHORT_S if complaint == "took too long" else LIMIT_S)


NEEDY = """\
<!-- needs: vllm -->
```sh
ls tallystick/pyproject.toml; false
```

```sh
echo plain
```

```text
plain
```
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_block_that_needs_what_is_not_installed_is_left_out_with_one_line(
    is_there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(running.HAS, "vllm", lambda: is_there)  # type: ignore[arg-type]
    if is_there:
        with pytest.raises(PageError, match=r"line 3: failed with \[1\]"):
            run(NEEDY)
    else:
        run(NEEDY)
        assert capsys.readouterr().out == "left out, because `make vllm` has installed nothing here: 1 blocks\n"


def test_nothing_is_left_when_a_page_has_ended() -> None:
    blocks = read_page(HONEST)
    with session(blocks, LIMIT_S) as here:
        for block in blocks:
            here.run(block)
        number = int((here.folder / "server.pid").read_text())
        os.kill(number, 0)
    assert not here.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```console\nls\n```\n", "line 2: a block of kind 'console' is not run"),
        ("```\nls\n```\n", "line 2: a block of kind '' is not run"),
        ("<!-- exti: 1 -->\n```sh\nls\n```\n", "line 3: a sh block has no note exti"),
        ("<!-- exit: 1 -->\n```sh\nls\n```\n", "a reader of the page does not see <!-- exit: 1 -->: write it as text"),
        ("<!-- file: a.py -->\n```python\n1\n```\n", "write it as text"),
        ("<!-- terminal: lab -->\n```sh\nls\n```\n", "write it as text"),
        ("**Exits with 1:**\n```sh\nls\n```\n", "stands above a fence and is no note"),
        ("```toml\na = 1\n```\n", "line 2: nothing says into which file this goes"),
        ("<!-- needs: gold -->\n```sh\nls\n```\n", "line 3: nothing can need gold"),
        ("<!-- stream: both -->\n```text\na\n```\n", "line 3: there is no stream both"),
        ("```text\na\n```\n", "line 2: shows an output, and nothing has run there before it"),
        ("1. First\n   ```sh\n   ls\n   ```\n", "line 2: a block that is run is fenced"),
        ("Do this:\n\n    ls\n", "line 3: a block that is run is fenced"),
    ],
)
def test_a_block_that_would_not_be_run_is_refused(page: str, complaint: str) -> None:
    with pytest.raises(PageError, match=complaint):
        run(page)


PRINTED = """\
ACCEPTED  claim sha256:85d1eab70e2e1f70
seconds: 3.1 start-up, 12.0 replay
a
b
chance 5 %
"""


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        "ACCEPTED claim sha256:2dd37cb6c801a2c4\nseconds: 12.5 start-up, 0.5 replay\n\na\nb\nchance 5 %",
        "ACCEPTED…\n…\nchance … %\n",
        "…\nchance 5 %\n…\n",
    ],
)
def test_an_output_that_differs_in_what_is_masked_is_the_same(shown: str) -> None:
    assert shows(shown, PRINTED)


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED.replace("ACCEPTED", "REJECTED"),
        PRINTED.replace("5 %", "6 %"),
        PRINTED.replace("a\n", ""),
        "ACCEPTED…\n",
        "…\nb\na\n…\n",
    ],
)
def test_an_output_that_differs_elsewhere_is_not(shown: str) -> None:
    assert not shows(shown, PRINTED)
