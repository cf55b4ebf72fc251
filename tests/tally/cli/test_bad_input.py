"""What people type wrong: one line that names it as typed, and the name that was meant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

Tally = Callable[..., Any]
LEFTOVERS = ("Input should", "Extra inputs", "Field required", "Value error", "type=", "pydantic", "Traceback")
DIGEST = "sha256:" + 64 * "0"
KEY = 64 * "a"

USAGE = {
    "odit": "no such command odit: did you mean audit?; see `tally --help`",
    "zzz": "no such command zzz; see `tally --help`",
    "audti run": "no such command audti: did you mean audit?",
    "coordinator inot": "no such command inot: did you mean init?; see `tally coordinator --help`",
    "graph shwo g": "no such command shwo: did you mean show?; see `tally graph --help`",
    "dispute statsu": "no such command statsu: did you mean status?; see `tally dispute --help`",
    "contract zzz": "no such command zzz: there are ",
    "--versoin": "no such option --versoin: did you mean --version?; see `tally --help`",
    "audit run --sample 3": "no such option --sample: did you mean --samples?; see `tally audit --help`",
    "audit run --windwo 3": "no such option --windwo: did you mean --window?; see `tally audit --help`",
    "audit run -q": "no such option -q; see `tally audit --help`",
    "train a.toml --otu x": "no such option --otu: did you mean --out?; see `tally train --help`",
    "verify-response r --modle d": "no such option --modle: did you mean --model?",
    "coordinator init --demmo": "no such option --demmo: did you mean --demo?",
    "economics --bnod 3": "no such option --bnod: did you mean ",
    "audit": "missing argument RUN; see `tally audit --help`",
    "digest": "missing argument ",
    "verify-segment run": "missing option --from; see `tally verify-segment --help`",
    "audit run more": "unexpected argument",
    "audit run --samples": "--samples: needs a value; see `tally audit --help`",
    "audit run --full=3": "--full: takes no value; see `tally audit --help`",
    "audit run --samples many": "--samples: must be a whole number, not 'many'; see `tally audit --help`",
    "audit run --samples 1.5": "--samples: must be a whole number, not '1.5'",
    "audit run --samples 0": "--samples: must be 1 or more, not '0'",
    "audit run --window -4": "--window: must be 1 or more, not '-4'",
    "audit run --samples 99999999999999999999": "--samples: must be finite, and below 2^53",
    "audit run --replay grap": "--replay: must be graph or recipe, not 'grap'; did you mean graph?",
    "audit run --replay zzz": "--replay: must be graph or recipe, not 'zzz'",
    "audit run --claim sha256:12": "--claim: not a digest: sha256: and 64 lower-case hexadecimal digits",
    "audit run --claim none": "--claim: not a digest: sha256: and 64 lower-case hexadecimal digits",
    f"audit run --claim {DIGEST.upper()}": "--claim: not a digest",
    "audit run --nonce 12": "--nonce: ",
    "audit run --device gpu": "--device",
    "verify-segment run --from a --to b": "--from: must be a whole number, not 'a'",
    "verify-response r --model d --rung 5": "--rung: must be 4 or less, not '5'",
    "verify-response r --model d --audit-sample 2": "--audit-sample: must be 1 or less, not '2'",
    "verify-response r --model d --audit-sample x": "--audit-sample: must be a number, not 'x'",
    "coordinator serve --db a.db --port 99999": "--port: must be 65535 or less, not '99999'",
    "attack bad-sed run out": "no such attack bad-sed: did you mean bad-seed?; `tally attack --list` lists all",
    "attack zzz": "no such attack zzz; `tally attack --list` lists all",
    "attack bad-seed": "`tally attack NAME RUN OUT`, or `tally attack --list`",
    "example digits-cn": "no such example digits-cn: did you mean digits-cnn?; `tally example` lists all",
    "example own_lop.py": "no such example own_lop.py: did you mean own-loop?",
    "completion basj": "SHELL: must be bash, zsh or fish, not 'basj'; did you mean bash?",
}
"""Command lines that make no sense, and how the answer begins."""


def only_line(err: str) -> str:
    """The one line of a complaint, in words of our own."""
    (line,) = err.splitlines()
    assert line.startswith("tally: ")
    assert not any(phrase in line for phrase in LEFTOVERS), line
    return line.removeprefix("tally: ")


@pytest.mark.parametrize("typed", USAGE)
def test_what_makes_no_sense_is_named_as_it_is_typed(tally: Tally, typed: str) -> None:
    told = tally(*typed.split())
    assert (told.code, told.out) == (2, "")
    assert only_line(told.err).startswith(USAGE[typed])


def test_what_is_spelt_right_goes_on_to_the_run_itself(tally: Tally, tmp_path: Path) -> None:
    options = f"--samples 1 --window 4 --replay graph --claim {DIGEST} --device cpu --nonce {KEY}"
    told = tally("audit", tmp_path / "run", *options.split())
    assert told.code == 4
    assert "not there, and not a run directory" in only_line(told.err)


def test_an_attack_that_there_is_goes_on_to_the_run_itself(tally: Tally, tmp_path: Path) -> None:
    told = tally("attack", "bad-seed", tmp_path / "run", tmp_path / "out")
    assert told.code == 4
    assert "not a run directory" in only_line(told.err)


RECIPES = {
    ("steps = 120", "stepz = 120"): "training.stepz: no such setting; did you mean steps?",
    ("steps = 120", "steps = 120\nzzz = 1"): "training.zzz: no such setting",
    ("steps = 120", ""): "training.steps: is missing",
    ("steps = 120", "steps = 0"): "training.steps: must be 1 or more, not 0",
    ("steps = 120", "steps = 1.5"): "training.steps: must be a whole number, not 1.5",
    ("steps = 120", "steps = 'many'"): "training.steps: must be a whole number, not 'many'",
    ("steps = 120", "steps = true"): "training.steps: must be a whole number, not True",
    ("steps = 120", "steps = nan"): "training.steps: ",
    ("[training]", "[traning]"): "traning: no such setting; did you mean training?",
    ("[training]", "[[training]]"): "training: must be a table, not list of 1",
}
"""What a recipe says, what is written in its place, and the answer."""


@pytest.mark.parametrize("change", RECIPES, ids=str)
def test_a_recipe_is_refused_by_the_setting(tally: Tally, tmp_path: Path, change: tuple[str, str]) -> None:
    text = resources.files("tallystick").joinpath("examples/llama-tiny.toml").read_text()
    assert change[0] in text
    path = tmp_path / "tiny.toml"
    path.write_text(text.replace(*change))
    told = tally("train", path, "--out", tmp_path / "run")
    assert (told.code, told.out) == (4, "")
    assert f"tiny.toml: {RECIPES[change]}" in only_line(told.err)
    assert not (tmp_path / "run").exists()


POLICIES = {
    'replay = "grap"': "replay: must be graph or recipe, not 'grap'; did you mean graph?",
    'mode = "tolerent"': "mode: must be exact or tolerant, not 'tolerent'; did you mean tolerant?",
    "sampels = 3": "sampels: no such setting; did you mean samples?",
    "samples = -1": "samples: must be 1 or more, not -1",
    "full = 1": "full: must be true or false, not 1",
    'claim = "x"': "claim: not a digest: sha256: and 64 lower-case hexadecimal digits",
    'devices = ["gpu"]': "devices.0: must be cpu or cuda, not 'gpu'",
    "devices = 3": "devices: must be a list, not 3",
    "update_floor = 2.0": "update_floor: must be 1 or less, not 2",
    "outputs = inf": "outputs: ",
    "samples": "no valid TOML: ",
}


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_is_refused_by_the_setting(tally: Tally, tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    told = tally("audit", tmp_path, "--policy", path)
    assert (told.code, told.out) == (4, "")
    assert only_line(told.err).startswith(f"policy.toml: {POLICIES[text]}")


def test_a_policy_in_json_has_fields(tally: Tally, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"sampels":3}')
    told = tally("audit", tmp_path, "--policy", path)
    assert only_line(told.err) == "policy.json: sampels: no such field; did you mean samples?"
    path.write_text('{"samples":3}')
    assert "not a run directory" in only_line(tally("audit", tmp_path, "--policy", path).err)


DEEP = 50_000
JSON = {
    "deep": b"[" * DEEP,
    "deep and closed": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deeper than allowed": b'{"a":' + b"[" * 65 + b"]" * 65 + b"}",
    "large whole number": b'{"samples":' + b"9" * 10_000 + b"}",
    "large number": b'{"samples":1e999999}',
    "no number": b'{"samples":NaN}',
    "list": b"[]",
    "null": b"null",
    "unknown name": b'{"zzz":1}',
    "long name": b'{"' + b"k" * 100_000 + b'":1}',
    "name that a terminal obeys": b'{"\\u001b[31mred":1}',
    "name twice": b'{"samples":1,"samples":2}',
    "mark of order": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"samples":"\xe9"}',
    "half a pair": b'{"samples":"\\ud800"}',
    "zeros": bytes(8),
    "empty": b"",
}
TOML = {
    "deep": b"a=" + b"[" * DEEP,
    "deeper than allowed": b"a=" + b"[" * 65 + b"]" * 65,
    "dots": b"a" + b".a" * 2_000 + b"=1",
    "large whole number": b"samples=" + b"9" * 10_000,
    "large number": b"samples=1e999",
    "date": b"samples=1979-05-27",
    "unknown name": b"zzz=1",
    "name that a terminal obeys": b'"\\u001b[31mred"=1',
    "name twice": b"samples=1\nsamples=2",
    "mark of order": b"\xef\xbb\xbfsamples=1",
    "not UTF-8": b'x="\xe9"',
    "zeros": bytes(8),
}
READERS: dict[str, tuple[str, ...]] = {
    "audit RUN --policy FILE": (".json", ".toml"),
    "verify-response made/receipts.jsonl --model MODEL --policy FILE": (".json", ".toml"),
    "verify-response made/receipts.jsonl --model MODEL --limits FILE": (".json",),
    "train FILE --out RUN": (".toml",),
    "coordinator init --db court.db --rules FILE": (".json",),
    "economics --rules FILE": (".json",),
    "judge OPENED --profile FILE": (".json",),
    "challenger --coordinator court.db --key KEY --budget FILE": (".json",),
    "challenger --coordinator court.db --key KEY --profile FILE": (".json",),
    "generate MODEL --key KEY --prompt a --max-tokens 1 --out answers --chat FILE": (".json",),
}
"""Commands that read a file of settings, and its forms."""


def hostile(folder: Path, ending: str) -> Iterator[Path]:
    """Files that hold no settings, and places that are no files."""
    for name, content in (JSON if ending == ".json" else TOML).items():
        path = folder / f"{name}{ending}"
        path.write_bytes(content)
        yield path
    (folder / f"folder{ending}").mkdir()
    (folder / f"loop{ending}").symlink_to(folder / f"loop{ending}")
    yield from (folder / f"{name}{ending}" for name in ("folder", "loop", "missing"))
    (folder / f"endless{ending}").symlink_to("/dev/zero")
    yield folder / f"endless{ending}"


@pytest.mark.parametrize("typed", READERS)
def test_a_file_that_holds_no_settings_is_named_in_one_line(
    tally: Tally, tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tally("new-key", "KEY").code == 0
    if "verify-response" in typed:
        asked = ("--prompt", "a", "--max-tokens", 1, "--seed", 1)
        assert tally("generate", model_directory, "--key", "KEY", *asked, "--out", "made").code == 0
    Path("OPENED").mkdir()
    Path("OPENED", "opening.json").write_bytes(b"{}")
    for ending in READERS[typed]:
        for path in hostile(tmp_path, ending):
            places = {"FILE": path, "MODEL": model_directory}
            told = tally(*[places.get(word, word) for word in typed.split()])
            assert (told.code in {2, 4}, told.out) == (True, ""), path.name
            line = only_line(told.err)
            assert path.name in line or line.startswith("rules: "), line
            assert len(line) < 600, path.name
            assert "mistake of tallystick" not in line, path.name


@pytest.mark.parametrize("typed", ["odit", "audit run --replay grap", "attack bad-sed run out", "graph show no.graph"])
def test_a_mistake_is_told_without_loading_pytorch(tmp_path: Path, typed: str) -> None:
    program = "import sys; from tallystick.tally.cli.entry import run; code = run(sys.argv[1:])"
    code = f"{program}; assert 'torch' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code, *typed.split()], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4 if "no.graph" in typed else 2, "")
    only_line(done.stderr)
