"""The commands whose results the oracle keeps, one a line, run in this order in one folder."""

from __future__ import annotations

import json
from pathlib import Path

OTHER_KEY = "1398f62c6d1a457c51ba6a4b5f3dbd2f69fca93216218dc8997e416bd17d93ca"
"""The public half of a key that signed nothing."""
NONCE = bytes(range(32)).hex()
DRAWN = f"--nonce {NONCE}"
SAMPLED = f"--samples 24 --window 6 {DRAWN}"
"""All of 24 steps: which ones fewer samples are follows from the claim too, and that of most forgeries from times."""
TEXT_BYTES = 20_000
LLAMA = """
architecture = "llama"
[model.config]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 64
tie_word_embeddings = true
"""
GPT2 = """
architecture = "gpt2"
[model.config]
n_embd = 32
n_layer = 2
n_head = 2
n_positions = 64
attn_pdrop = 0.0
embd_pdrop = 0.0
resid_pdrop = 0.0
"""
RECIPE = """
[data]
{data}
validation = 8
{tokenizer}
[model]{model}
[optimizer]
learning_rate = 3e-3
weight_decay = 0.01
clip_norm = 1.0
[schedule]
kind = "cosine"
warmup_steps = 4
[training]
steps = 24
batch = 4
sequence = 32
seed = 7
{dtype}
[record]
anchor_stride = 6
"""
TEXT, SHARDS = 'kind = "text"\npath = "text.txt"', 'kind = "corpus"\npath = "shards"'
PLAIN = {"data": TEXT, "tokenizer": "", "model": LLAMA, "dtype": ""}
RECIPES = {
    "recipe": PLAIN,
    "bpe": PLAIN | {"tokenizer": '[tokenizer]\nkind = "bpe"\nvocabulary = 300'},
    "corpus": PLAIN | {"data": SHARDS},
    "gpt2": PLAIN | {"model": GPT2},
    "gpt2-bf16": PLAIN | {"model": GPT2, "dtype": 'dtype = "bf16"'},
    "faster": PLAIN | {"tokenizer": "# the same, but for its learning rate"},
}

RECORDED = """
tally train demo.toml --out demo --threads 1
tally train recipe.toml --out recipe --threads 1
tally train faster.toml --out faster-recipe --threads 1
tally train bpe.toml --out bpe --threads 1
tally train corpus.toml --out corpus --threads 1
tally train gpt2.toml --out gpt2 --threads 1
tally train gpt2-bf16.toml --out gpt2-bf16 --threads 1 --no-graph
loop loop
loop checkpoint
loop small
loop faster
loop chat
tally rows rows-shards --model rows-model --length 48 --packing apart --out rows-made --json
loop rows
loop calls
loop jax
tally profile-step recipe --step 3 --out trace --json
tally cluster describe --out cluster.json --json
tally attack wrong-rate demo forged --json
"""
"""What is kept with the oracle: later commands are run on the runs of the first time."""

ANSWERS = "tally generate model --key provider.key --max-tokens 40 --seed 7 --commit --out answers --json"
JUDGED = f"""
tally export-model recipe model --json
{ANSWERS} --prompt "The with statement" --nonce 5ca1ab1e --request-id one --graph
{ANSWERS} --prompt "A list is" --nonce 5ca1ab1f --request-id two --temperature 0.7 --top-k 20
tally audit demo --samples 4 {DRAWN} --json
tally audit demo --samples 4 {DRAWN}
tally audit recipe {SAMPLED} --json
tally audit recipe {SAMPLED} --verbose
tally audit recipe {SAMPLED} --replay recipe --json
tally audit recipe {SAMPLED} --tolerant --json
tally audit recipe --full {DRAWN} --json
tally audit recipe --full {DRAWN} --html report.html
tally audit bpe --full {DRAWN} --json
tally audit corpus {SAMPLED} --corpus shards --json
tally audit corpus {SAMPLED} --json
tally audit gpt2 {SAMPLED} --tolerant --json
tally audit gpt2-bf16 {SAMPLED} --json
tally audit loop {SAMPLED} --json
tally audit loop --samples 3 {DRAWN} --json
tally audit loop {SAMPLED} --strict --json
tally audit loop {SAMPLED} --tolerant --verbose
tally audit checkpoint {SAMPLED} --initial start --json
tally audit checkpoint {SAMPLED} --json
tally audit rows {SAMPLED} --corpus rows-shards --initial rows-model --json
tally audit rows {SAMPLED} --json
tally audit small --full {DRAWN} --json
tally audit small {DRAWN}
tally audit calls {DRAWN} --json
tally audit nudged {DRAWN} --json
tally audit nudged {DRAWN}
tally audit recipe --claim sha256:{"0" * 64} {SAMPLED} --json
tally audit recipe --segment 0..6
tally audit nowhere
tally audit recipe --samples 0
tally audit recipe --nonce xyz
tally fsck recipe --json
tally fsck calls
tally verify-segment recipe --from 6 --to 12 --json
tally verify-segment loop --from 6 --to 12 --json
tally verify-segment checkpoint --from 0 --to 6 --initial start
tally verify-segment recipe --from 5 --to 12
tally verify-data bpe --json
tally verify-data corpus --corpus shards --json
tally prove-data recipe --index 0
tally targets recipe --json
tally diff recipe faster-recipe --json
tally diff small faster --operator --out difference --json
tally diff small faster --no-replay
tally diff recipe recipe --json
tally open recipe --record 3
tally open recipe --step 7
tally open recipe --segment 6..12 --out segment
tally audit segment {DRAWN} --json
tally open loop --segment 6..12 --out loop-segment
tally audit loop-segment {DRAWN} --json
tally open loop --step 5 --operators --out opened
tally judge opened --run loop --json
tally judge opened --properties all --verbose
tally judge opened --claim sha256:{"0" * 64} --json
tally judge --list
tally open calls --step 1 --operators --out opened-call
tally judge opened-call --json
tally open nudged --step 1 --operators --out opened-nudged
tally judge opened-nudged --json
tally diff opened-call opened-nudged --json
tally referee --make opened --node 3 --out bundle --json
tally referee bundle --json
tally referee bundle --run loop --verbose
tally open loop --step 5 --operators --node 3 --out one-operator
tally judge one-operator --json
tally verify-response answers/receipts.jsonl --model model --nonce ab --json
tally verify-response answers/receipts.jsonl --model model --wide --rung 4 --nonce ab --verbose
tally verify-response answers/receipts.jsonl --model model --trust-key {OTHER_KEY} --nonce ab --json
tally verify-response answers/receipts.jsonl --model start --json
tally verify-graph answers/graphs/decode.json --model model
tally open-states answers one --nonce ab
tally open-states answers three --nonce ab
tally model-root model --json
tally model-root recipe --json
tally audit-trace trace --json
tally audit-trace trace --graph recipe/graphs/step.json --json
tally export-trace trace --out perfetto.json --json
tally cluster show cluster.json
tally graph show classifier.json
tally graph show recipe/graphs/step.json --node 5 --proof
tally graph stats recipe/graphs/step.json --json
tally graph slice classifier.json --nodes 1,2 --out slice.json --json
tally graph diff recipe/graphs/step.json bpe/graphs/step.json --json
tally graph show jax.json --json
tally commit text.txt --out commit.json --json
tally digest start/model.safetensors --json
tally economics --json
tally db add recipe loop calls answers/receipts.jsonl --db tally.db --json
tally db list --db tally.db --json
tally db show recipe --db tally.db --json
tally db check --db tally.db --json
tally query --db tally.db --json
tally query "SELECT * FROM runs" --db tally.db --json
tally query "SELECT * FROM steps WHERE run = 'recipe'" --db tally.db --json
tally query "SELECT * FROM anchors" --db tally.db --json
tally query "SELECT * FROM operators WHERE number < 40" --db tally.db --json
tally query "SELECT * FROM bindings" --db tally.db --json
tally query "SELECT * FROM receipts" --db tally.db --json
tally query "SELECT name, steps FROM runs" --db tally.db
tally query "DROP TABLE runs" --db tally.db
tally example
tally attack --list --json
"""

