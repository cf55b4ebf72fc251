"""`tally import-model`, `tally export-model`, `tally model-root`: model directories and their roots."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import JSON, dtype_of, dtype_option
from tallystick.cli.recording import check_choices


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="import-model")(import_model)
    app.command(name="export-model")(export_model)
    app.command(name="model-root")(model_root)


def import_model(
    source: str = typer.Argument(help="A GGUF file, an installed package that holds one, a model directory, or a run."),
    out: Path = typer.Argument(help="The directory to write."),
    dtype: str | None = typer.Option(
        None, help="Store the weights in F32, BF16 or F16; by default as they are, and F32 if they were quantised."
    ),
    json: bool = JSON,
) -> None:
    """Write a model as a directory to serve.

    Quantised weights are turned into numbers. No code of the source is run; a package is not imported.
    """
    from tallystick.documents.targets import require_empty_folder
    from tallystick.recorders.model_sources import find_source

    if dtype is not None:
        check_choices(dtype=(dtype, ("F32", "BF16", "F16")))
    found = find_source(source)
    require_empty_folder(out)
    if found.kind == "gguf":
        from tallystick.extras import require

        require("gguf", "transformers")
    from tallystick.cli.output import print_json
    from tallystick.recorders.importing import import_model as write_imported

    done = write_imported(found, out, dtype)  # type: ignore[arg-type]
    if json:
        print_json({**done.to_json(), "model": str(out), "source": found.named})
    else:
        from tallystick.cli.model_lines import import_lines

        print("\n".join(import_lines(found, done, out)))


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
    model: Path = typer.Argument(help="A model directory, or a run that trained a language model."),
    dtype: str | None = dtype_option("The precision in which it is served"),
    recheck: bool = typer.Option(False, "--recheck", help="Read all files, also those that did not change."),
    json: bool = typer.Option(False, "--json", help="Print the root and the whole model card as one JSON object."),
) -> None:
    """Print the root by which receipts name a model.

    No weights of a directory are loaded, and its root is kept in a cache while none of its files changes. The root of
    a run is that of the model which it trained, and its claim names the same weights.
    """
    from tallystick.cli.output import print_json, talk
    from tallystick.store.folders import MODEL, RUN, is_kind, require_folder

    require_folder(model, MODEL, RUN)
    is_run = is_kind(model, RUN)
    served = dtype_of(None if is_run else model, dtype)
    claim = None
    if is_run:
        from tallystick.recorders.export import model_of_run
        from tallystick.store.run import RunDirectory

        card, claim = model_of_run(RunDirectory(model), served)
    else:
        from tallystick.frameworks.model_cards import card_of

        card = card_of(model, served, recheck=recheck)
    named = {} if claim is None else {"claim": str(claim.identity)}
    if json:
        print_json({"card": card.to_json(), "root": str(card.identity), **named})
    else:
        talk().print(
            "\n".join(f"{name} {value}" for name, value in {**named, "weights": card.weights}.items()), soft_wrap=True
        )
        print(card.identity)
