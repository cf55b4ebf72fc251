"""`tally economics`: do the bonds of a dispute game make honesty pay, for given costs and probabilities?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tallystick.core.errors import MalformedError
from tallystick.tally.cli.options import from_options

if TYPE_CHECKING:
    from rich.table import Table

    from tallystick.disputes.economics.conditions import Condition
    from tallystick.disputes.economics.costs import Economy
    from tallystick.disputes.game.state import Rules


DAY: Final = 86_400


def economics(
    ctx: typer.Context,
    revenue: float | None = typer.Option(None, help="Paid for a claim once it is final."),
    cost_honest: float | None = typer.Option(None, help="Running as claimed."),
    cost_cheat: float | None = typer.Option(None, help="Running the cheat."),
    cost_verify: float | None = typer.Option(None, help="Recomputing a sample of a claim."),
    cost_answer: float | None = typer.Option(None, help="The prover's work in one dispute."),
    cost_challenge: float | None = typer.Option(None, help="The challenger's work in one dispute."),
    cost_vote: float | None = typer.Option(None, help="Judging one operator, as a member of a committee."),
    answer_seconds: float | None = typer.Option(None, help="Time in which the prover answers one dispute."),
    records: int | None = typer.Option(None, help="Records of a claim."),
    operators: int | None = typer.Option(None, help="Operators of one record."),
    sybils: int | None = typer.Option(None, help="False challenges that must be answered side by side."),
    audit_probability: float | None = typer.Option(None, help="That somebody recomputes a claim."),
    detection: float | None = typer.Option(None, help="That this finds the cheat and decides the dispute."),
    honesty: float | None = typer.Option(None, help="Share of members that vote as they find."),
    pool: int | None = typer.Option(None, help="Members to draw from; 0 for a large pool."),
    certain: float | None = typer.Option(None, help="Share of disputes that a theorem decides."),
    planted: float | None = typer.Option(None, help="Share of claims with a planted fault."),
    fault_rate: float | None = typer.Option(None, help="Share of other claims with a fault whose finder is paid."),
    planted_cases: float | None = typer.Option(None, help="Share of a committee's cases that are planted."),
    lazy_error: float | None = typer.Option(None, help="That a vote without looking is wrong on a planted case."),
    capital_rate: float | None = typer.Option(None, help="Price of money, per year."),
    gas_price: float | None = typer.Option(None, help="Price of one gas; 0 without a chain."),
    gas_claim: float | None = typer.Option(None, help="Gas of posting and closing a claim."),
    gas_answer: float | None = typer.Option(None, help="Gas of the prover in one dispute."),
    gas_challenge: float | None = typer.Option(None, help="Gas of the challenger in one dispute."),
    prover_bond: int | None = typer.Option(None, "--bond", help="The prover's bond."),
    challenger_bond: int | None = typer.Option(None, help="The challenger's bond."),
    appeal_bond: int | None = typer.Option(None, help="The bond of an appeal."),
    stake: int | None = typer.Option(None, help="A member's stake."),
    vote_fee: int | None = typer.Option(None, help="Paid to a member per vote."),
    reward: int | None = typer.Option(None, help="The winning challenger's share of the bond, in thousandths."),
    committee: int | None = typer.Option(None, help="Members of the first committee."),
    appeals: int | None = typer.Option(None, help="The most appeals; each draws 2m + 1 members."),
    ways: int | None = typer.Option(None, help="Children of a partition."),
    rules: Path | None = typer.Option(
        None, help="The rules as JSON, as a coordinator is given them; options above change them."
    ),
    region: bool = typer.Option(False, "--region", help="Also tabulate where else all conditions hold."),
    plot: Path | None = typer.Option(None, help="Draw that region into this PNG file."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> int:
    """Check whether cheating, spam and challenges pay.

    Exit code 0 if every condition holds under which cheating does not pay and honest work does, 1 if one does not.

    Without options the coordinator's default rules are checked with a reference workload, both in `docs/economics.md`.
    Money is in the coordinator's unit: gwei on Ethereum.
    """
    from tallystick.disputes.economics.conditions import conditions

    economy = _economy(ctx.params)
    if plot is not None:
        from tallystick.disputes.economics.report import draw_region

        draw_region(economy, plot)
    found = conditions(economy)
    if json:
        _print_json(economy, region)
    else:
        _print_pages(economy, found, region)
    return 0 if all(each.is_met for each in found) else 1


def _economy(options: Mapping[str, Any]) -> Economy:
    """The reference workload and the rules, with the options that are given in their place."""
    from dataclasses import replace

    from tallystick.disputes.economics.costs import ClaimKind, Economy

    given = {name: value for name, value in options.items() if value is not None}
    of_workload = {each.name for each in fields(ClaimKind)}
    workload = replace(ClaimKind(), **{name: value for name, value in given.items() if name in of_workload})
    base = _read_rules(options["rules"])
    changes = {name: value for name, value in given.items() if name in type(base).model_fields}
    return Economy(from_options(type(base), {**_object(base), **changes}), workload)


def _read_rules(path: Path | None) -> Rules:
    from tallystick.core.canonical_json import parse
    from tallystick.core.files import read_document
    from tallystick.disputes.economics.costs import DEFAULT_RULES
    from tallystick.disputes.game.state import Rules
    from tallystick.tally.cli.output import existing

    if path is None:
        return DEFAULT_RULES
    given = parse(read_document(existing(path, "rules")), path.name)
    if not isinstance(given, dict):
        raise MalformedError(f"{path.name}: no JSON object of rules")
    return Rules.from_json({"treasury": DEFAULT_RULES.treasury, **given}, path.name)


def _object(rules: Rules) -> dict[str, Any]:
    value = rules.to_json()
    assert isinstance(value, dict)  # a document is an object
    return value


def _print_json(economy: Economy, region: bool) -> None:
    from tallystick.disputes.economics.report import regions, report
    from tallystick.tally.cli.output import print_json

    print_json({**report(economy), **({"regions": regions(economy)} if region else {})})


def _print_pages(economy: Economy, found: tuple[Condition, ...], region: bool) -> None:
    from tallystick.tally.cli.output import page

    console = page()
    missing = sum(not each.is_met for each in found)
    outcome = f"[bold red]{missing} CONDITIONS NOT MET[/]" if missing else "[bold green]ALL CONDITIONS HOLD[/]"
    bond, saving = economy.rules.prover_bond, economy.workload.saving
    console.print(f"{outcome}  a bond of {bond:,} against a saving of {saving:,.0f}", soft_wrap=True)
    tables = [_conditions_table(found), _figures_table(economy), _committees_table(economy)]
    tables += [_spam_table(economy), _delays_table(economy), *(_region_tables(economy) if region else ())]
    for table in tables:
        console.print(table)


def _conditions_table(found: tuple[Condition, ...]) -> Table:
    table = _table(("condition", "left"), ("value", "right"), ("", "left"), ("threshold", "right"), ("met", "left"))
    for each in found:
        mark = "[green]yes[/]" if each.is_met else "[red]no[/]"
        table.add_row(each.name, _number(each.value), each.relation, _number(each.threshold), mark)
    return table


def _figures_table(economy: Economy) -> Table:
    from tallystick.disputes.economics.report import figures

    table = _table(("figure", "left"), ("value", "right"))
    for name, value in figures(economy).items():
        table.add_row(name, _number(value))
    return table


def _committees_table(economy: Economy) -> Table:
    from tallystick.disputes.economics.costs import sizes, wrong_rounds

    table = _table(("round", "left"), ("members", "right"), ("rules wrongly", "right"))
    seats = sizes(economy.rules, economy.workload.pool)
    for number, (count, chance) in enumerate(zip(seats, wrong_rounds(economy), strict=False)):
        table.add_row(f"appeal {number}" if number else "first", str(count), _number(chance))
    return table


def _spam_table(economy: Economy) -> Table:
    from tallystick.disputes.economics.conditions import sybils
    from tallystick.disputes.economics.report import CHALLENGES

    heads = ("false challenges", "cost", "paid to prover", "costs prover", "one of them wins")
    table = _table(*((head, "right") for head in heads))
    for count in CHALLENGES:
        each = sybils(economy, count)
        cells = (each.challenges, each.lost, each.won, each.imposed, each.wrongly_convicted)
        table.add_row(*map(_number, cells))
    return table


def _delays_table(economy: Economy) -> Table:
    from tallystick.disputes.economics.conditions import delays

    table = _table(("a false challenge plays until", "left"), ("days", "right"), ("cost", "right"))
    for each in delays(economy):
        name = "its clock ends" if each.appeals is None else f"appeal {each.appeals}" if each.appeals else "a committee"
        table.add_row(name, f"{each.seconds / DAY:.1f}", _number(each.cost))
    return table


def _region_tables(economy: Economy) -> Iterator[Table]:
    from tallystick.disputes.economics.conditions import (
        AUDIT_PROBABILITIES,
        COMMITTEES,
        HONESTIES,
        bond_range,
        committee_map,
    )

    bonds = _table(("audit probability", "right"), ("least bond ÷ saving", "right"), ("largest", "right"))
    for audit in AUDIT_PROBABILITIES:
        found = bond_range(economy, audit)
        bonds.add_row(_number(audit), *(("—", "—") if found is None else map(_number, (found.least, found.largest))))
    yield bonds
    members = _table(("honest, for a committee of", "right"), *((str(seats), "right") for seats in COMMITTEES))
    for honesty, row in zip(HONESTIES, committee_map(economy, HONESTIES, COMMITTEES), strict=True):
        members.add_row(_number(honesty), *("[red]no[/]" if names else "[green]yes[/]" for names in row))
    yield members


def _table(*columns: tuple[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="", title_justify="left")
    for name, justify in columns:
        table.add_column(name, justify=justify)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) != float("inf") else f"{value:.3g}"