COURT = "--coordinator court/court.db"
DISPUTED = f"""
tally coordinator init --demo --json
tally prover forged --once {COURT} --key court/forger.key --work forger-work
tally challenger --until-settled {COURT} --key court/auditor.key --work auditor-work --poll 0.05 & \
tally prover forged --forger wrong-rate {COURT} --key court/forger.key --work forger-work --poll 0.05
tally dispute show 0 {COURT} --json
tally dispute show 0 {COURT} --run forged
tally prover demo --once {COURT} --key court/lab.key --work lab-work
tally challenger --claim 1 {COURT} --key court/auditor.key --work auditor-work
tally dispute status {COURT} --json
tally coordinator show --db court/court.db --json
"""
"""A forged claim is contested, and an honest one is not; `&` runs two programs at once."""

KINDS = {
    "corpus-": "corpus",
    "loop-start-": "checkpoint",
    "loop-dropout-": "dropout",
    "loop-": "loop",
    "rows-": "rows",
    "undetermined-moved-bf16": "gpt2-bf16",
    "undetermined-moved": "gpt2",
    "sign-of-a-zero": "gpt2",
    "tokenizer-of-other-text": "bpe",
    "": "recipe",
}
"""The honest run that an attack forges, by how its name begins; the first line that fits."""
GIVEN = {
    "corpus": " --corpus shards",
    "checkpoint": " --initial start",
    "rows": " --corpus rows-shards --initial rows-model",
}
"""What the auditor of such a run has."""
SEEN_BY = {
    "`tally audit --full`": f"--full {DRAWN}",
    "`tally audit --tolerant`": f"{SAMPLED} --tolerant",
    "`tally audit --claim`": f"{SAMPLED} --claim {{claim}}",
    "": SAMPLED,
}
"""The audit that must see an attack, by how `tally attack --list` names it."""


def attack_lines(name: str, seen_by: str, command: str = "tally attack") -> tuple[str, list[str]]:
    """The forgery, an audit of a sample, and the audit that must see the forgery if that is another one."""
    kind = next(kind for start, kind in KINDS.items() if name.startswith(start))
    asked = next(words for start, words in SEEN_BY.items() if seen_by.startswith(start))
    forged = f"forged-{name}"
    audits = [f"tally audit {forged} {words}{GIVEN.get(kind, '')} --json" for words in dict.fromkeys((SAMPLED, asked))]
    return f"{command} {name} {kind} {forged} --json", audits


def write_inputs(folder: Path, text: bytes) -> None:
    """The recipes, the text and its shards, and a signing key that is the same every time."""
    for name, parts in RECIPES.items():
        written = RECIPE.format(**parts)
        (folder / f"{name}.toml").write_text(written.replace("3e-3", "3.03e-3") if name == "faster" else written)
    (folder / "text.txt").write_bytes(text[:TEXT_BYTES])
    (folder / "shards").mkdir()
    lines = [json.dumps({"text": part}) + "\n" for part in text[:TEXT_BYTES].decode().split("\n\n")]
    for index in range(3):
        (folder / "shards" / f"shard-{index}.jsonl").write_text("".join(lines[index::3]))
    (folder / "provider.key").write_text("07" * 32 + "\n")
    (folder / "provider.key").chmod(0o600)
