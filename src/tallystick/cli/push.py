"""`tally push`: sends a run directory to a service."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import JSON, read_token


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(push)


def push(
    run: Path = typer.Argument(help="A run directory, also one that is still being recorded."),
    url: str = typer.Argument(help="The service: http://HOST."),
    name: str | None = typer.Option(None, help="The name in the service; by default the folder's."),
    token_file: Path = typer.Option(..., "--token-file", help="The file of a token with the scope ingest."),
    json: bool = JSON,
) -> None:
    """Send a run to a service, or what is new of it.

    The service verifies it before any of it appears. Given again, it goes on where it was interrupted; a run that is
    being recorded grows.
    """
    from tallystick.cli.output import progress_bar, show
    from tallystick.extras import require
    from tallystick.store.folders import RUN, require_folder

    require("httpx", "fastapi")
    from tallystick.remote.connection import ServiceConnection
    from tallystick.remote.pushing import push_run, sending_limits

    require_folder(run, RUN)
    token, named = read_token(token_file), name or run.resolve().name
    with ServiceConnection(url, token, sending_limits()) as service, progress_bar() as bar:
        task = bar.add_task("sending, bytes", total=None, seen="")
        found = push_run(service, run, named, lambda size: bar.advance(task, size))
    told = f"{found.name}: {found.files} files, {found.bytes} bytes sent; the service has verified the run"
    show({"name": found.name, "files": found.files, "bytes": found.bytes}, told, json)
