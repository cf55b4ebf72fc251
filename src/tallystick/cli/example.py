"""`tally example`: the recipes and scripts that are shipped, with their data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json

KINDS: Final = {".toml": "tally train {file} --out run", ".py": "python {file} run"}


@dataclass(frozen=True)
class Example:
    """A recipe, a policy or a script of `folder`; `files` are itself and the data it reads."""

    folder: Path
    files: tuple[Path, ...]
    about: str
    next_command: str

    @property
    def name(self) -> str:
        """What `tally example` calls it."""
        return _name(self.files[0])

    def to_json(self) -> dict[str, Json]:
        """One entry of the list."""
        return {"about": self.about, "files": [str(file) for file in self.files], "name": self.name}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(example)


def example(
    name: str | None = typer.Argument(None, help="The example to write; without it, all are listed."),
    out: Path = typer.Option(Path("."), help="The folder to write it to."),
    json: bool = typer.Option(False, "--json", help="Print the list, or the files written, as JSON."),
) -> None:
    """List the shipped examples, or write one here.

    A recipe comes with its data. A file that is there with other content is kept, and nothing is written.
    """
    with resources.as_file(resources.files("tallystick") / "examples") as folder:
        shipped = {each.name: each for each in map(_read, sorted(folder.iterdir())) if each is not None}
        if name is None:
            _list(shipped, json)
            return
        found = shipped.get(_name(Path(name)))
        if found is None:
            from tallystick.documents.suggestions import suggestion

            near = suggestion(_name(Path(name)), shipped)
            raise UsageError(f"no such example {name}{near}; `tally example` lists all")
        _tell(found, _write(found, out), out, json)


def _name(path: Path) -> str:
    stem = path.name.removesuffix(path.suffix) if path.suffix in KINDS else path.name
    return stem.replace("_", "-")


def _read(path: Path) -> Example | None:
    """The example whose first file is `path`; None for a file or folder that is no example."""
    if path.suffix not in KINDS:
        return None
    text = path.read_text("utf-8")
    settings = tomllib.loads(text) if path.suffix == ".toml" else {"training": {}}
    command = KINDS[path.suffix].format(file=path.name) if "training" in settings else ""
    files = (path, *_data(path, settings))
    about = text.partition("\n")[0].strip('#" ')
    return Example(path.parent, tuple(each.relative_to(path.parent) for each in files), about, command)


def _data(path: Path, settings: dict[str, Any]) -> list[Path]:
    """All files of the folder that a recipe's data is in: the licence lies there too."""
    source = settings.get("data", {}).get("path")
    return sorted((path.parent / source).parent.iterdir()) if source else []


def _list(shipped: dict[str, Example], as_json: bool) -> None:
    if as_json:
        from tallystick.cli.output import print_json

        print_json([each.to_json() for each in shipped.values()])
        return
    width = max(map(len, shipped))
    for name, each in shipped.items():
        print(f"{name:{width}}  {each.about}")


def _write(found: Example, out: Path) -> list[Path]:
    """Write the files that are not there yet; raises `UsageError` before any of them where one has other content."""
    contents = {out / file: (found.folder / file).read_bytes() for file in found.files}
    for path, content in contents.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == content):
            raise UsageError(f"{path} is there with other content; choose another folder with --out")
    missing = [path for path in contents if not path.exists()]
    for path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[path])
    return missing


def _tell(found: Example, written: list[Path], out: Path, as_json: bool) -> None:
    from tallystick.cli.output import print_json, talk

    if as_json:
        print_json({"name": found.name, "written": [str(path) for path in written]})
        return
    for path in written:
        print(path)
    if not written:
        talk().print(f"{found.name} is there already, unchanged")
    if found.next_command:
        place = "" if out == Path(".") else f"cd {quote(str(out))} && "
        talk().print(f"next: {place}{found.next_command}", soft_wrap=True)
