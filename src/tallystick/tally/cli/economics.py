"""`tally economics`: do the bonds of a dispute game make honesty pay, for given costs and probabilities?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import typer

from tallystick.core.canonical_json import parse
from tallystick.core.errors import MalformedError
from tallystick.core.files import read_document
from tallystick.disputes.economics.conditions import (
    AUDIT_PROBABILITIES,
    COMMITTEES,
    HONESTIES,
    Condition,
    bond_range,
    committee_map,
    conditions,
    delays,
    sybils,
)
from tallystick.disputes.economics.costs import DEFAULT_RULES, ClaimKind, Economy, sizes, wrong_rounds
from tallystick.disputes.economics.report import CHALLENGES, draw_region, figures, regions, report
from tallystick.disputes.game.state import DAY, Rules
from tallystick.tally.cli.options import from_options
from tallystick.tally.cli.output import existing, page, print_json

OF_RULES: Final[dict[str, Any]] = {
    "prover_bond": typer.Option(None, "--bond", help="The prover's bond."),
    "challenger_bond": typer.Option(None, help="The challenger's bond."),
    "appeal_bond": typer.Option(None, help="The bond of an appeal."),
    "stake": typer.Option(None, help="A member's stake."),
    "vote_fee": typer.Option(None, help="Paid to a member per vote."),
    "reward": typer.Option(None, help="The winning challenger's share of the bond, in thousandths."),
    "committee": typer.Option(None, help="Members of the first committee."),
    "appeals": typer.Option(None, help="The most appeals; each draws 2m + 1 members."),
    "ways": typer.Option(None, help="Children of a partition."),
}
"""The numbers of the rules that can be changed."""


def economics(
    rules: Path | None = typer.Option(
        None, help="The rules as JSON, as a coordinator is given them; options above change them."
    ),
    region: bool = typer.Option(False, "--region", help="Also tabulate where else all conditions hold."),
    plot: Path | None = typer.Option(None, help="Draw that region into this PNG file."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    **numbers: float | None,
) -> int:
    """Check whether cheating, spam and challenges pay.

    Exit code 0 if every condition holds under which cheating does not pay and honest work does, 1 if one does not.

    Without options the coordinator's default rules are checked with a reference workload, both in `docs/economics.md`.
    Money is in the coordinator's unit: gwei on Ethereum.
    """
    economy = _economy(rules, {name: value for name, value in numbers.items() if value is not None})
    if plot is not None:
        draw_region(economy, plot)
    met = conditions(economy)
    if json:
        print_json({**report(economy), **({"regions": regions(economy)} if region else {})})
    else:
        _print_pages(economy, met, region)
    return 0 if all(each.is_met for each in met) else 1


def _with_numbers() -> Signature:
    """The parameters of the command, with an option for each number of a workload and of the rules first."""
    hints = get_type_hints(ClaimKind, include_extras=True)
    numbers = {name: (get_args(hint)[0], typer.Option(None, help=get_args(hint)[1])) for name, hint in hints.items()}
    numbers |= {name: (int, option) for name, option in OF_RULES.items()}
    named = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=option, annotation=kind | None)
        for name, (kind, option) in numbers.items()
    ]
    *others, _ = signature(economics, eval_str=True).parameters.values()
    return Signature([*named, *others])


economics.__signature__ = _with_numbers()  # type: ignore[attr-defined]  # typer reads the options from it


def _economy(path: Path | None, given: Mapping[str, Any]) -> Economy:
    """The reference workload and the rules, with the options that are given in their place."""
    of_workload = {each.name for each in fields(ClaimKind)}
    workload = replace(ClaimKind(), **{name: value for name, value in given.items() if name in of_workload})
    base = _read_rules(path).to_json()
    assert isinstance(base, dict)  # a document is an object
    return Economy(from_options(Rules, {**base, **{name: given[name] for name in OF_RULES if name in given}}), workload)


def _read_rules(path: Path | None) -> Rules:
    if path is None:
        return DEFAULT_RULES
    given = parse(read_document(existing(path, "rules")), path.name)
    if not isinstance(given, dict):
        raise MalformedError(f"{path.name}: no JSON object of rules")
    return Rules.from_json({"treasury": DEFAULT_RULES.treasury, **given}, path.name)


def _print_pages(economy: Economy, checked: tuple[Condition, ...], region: bool) -> None:
    from rich.table import Table

    console = page()
    missing = sum(not each.is_met for each in checked)
    outcome = f"[bold red]{missing} CONDITIONS NOT MET[/]" if missing else "[bold green]ALL CONDITIONS HOLD[/]"
    bond, saving = economy.rules.prover_bond, economy.workload.saving
    console.print(f"{outcome}  a bond of {bond:,} against a saving of {saving:,.0f}", soft_wrap=True)
    for heads, rows in (*_tables(economy, checked), *(_region_tables(economy) if region else ())):
        table = Table(box=None, pad_edge=False, title="", title_justify="left")
        for head in heads:
            table.add_column(head.lstrip(">"), justify="right" if head.startswith(">") else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


_Rows = Iterable[tuple[str, ...]]


def _tables(economy: Economy, checked: tuple[Condition, ...]) -> Iterator[tuple[tuple[str, ...], _Rows]]:
    """The heads and rows of each table; columns whose head begins with `>` are numbers, set at the right."""
    yield (
        ("condition", ">value", "", ">threshold", "met"),
        (
            (each.name, _number(each.value), each.relation, _number(each.threshold), _YES if each.is_met else _NO)
            for each in checked
        ),
    )
    yield ("figure", ">value"), ((name, _number(value)) for name, value in figures(economy).items())
    seats = zip(sizes(economy.rules, economy.workload.pool), wrong_rounds(economy), strict=False)
    yield (
        ("round", ">members", ">rules wrongly"),
        (
            (f"appeal {number}" if number else "first", str(count), _number(chance))
            for number, (count, chance) in enumerate(seats)
        ),
    )
    spam = [sybils(economy, count) for count in CHALLENGES]
    yield (
        (">false challenges", ">cost", ">paid to prover", ">costs prover", ">one of them wins"),
        (
            tuple(map(_number, (each.challenges, each.lost, each.won, each.imposed, each.wrongly_convicted)))
            for each in spam
        ),
    )
    ends = {None: "its clock ends", 0: "a committee"}
    yield (
        ("a false challenge plays until", ">days", ">cost"),
        (
            (ends.get(each.appeals, f"appeal {each.appeals}"), f"{each.seconds / DAY:.1f}", _number(each.cost))
            for each in delays(economy)
        ),
    )


def _region_tables(economy: Economy) -> Iterator[tuple[tuple[str, ...], _Rows]]:
    bonds = []
    for audit in AUDIT_PROBABILITIES:
        bond = bond_range(economy, audit)
        bonds.append((_number(audit), *(("—", "—") if bond is None else map(_number, (bond.least, bond.largest)))))
    yield (">audit probability", ">least bond ÷ saving", ">largest"), bonds
    members = zip(HONESTIES, committee_map(economy, HONESTIES, COMMITTEES), strict=True)
    yield (
        (">honest, for a committee of", *(f">{seats}" for seats in COMMITTEES)),
        ((_number(honesty), *(_NO if names else _YES for names in row)) for honesty, row in members),
    )


_YES: Final = "[green]yes[/]"
_NO: Final = "[red]no[/]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) != float("inf") else f"{value:.3g}"
