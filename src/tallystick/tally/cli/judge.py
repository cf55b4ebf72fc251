"""`tally judge`, `tally referee`: opened operators and leaf bundles, judged offline; no framework is needed."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from tallystick.core.canonical_json import Json
from tallystick.core.errors import UsageError
from tallystick.formats.store.folders import OPENING, require_folder
from tallystick.tally import operators as operators_api
from tallystick.tally.cli.options import Verbose, print_verdict
from tallystick.tally.cli.output import keep_freed_memory, print_json, talk
from tallystick.verdicts import properties as known_properties, verdict as verdicts, words
from tallystick.verdicts.leaf import bundle as leaf_bundle, bundling as leaf_bundling, judge as leaf_judge, request
from tallystick.verdicts.opening import files

# `tally judge`: judge opened operators by the reference and its proven bounds; no framework is needed.

Precision = Annotated[
    str,
    typer.Option(
        help="What the prover computed in: stepwise (16-bit floats, rounded as on CPUs), plain (one rounding, as on "
        "GPUs), tf32, bf16-products, bf16-sums, fp16-sums."
    ),
]
Profile = Annotated[Path | None, typer.Option(help="Calibrated thresholds besides the proven bounds.")]
RunOpened = Annotated[
    Path | None, typer.Option(help="The run that is opened: its claim and spec say what was claimed.")
]


def judge(
    opening: Path | None = typer.Argument(None, help="A directory that `tally open --operators` wrote."),
    node: Annotated[
        list[int] | None, typer.Option("--node", help="Judge this operator; may be given several times.")
    ] = None,
    profile: Profile = None,
    precision: Precision = "stepwise",
    properties: list[str] | None = typer.Option(None, "--properties", help="Check this property too, or `all`."),
    claim: str | None = typer.Option(None, help="The digest of the claim that was published: sha256:…"),
    run: RunOpened = None,
    list_all: bool = typer.Option(False, "--list", help="List the properties and what each proves."),
    json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
    verbose: Verbose = False,
) -> int:
    """Judge the opened operators of one step, as an auditor.

    Each operator is computed again on its claimed operands. Its result has to be equal, within its proven bound, or
    within a calibrated threshold.

    To rule on a dispute over one operator see `tally referee` (from a file) and `tally rule` (at a coordinator).
    """
    if list_all:
        width = max(map(len, known_properties.PROPERTIES))
        for known in known_properties.PROPERTIES.values():
            print(f"{known.name:<{width}}  {known.proves}")
        return 0
    if opening is None:
        raise UsageError("`tally judge DIR`, or `tally judge --list`")
    keep_freed_memory()
    require_folder(opening, OPENING)
    verdict = operators_api.judge(
        opening,
        nodes=node or (),
        profile=profile,
        precision=precision,
        properties=properties or (),
        claim=claim,
        run=run,
    )
    return _show(verdict, opening, json, verbose)


def _show(verdict: verdicts.Verdict, opening: Path, as_json: bool, verbose: bool) -> int:
    """Print the verdict, and the operator and module of each node that is objected to."""
    objected = operators_api.operators_objected_to(verdict, opening)
    if as_json:
        named: list[Json] = [each.to_json() for each in objected]
        stated = files.read_opening(opening)
        print_json({**verdict.to_json(), "claim": stated.claim, "graph": stated.graph, "operators": named})
    else:
        print_verdict(words.VerdictText(verdict, str(opening), tuple(map(str, objected))), verbose)
    return verdict.exit_code


# `tally referee`: one leaf bundle judged offline, and bundles made of an opening; no framework is needed.

NONCE_BYTES_MAX = 64
FAULTS_SHOWN = {
    "prover": "challenger's objection upheld: the operator is wrong, and the prover at fault",
    "challenger": "challenger's objection dismissed: the operator holds, and the challenger is at fault",
    "nobody": "undecided: nobody can be held to be wrong, and bonds go back",
    "committee": "undecided: a committee has to decide",
}
NO_ELEMENT_SHOWN = "challenger's objection dismissed: it names what there is not, and the challenger is at fault"
EXIT_CODES = {"challenger": 0, "prover": 1, "nobody": 3, "committee": 3}


def referee(
    file: Path | None = typer.Argument(None, help="A leaf bundle."),
    profile: Profile = None,
    precision: Precision = "stepwise",
    run: RunOpened = None,
    nonce: str | None = typer.Option(
        None,
        help="Hexadecimal digits that choose elements of a large operator; without them every element is judged. "
        "They should be the beacon's, drawn after the prover had committed; those in the file are not used.",
    ),
    element: str | None = typer.Option(
        None, help="The element that the challenger named, REF:INDEX; judged alone without --nonce."
    ),
    make: Path | None = typer.Option(None, help="Make a bundle of this opening (`tally open --operators`)."),
    node: int | None = typer.Option(None, min=0, help="The contested operator of that opening."),
    out: Path | None = typer.Option(None, help="Where the bundle goes."),
    json: bool = typer.Option(False, "--json", help="Print the ruling as JSON."),
    verbose: Verbose = False,
) -> int:
    """Rule on one contested operator, from a file.

    Prints whether the challenger's objection is upheld, and why. No coordinator is needed.

    To rule on the disputes of a coordinator see `tally rule`; to judge all operators of a step see `tally judge`.
    """
    if make is not None and node is not None and out is not None and file is None:
        _make(make, node, out, _asked(nonce, element))
        return 0
    if file is None or (make, node, out) != (None, None, None):
        raise UsageError("`tally referee FILE`, or `tally referee --make OPENING --node N --out FILE`")
    bundle = leaf_bundle.read_bundle(file)
    asked = _asked(nonce, element)
    question = request.LeafRequest(
        operators_api.read_precision(precision),
        None if profile is None else operators_api.read_profile(profile),
        None if run is None else operators_api.read_published(run),
        bytes.fromhex(asked.nonce),
        None if asked.element is None else (asked.element.ref, asked.element.index),
    )
    operators = () if run is None else operators_api.operators_of(run)
    where = [str(each) for each in operators if each.node == bundle.operator.record.node]
    return _show_ruling(leaf_judge.rule_leaf(bundle, question), str(file), where, json, verbose)


def _make(opening: Path, node: int, out: Path, asked: leaf_bundle.LeafChallenge) -> None:
    bundle = leaf_bundling.WholeOpening.read(require_folder(opening, OPENING)).bundle(node, asked)
    _check_element(bundle, bundle.challenge)
    leaf_bundle.write_bundle(out, bundle)
    missing = [
        ref for ref in bundle.operator.record.inputs | bundle.operator.record.outputs if ref not in bundle.values
    ]
    for ref in missing:
        talk().print(f"{ref} is not opened: the ruling will hold that against the prover", soft_wrap=True)
    talk().print(f"{out}: operator {node}; rule with `tally referee {quote(str(out))}`", soft_wrap=True)
    print_json({"bundle": str(bundle.identity), **bundle.sizes})


def _asked(nonce: str | None, element: str | None) -> leaf_bundle.LeafChallenge:
    """What the command line asks; what a file asks was chosen by whoever made it, which may be the prover."""
    chosen = None
    if element is not None:
        ref, _, index = element.rpartition(":")
        if not ref or not index.isascii() or not index.isdigit() or len(index) > 15:
            raise UsageError(f"--element {element[:80]}: REF:INDEX, such as n12:345")
        chosen = leaf_bundle.Element(ref=ref, index=int(index))
    return leaf_bundle.LeafChallenge(nonce=_hex(nonce or ""), element=chosen)


def _hex(nonce: str) -> str:
    digits = nonce.lower()
    if set(digits) - set("0123456789abcdef") or len(digits) % 2 or len(digits) > 2 * NONCE_BYTES_MAX:
        raise UsageError(f"--nonce: at most {NONCE_BYTES_MAX} bytes as pairs of hexadecimal digits")
    return digits


def _check_element(bundle: leaf_bundle.LeafBundle, asked: leaf_bundle.LeafChallenge) -> None:
    """Raise `UsageError` where a bundle would name what the operator does not give, as far as can be seen."""
    if asked.element is None:
        return
    ref, index = asked.element.ref, asked.element.index
    if ref not in bundle.operator.record.outputs:
        raise UsageError(f"--element {ref}: the operator gives {', '.join(bundle.operator.record.outputs)}")
    if ref in bundle.values and index >= bundle.values[ref].array().size:
        raise UsageError(f"--element {ref}:{index}: it has {bundle.values[ref].array().size} elements")


def _show_ruling(ruling: request.Ruling, subject: str, where: list[str], as_json: bool, verbose: bool) -> int:
    fault = "committee" if ruling.fault is None else str(ruling.fault)
    if as_json:
        print_json(ruling.to_json())
    else:
        print(NO_ELEMENT_SHOWN if ruling.ground == "element" else FAULTS_SHOWN[fault])
        print(f"because ({ruling.ground}): {words.printable(ruling.reason)}")
        print(*where, sep="\n", end="\n" if where else "")
        print_verdict(words.VerdictText(ruling.verdict, subject), verbose)
    return EXIT_CODES[fault]
