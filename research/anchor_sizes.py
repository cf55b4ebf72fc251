#!/usr/bin/env python3
"""Measure what the anchors of a run with LoRA take on the disk, and write docs/anchors.md.

Usage: python -m research.anchor_sizes MODEL [--anchors N] [--out docs]

MODEL is a directory in the form of transformers. Adapters of rank 8 are added to the query and value projections with
`peft`; every step trains them on 16 tokens with AdamW. After every step the state that a recorder keeps is written
twice: whole, as version 1 of spec/anchor.md has it, and by the writer of version 2. What the latter wrote is copied to
a store whose files are compressed (`--anchors zstd::URL`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import digest_state, state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.engines.torch.tensors import live_tensors, to_tensor
from tallystick.formats.store.keeping import AnchorCopies, AnchorWriter
from tallystick.formats.store.run import Anchors
from tallystick.tally.calibration.stacks import machine

TOKENS = 16
SEED = 5
PAGE = """# What anchors take

`python -m research.anchor_sizes MODEL` measured this on {machine}: {model} in F32 with LoRA
of rank 8 on the query and value projections ({trained:,} trained weights of {weights:,}), AdamW, {anchors} anchors.

| | before: whole files | now: what changed | its copy by `--anchors zstd::URL` |
|---|---|---|---|
| first anchor | {first_whole:.1f} MB | {first:.1f} MB | {first_copy:.1f} MB |
| every later anchor (largest) | {whole:.1f} MB | {later:.2f} MB | {later_copy:.2f} MB |
| {anchors} anchors | {all_whole:.1f} MB | {all_parts:.1f} MB | {all_copies:.1f} MB |
| writing a later one (median of {rounds}) | {whole_seconds:.2f} s | {part_seconds:.3f} s | {copy_seconds:.3f} s |

The digests of all tensors are computed for either form, and took {digest_seconds:.2f} s (median). Every state was read
back, and had the digest of the one that was written ([format](../spec/anchor.md)). Others used the machine too.

Compression saves what was never a number of its own: the last bits of weights that were published in half precision,
and zeros. Weights and states of AdamW that were trained in F32 are nearly random in their last bits: copies of these
are less than a tenth smaller.
"""


def main() -> None:
    """Measure, and write the page with its data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--anchors", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    figures = measured(asked.model, asked.anchors)
    (asked.out / "data" / "anchor_sizes.json").write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    (asked.out / "anchors.md").write_text(rendered(figures))


def measured(path: Path, anchors: int) -> dict[str, Any]:
    """Bytes and seconds of every anchor in both forms."""
    rows, counts = [], (0, 0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        writer, reader = AnchorWriter(folder / "parts"), Anchors(folder / "parts")
        copies = AnchorCopies(f"zstd::file://{folder}/copies")
        for mark, (state, numbers) in enumerate(states(path, anchors)):
            counts = numbers
            digests, digest_seconds = timed(lambda state=state: digest_state(state))
            _, whole_seconds = timed(lambda state=state: write_state(folder / "whole.safetensors", state))
            _, part_seconds = timed(lambda a=(mark, state, digests): writer.write(*a))
            _, copy_seconds = timed(lambda mark=mark: copies.put(folder / "parts", mark))
            parts, copied = (bytes_of(folder / name, mark) for name in ("parts/anchors", "copies"))
            assert state_digest(reader.read(mark)) == digests.digest
            whole = (folder / "whole.safetensors").stat().st_size
            rows.append(
                {
                    "mark": mark,
                    "whole_bytes": whole,
                    "part_bytes": parts,
                    "copy_bytes": copied,
                    "whole_seconds": round(whole_seconds, 4),
                    "part_seconds": round(part_seconds, 4),
                    "copy_seconds": round(copy_seconds, 4),
                    "digest_seconds": round(digest_seconds, 4),
                }
            )
            print(rows[-1], flush=True)
    name = json.loads((path / "config.json").read_text()).get("_name_or_path") or "SmolLM2-135M-Instruct"
    return {"anchors": rows, "machine": machine(), "model": name, "trained": counts[0], "weights": counts[1]}


def bytes_of(folder: Path, mark: int) -> int:
    """The bytes of the files of an anchor."""
    return sum(each.stat().st_size for each in folder.glob(f"step_{mark:08d}.*"))


def states(path: Path, anchors: int) -> Iterator[tuple[State, tuple[int, int]]]:
    """The state before the first step and after each, with the numbers of trained weights and of all."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    counts = sum(each.numel() for each in trained), sum(each.numel() for each in model.parameters())
    for step in range(anchors):
        if step:
            tokens = torch.randint(0, base.config.vocab_size, (1, TOKENS))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        live = {name: to_tensor(value).copy() for name, value in live_tensors(model, optimizer).items()}
        yield live | {"position.step": Tensor.of(np.asarray(step, np.int64))}, counts


def timed(work: Any) -> tuple[Any, float]:
    """What `work` returns, and the seconds it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def rendered(figures: dict[str, Any]) -> str:
    """The page."""
    rows = figures["anchors"]
    later = rows[1:]
    return PAGE.format(
        machine=figures["machine"],
        model=figures["model"],
        trained=figures["trained"],
        weights=figures["weights"],
        anchors=len(rows),
        rounds=len(later),
        first_whole=rows[0]["whole_bytes"] / 1e6,
        whole=max(row["whole_bytes"] for row in later) / 1e6,
        first=rows[0]["part_bytes"] / 1e6,
        first_copy=rows[0]["copy_bytes"] / 1e6,
        later_copy=max(row["copy_bytes"] for row in later) / 1e6,
        all_copies=sum(row["copy_bytes"] for row in rows) / 1e6,
        copy_seconds=float(np.median([row["copy_seconds"] for row in later])),
        later=max(row["part_bytes"] for row in later) / 1e6,
        all_whole=sum(row["whole_bytes"] for row in rows) / 1e6,
        all_parts=sum(row["part_bytes"] for row in rows) / 1e6,
        whole_seconds=float(np.median([row["whole_seconds"] for row in later])),
        part_seconds=float(np.median([row["part_seconds"] for row in later])),
        digest_seconds=float(np.median([row["digest_seconds"] for row in rows])),
    )


if __name__ == "__main__":
    main()
