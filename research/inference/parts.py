"""Parts of `docs/inference.md`: a text, headings and rows, from the entries of encoder, forgeries and stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from research.inference.stacks import largest_drift

Entries = Sequence[Mapping[str, Any]]
ENCODER: Final = (
    "Area under the ROC curve over windows of 32 tokens; {answers} texts a way of encoding. The verifier encodes each "
    "text alone with fused attention, the honest provider in batches with padding and without it."
)
FORGERIES: Final = (
    "All receipts are signed by the owner of the key unless it says otherwise. Every forgery stands beside the same "
    "handed over honestly, which was accepted in {twins} of {count}. Mutants at random: {fuzzed}."
)
STACKS: Final = (
    "Answers are generated with a cache, in batches of 8, on {makers} stacks of PyTorch, and each receipt is verified "
    "on every other stack by one pass, under the default policy with the customer's seed; every stack is a process of "
    "its own. Distances are in units of what is allowed, margins in tie bands. {drift} {distinct}"
)


def encoder_part(entries: Entries) -> dict[str, Any]:
    """Areas by promised dtype and way, a column for each setting."""
    settings = list(dict.fromkeys(each["setting"] for each in entries))
    sizes = {each["setting"]: each["bytes"] for each in entries}
    rows = []
    for dtype, way in dict.fromkeys((each["dtype"], each["way"]) for each in entries):
        areas = {each["setting"]: each["area"] for each in entries if (each["dtype"], each["way"]) == (dtype, way)}
        rows.append([dtype, way, *(_area(areas[name]) for name in settings)])
    headings = ["promised", "way of encoding", *(f"{name}<br>{sizes[name]:.2f} B" for name in settings)]
    return {"text": ENCODER.format(answers=entries[0]["area"]["honest"]), "headings": headings, "rows": rows}


def forgeries_part(entries: Entries, fuzzed: Entries) -> dict[str, Any]:
    """A line for every forgery, and the mutants in the text."""
    rows = [
        [
            each["name"],
            each["change"],
            each["outcome"] if each["is_as_expected"] else f"**{each['outcome']}, not {each['expected']}**",
            ", ".join(each["checks"]) or each["why"] or (each["detail"] if each["outcome"] == "refused" else ""),
        ]
        for each in entries
    ]
    twins = sum(each["twin"] == "accepted" for each in entries)
    text = FORGERIES.format(twins=twins, count=len(entries), fuzzed="; ".join(map(_mutants, fuzzed)))
    return {"text": text, "headings": ["forgery", "change", "outcome", "seen by, or why not"], "rows": rows}


def stacks_part(entries: Entries) -> dict[str, Any]:
    """A line for every model, dtype and verifier, over all makers."""
    rows = []
    for subject, verifier in dict.fromkeys((each["subject"], each["verifier"]) for each in entries):
        found = [each for each in entries if (each["subject"], each["verifier"]) == (subject, verifier)]
        rows.append([subject, verifier, *_totals(found)])
    headings = ["model", "verified on", "makers", "accepted", "inconclusive", "rejected", "distance", "margin", "drift"]
    makers = len({each["maker"] for each in entries})
    drift, distinct = " ".join(map(_drift, largest_drift(entries))), " ".join(_distinct(entries))
    text = STACKS.format(makers=makers, drift=drift, distinct=distinct)
    return {"text": text, "headings": headings, "rows": rows}


def _totals(found: Entries) -> Iterator[str]:
    unavailable = [each["unavailable"] for each in found if "unavailable" in each]
    computed = [each for each in found if "unavailable" not in each]
    yield str(len(found))
    if not computed:
        yield from ("–", "–", "–", "–", "–", unavailable[0])
        return
    total = sum(each["receipts"] for each in computed)
    for name in ("accepted", "inconclusive", "rejected"):
        yield f"{sum(each[name] for each in computed)} of {total}"
    for name in ("fingerprint", "margin"):
        yield f"{max(each[name] for each in computed):.2f}"
    yield f"{max(each['drift'] for each in computed):.1e}"


def _mutants(each: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{each[name]} {name}" for name in ("refused", "rejected", "inconclusive", "equal", "accepted"))
    return f"{each['tried']} of {each['kind']} ({counts}, {each['unchecked']} with other unchecked statements)"


def _drift(each: Mapping[str, Any]) -> str:
    return (
        f"In {each['dtype']} honest logits lay {each['drift']:.1e} apart at most, and the differences of two "
        f"{each['spread']:.1e} ({each['pairs']} pairs of stacks and models, {each['rows']} rows)."
    )


def _distinct(entries: Entries) -> Iterator[str]:
    """How many verifiers really computed something else on the receipts of one maker: some switches change nothing."""
    computed = [each for each in entries if "bits" in each]
    for subject in dict.fromkeys(each["subject"] for each in computed):
        by_maker: dict[str, list[str]] = {}
        for each in computed:
            if each["subject"] == subject:
                by_maker.setdefault(each["maker"], []).append(each["bits"])
        maker, bits = max(by_maker.items(), key=lambda found: len(set(found[1])))
        yield f"{subject}: {len(set(bits))} different sets of logits by {len(bits)} verifiers of what {maker} made."


def _area(area: Mapping[str, Any]) -> str:
    return f"{area['value']:.4f}" if area["value"] < 1 else "1"
