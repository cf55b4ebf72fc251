"""`tally export-model`, `tally model-root`: directories of models, and the root that names them."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import JSON
from tallystick.cli.recording import check_choices


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="export-model")(export_model)
    app.command(name="model-root")(model_root)


def export_model(
    run: Path = typer.Argument(help="A finished run that trained a language model."),
    out: Path = typer.Argument(help="The directory to write."),
    json: bool = JSON,
) -> None:
    """Write the model that a run trained.

    The directory can be served, and transformers loads it.
    """
    from tallystick.documents.targets import require_empty_folder
    from tallystick.store.folders import RUN, require_folder

    require_folder(run, RUN)
    require_empty_folder(out)
    from tallystick.cli.output import print_json, talk
    from tallystick.recorders.export import export_model as write_model
    from tallystick.store.run import RunDirectory

    write_model(RunDirectory(run), out)
    talk().print(f"{out}: the model of {run}", soft_wrap=True)
    if json:
        print_json({"model": str(out), "run": str(run)})


def model_root(
    model: Path = typer.Argument(help="A model directory: configuration, safetensors, tokenizer."),
    dtype: str = typer.Option("F32", help="The precision in which it is served: F32, BF16 or F16."),
    recheck: bool = typer.Option(False, "--recheck", help="Read all files, also those that did not change."),
    json: bool = typer.Option(False, "--json", help="Print the root and the whole model card as one JSON object."),
) -> None:
    """Print the root by which receipts name a model.

    No weights are loaded. The root is kept in a cache while no file of the directory changes.
    """
    from tallystick.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    check_choices(dtype=(dtype, ("F32", "BF16", "F16")))
    from tallystick.frameworks.model_cards import card_of

    card = card_of(model, dtype, recheck=recheck)  # type: ignore[arg-type]
    if json:
        from tallystick.cli.output import print_json

        print_json({"card": card.to_json(), "root": str(card.identity)})
    else:
        print(card.identity)
