"""`tally judge`, `tally referee`: opened operators and leaf bundles, judged offline; no framework is needed."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import typer

from tallystick.core.errors import UsageError
from tallystick.tally.cli.options import VERBOSE, print_verdict

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json
    from tallystick.verdicts.leaf.bundle import LeafBundle, LeafChallenge
    from tallystick.verdicts.leaf.request import Ruling
    from tallystick.verdicts.verdict import Verdict


# `tally judge`: judge opened operators by the reference and its proven bounds; no framework is needed.

PRECISION_HELP: Final = (
    "What the prover computed in: stepwise (16-bit floats, rounded as on CPUs), plain (one rounding, as on "
    "GPUs), tf32, bf16-products, bf16-sums, fp16-sums."
)


def judge(
    opening: Path | None = typer.Argument(None, help="A directory that `tally open --operators` wrote."),
    node: list[int] | None = typer.Option(None, "--node", help="Judge this operator; may be given several times."),
    profile: Path | None = typer.Option(None, help="Calibrated thresholds besides the proven bounds."),
    precision: str = typer.Option("stepwise", help=PRECISION_HELP),
    properties: list[str] | None = typer.Option(None, "--properties", help="Check this property too, or `all`."),
    claim: str | None = typer.Option(None, help="The digest of the claim that was published: sha256:…"),
    run: Path | None = typer.Option(None, help="The run that is opened: its claim and spec say what was claimed."),
    list_all: bool = typer.Option(False, "--list", help="List the properties and what each proves."),
    json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
    verbose: bool = VERBOSE,
) -> int:
    """Judge the opened operators of one step, as an auditor.

    Each operator is computed again on its claimed operands. Its result has to be equal, within its proven bound, or
    within a calibrated threshold.

    To rule on a dispute over one operator see `tally referee` (from a file) and `tally rule` (at a coordinator).
    """
    if list_all:
        return _list()
    if opening is None:
        raise UsageError("`tally judge DIR`, or `tally judge --list`")
    from tallystick.formats.store.folders import OPENING, require_folder
    from tallystick.tally.cli.output import keep_freed_memory
    from tallystick.tally.operators import judge

    keep_freed_memory()
    require_folder(opening, OPENING)
    verdict = judge(
        opening,
        nodes=node or (),
        profile=profile,
        precision=precision,
        properties=properties or (),
        claim=claim,
        run=run,
    )
    return _show(verdict, opening, json, verbose)


def _show(verdict: Verdict, opening: Path, as_json: bool, verbose: bool) -> int:
    """Print the verdict, and the operator and module of each node that is objected to."""
    from tallystick.tally.cli.output import print_json
    from tallystick.tally.operators import operators_objected_to
    from tallystick.verdicts.opening.files import read_opening
    from tallystick.verdicts.words import VerdictText

    objected = operators_objected_to(verdict, opening)
    if as_json:
        named: list[Json] = [each.to_json() for each in objected]
        stated = read_opening(opening)
        print_json({**verdict.to_json(), "claim": stated.claim, "graph": stated.graph, "operators": named})
    else:
        print_verdict(VerdictText(verdict, str(opening), tuple(map(str, objected))), verbose)
    return verdict.exit_code


def _list() -> int:
    from tallystick.verdicts.properties import PROPERTIES

    width = max(map(len, PROPERTIES))
    for found in PROPERTIES.values():
        print(f"{found.name:<{width}}  {found.proves}")
    return 0


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
    profile: Path | None = typer.Option(None, help="Calibrated thresholds besides the proven bounds."),
    precision: str = typer.Option("stepwise", help=PRECISION_HELP),
    run: Path | None = typer.Option(None, help="The run that is opened: its claim and spec say what was claimed."),
    nonce: str | None = typer.Option(
        None,
        help="Hexadecimal digits that choose elements of a large operator; without them every element is judged. They "
        "should be the beacon's, drawn after the prover had committed; those in the file are not used.",
    ),
    element: str | None = typer.Option(
        None, help="The element that the challenger named, REF:INDEX; judged alone without --nonce."
    ),
    make: Path | None = typer.Option(None, help="Make a bundle of this opening (`tally open --operators`)."),
    node: int | None = typer.Option(None, min=0, help="The contested operator of that opening."),
    out: Path | None = typer.Option(None, help="Where the bundle goes."),
    json: bool = typer.Option(False, "--json", help="Print the ruling as JSON."),
    verbose: bool = VERBOSE,
) -> int:
    """Rule on one contested operator, from a file.

    Prints whether the challenger's objection is upheld, and why. No coordinator is needed.

    To rule on the disputes of a coordinator see `tally rule`; to judge all operators of a step see `tally judge`.
    """
    is_making = make is not None and node is not None and out is not None and file is None
    if not is_making and (file is None or make is not None or node is not None or out is not None):
        raise UsageError("`tally referee FILE`, or `tally referee --make OPENING --node N --out FILE`")
    if is_making:
        assert make is not None  # as just asked
        assert node is not None
        assert out is not None
        return _make(make, node, out, nonce, element)
    assert file is not None  # as asked above
    from tallystick.tally.operators import read_precision, read_profile, read_published
    from tallystick.verdicts.leaf.bundle import read_bundle
    from tallystick.verdicts.leaf.judge import rule_leaf
    from tallystick.verdicts.leaf.request import LeafRequest

    bundle = read_bundle(file)
    asked = _asked(nonce, element)
    question = LeafRequest(
        read_precision(precision),
        None if profile is None else read_profile(profile),
        None if run is None else read_published(run),
        bytes.fromhex(asked.nonce),
        None if asked.element is None else (asked.element.ref, asked.element.index),
    )
    where = [] if run is None else _places(run, bundle.operator.record.node)
    return _show_ruling(rule_leaf(bundle, question), str(file), where, json, verbose)


def _places(run: Path, node: int) -> list[str]:
    """Which operator of the run's graph a node is, in one line."""
    from tallystick.tally.operators import operators_of

    return [str(each) for each in operators_of(run) if each.node == node]


