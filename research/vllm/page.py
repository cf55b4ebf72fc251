"""The page on receipts from vLLM: what the verifier said, and what receipts cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

INTRODUCTION = """# Receipts from vLLM: what a verifier says, and what they cost

Written by `{command}`; every figure is in `data/vllm.json`.

A real server (vLLM 0.32 for the CPU, its own process for the engine, asynchronous scheduling, chunked prefill, prefix
cache, continuous batches) serves SmolLM2-135M-Instruct with the plugin of Tallystick. Clients ask at once, for chats
and texts, streamed or not, of 8 to 512 tokens (log-uniform limits), at temperatures 0 to 1.3, with top-p, top-k, min-p,
penalties, stop texts and two choices; some leave in the middle. Afterwards each answer is judged with its request, by
the default policy, on another stack: transformers. A run is eager and on the V1 runner unless its name says otherwise.
"""


def render(data: Mapping[str, Any], command: str) -> str:
    """The whole page."""
    parts = [INTRODUCTION.format(command=command), *_answers(data)]
    if "speed" in data:
        parts.append(_speed(data["speed"]))
    return "\n".join(parts)


def _answers(data: Mapping[str, Any]) -> Iterator[str]:
    runs = [(name, each) for name, each in sorted(data.items()) if "verdicts" in each]
    if not runs:
        return
    yield "## Verdicts\n"
    yield "| run | answers | tokens | accepted | inconclusive | rejected | rejected, 95 % interval | left by clients |"
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    for name, each in runs:
        counts = [each["verdicts"].get(kind, 0) for kind in ("accepted", "inconclusive", "rejected")]
        low, high = each["rejected_interval"]
        cells = [name, each["answers"], f"{each['tokens']:,}", *counts, f"{low:.2%} to {high:.2%}", each["left"]]
        yield f"| {' | '.join(map(str, cells))} |"
    yield "\nThe interval is Clopper and Pearson's. By length in tokens (accepted / inconclusive / rejected):\n"
    lengths = sorted(runs[0][1]["by_length"], key=lambda each: int(each.partition("–")[0]))
    yield f"| run | {' | '.join(lengths)} |"
    yield f"| --- |{' --: |' * len(lengths)}"
    for name, each in runs:
        yield f"| {name} | {' | '.join(_counts(each['by_length'][length]) for length in lengths)} |"
    for name, each in runs:
        yield from _reasons(name, each)


def _counts(verdicts: Mapping[str, int]) -> str:
    return " / ".join(str(verdicts.get(kind, 0)) for kind in ("accepted", "inconclusive", "rejected"))


def _reasons(name: str, run: Mapping[str, Any]) -> Iterator[str]:
    journal = run["journal"]
    yield (
        f"\n**{name}**: the journal holds "
        f"{journal['receipts']:,} receipts without a gap, {journal['cancelled']} of them of answers whose client left"
        f"{'' if not journal['objections'] else '; objections: ' + '; '.join(journal['objections'])}. Machine: "
        f"{run['machine']}."
    )
    for reason, count in sorted(run["unavailable"].items(), key=lambda each: -each[1]):
        yield f"* {count} inconclusive: {reason}"
    for reason, count in run["objections"].items():
        yield f"* {count} rejected: {reason}"


def _speed(found: Mapping[str, Any]) -> str:
    wall, cpu = found["throughput_ratio"], found["cpu_ratio"]
    alone, receipts = found["tokens_per_second"]["alone"], found["tokens_per_second"]["receipts"]
    return f"""
## Throughput

Two servers in turns, one without the plugin: {found["rounds"]} rounds of {found["requests"]} requests for
{found["tokens"]} tokens by {found["clients"]} clients. Machine: {found["machine"]}, 2 cores, which clients and server
share. The goal is 0.99. The canonical draw over 49,152 tokens stands in the place of vLLM's own; `sampler_choose` in
[benchmarks.md](benchmarks.md) compares draws.

| | with receipts ÷ without | 95 % interval (bootstrap of the median) |
| --- | --: | --: |
| tokens per second | {wall["median"]:.3f} | {wall["low"]:.3f} to {wall["high"]:.3f} |
| tokens per CPU second | {cpu["median"]:.3f} | {cpu["low"]:.3f} to {cpu["high"]:.3f} |

Tokens per second: {alone:.0f} without receipts, {receipts:.0f} with them.
"""