def _make(opening: Path, node: int, out: Path, nonce: str | None, element: str | None) -> int:
    from tallystick.formats.store.folders import OPENING, require_folder
    from tallystick.tally.cli.output import print_json, talk
    from tallystick.verdicts.leaf.bundle import write_bundle
    from tallystick.verdicts.leaf.bundling import make_bundle

    bundle = make_bundle(require_folder(opening, OPENING), node, _asked(nonce, element))
    _check_element(bundle, bundle.asked)
    write_bundle(out, bundle)
    sizes = bundle.sizes
    missing = [
        ref for ref in bundle.operator.record.inputs | bundle.operator.record.outputs if ref not in bundle.values
    ]
    for ref in missing:
        talk().print(f"{ref} is not opened: the ruling will hold that against the prover", soft_wrap=True)
    talk().print(f"{out}: operator {node}; rule with `tally referee {quote(str(out))}`", soft_wrap=True)
    print_json(
        {
            "bundle": str(bundle.identity),
            "proof_bytes": sizes.proof,
            "proof_hash_bytes": sizes.hashes,
            "statement_bytes": sizes.statement,
            "value_bytes": sizes.values,
        }
    )
    return 0


def _asked(nonce: str | None, element: str | None) -> LeafChallenge:
    """What the command line asks; what a file asks was chosen by whoever made it, which may be the prover."""
    from tallystick.verdicts.leaf.bundle import Element, LeafChallenge

    chosen = None
    if element is not None:
        ref, _, index = element.rpartition(":")
        if not ref or not index.isascii() or not index.isdigit() or len(index) > 15:
            raise UsageError(f"--element {element[:80]}: REF:INDEX, such as n12:345")
        chosen = Element(ref=ref, index=int(index))
    return LeafChallenge(nonce=_hex(nonce or ""), element=chosen)


def _hex(nonce: str) -> str:
    digits = nonce.lower()
    if set(digits) - set("0123456789abcdef") or len(digits) % 2 or len(digits) > 2 * NONCE_BYTES_MAX:
        raise UsageError(f"--nonce: at most {NONCE_BYTES_MAX} bytes as pairs of hexadecimal digits")
    return digits


def _check_element(bundle: LeafBundle, asked: LeafChallenge) -> None:
    """Raise `UsageError` where a bundle would name what the operator does not give, as far as can be seen."""
    if asked.element is None:
        return
    ref, index = asked.element.ref, asked.element.index
    if ref not in bundle.operator.record.outputs:
        raise UsageError(f"--element {ref}: the operator gives {', '.join(bundle.operator.record.outputs)}")
    if ref in bundle.values and index >= bundle.values[ref].array().size:
        raise UsageError(f"--element {ref}:{index}: it has {bundle.values[ref].array().size} elements")


def _show_ruling(ruling: Ruling, subject: str, where: list[str], as_json: bool, verbose: bool) -> int:
    from tallystick.tally.cli.output import print_json
    from tallystick.verdicts.words import VerdictText, printable

    fault = "committee" if ruling.fault is None else str(ruling.fault)
    if as_json:
        print_json(ruling.to_json())
    else:
        print(NO_ELEMENT_SHOWN if ruling.ground == "element" else FAULTS_SHOWN[fault])
        print(f"because ({ruling.ground}): {printable(ruling.reason)}")
        print(*where, sep="\n", end="\n" if where else "")
        print_verdict(VerdictText(ruling.verdict, subject), verbose)
    return EXIT_CODES[fault]
