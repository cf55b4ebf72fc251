#!/usr/bin/env python3
"""Write the test vectors of the data formats, computed from the spec pages without the package.

Usage: python scripts/make_data_vectors.py vectors
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

MASK = 2**64 - 1
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
CHUNK = 1 << 20


def canonical(value: Any) -> bytes:
    """RFC 8785 for ASCII keys, strings and integers, which is all that is used here."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def named(noun: str, value: Any) -> str:
    """The digest of a JSON value under the domain of a noun."""
    return "sha256:" + hashlib.sha256(f"tallystick/{noun}/v1\n".encode() + canonical(value)).hexdigest()


def root_and_path(leaves: list[bytes], index: int = 0) -> tuple[bytes, list[bytes]]:
    """The RFC 6962 root over leaf hashes, and the audit path of one of them."""
    if not leaves:
        return hashlib.sha256(b"").digest(), []
    if len(leaves) == 1:
        return leaves[0], []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    right = index >= split
    root_of = [root_and_path(part)[0] for part in (leaves[:split], leaves[split:])]
    inner = root_and_path(leaves[split:] if right else leaves[:split], index - split if right else index)[1]
    return hashlib.sha256(b"\1" + root_of[0] + root_of[1]).digest(), [*inner, root_of[not right]]


def hashed(records: list[bytes]) -> list[bytes]:
    """RFC 6962 leaf hashes."""
    return [hashlib.sha256(b"\0" + record).digest() for record in records]


def chunk_root(data: bytes) -> str:
    """The root over ordered 1 MiB chunks."""
    return root_and_path(hashed([data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]))[0].hex()


def philox(key: bytes, count: int) -> list[int]:
    """The first words of Philox4x64-10 (Salmon et al. 2011), counted up from 0."""
    words: list[int] = []
    for block in range(-(-count // 4)):
        c, k = [block, 0, 0, 0], list(struct.unpack("<QQ", key[:16]))
        for _ in range(10):
            low, high = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
            c = [high >> 64 ^ c[1] ^ k[0], high & MASK, low >> 64 ^ c[3] ^ k[1], low & MASK]
            k = [(k[0] + WEYL[0]) & MASK, (k[1] + WEYL[1]) & MASK]
        words += c
    return words[:count]


def permutation(key: bytes, count: int) -> list[int]:
    """The numbers below `count` in the order of their words."""
    words = philox(key, count)
    return sorted(range(count), key=words.__getitem__)


def plan_vector(seed: int, count: int, validation: int, batch: int, steps: list[int]) -> dict[str, Any]:
    """One plan with the batches of some of its steps."""
    root = "sha256:" + hashlib.sha256(b"an example").hexdigest()

    def key(purpose: str, epoch: int) -> bytes:
        value = {"data_root": root, "epoch": epoch, "purpose": purpose, "seed": seed}
        return bytes.fromhex(named("permutation", value)[7:])

    def sample(place: int) -> int:
        epoch, position = divmod(place, len(train))
        return train[permutation(key("epoch", epoch), len(train))[position]]

    split = permutation(key("split", 0), count)
    train = sorted(split[validation:])
    plan = {"data_root": root, "seed": seed, "count": count, "validation_count": validation, "batch": batch}
    return {
        "plan": plan,
        "split_key": key("split", 0).hex(),
        "epoch_1_key": key("epoch", 1).hex(),
        "validation": sorted(split[:validation]),
        "batches": {str(step): [sample((step - 1) * batch + at) for at in range(batch)] for step in steps},
    }


def step_vector(seed: int, step: int) -> dict[str, Any]:
    """The key of the random numbers of a step, and the first words of its stream."""
    key = bytes.fromhex(named("seed", {"seed": seed, "step": step})[7:])
    return {"seed": seed, "step": step, "key": key.hex(), "words": [f"{word:016x}" for word in philox(key, 4)]}


def record_vector(kind: str, records: list[str]) -> dict[str, Any]:
    """Ordered records, their commitment, and every one of them opened."""
    raw = [record.encode() for record in records]
    commit = {"count": len(raw), "kind": kind, "root": root_and_path(hashed(raw))[0].hex()}
    openings = [
        {
            "index": index,
            "proof": [node.hex() for node in root_and_path(hashed(raw), index)[1]],
            "record": b64encode(record).decode(),
        }
        for index, record in enumerate(raw)
    ]
    return {
        "kind": kind,
        "records": records,
        "commit": commit,
        "digest": named("dataset", commit),
        "openings": openings,
    }


def token_vector(tokens: list[int], vocabulary: int) -> dict[str, Any]:
    """Tokens, the file that holds them, and their commitment."""
    body = b"".join(struct.pack("<H" if vocabulary <= 65_536 else "<I", token) for token in tokens)
    commit = {"chunk_bytes": CHUNK, "count": len(tokens), "root": chunk_root(body), "vocabulary": vocabulary}
    return {
        "tokens": tokens,
        "vocabulary": vocabulary,
        "file": (struct.pack("<8sQQ", b"tallytk1", vocabulary, len(tokens)) + body).hex(),
        "root": commit["root"],
        "digest": named("tokens", commit),
    }


def corpus_tokens_vector(files: dict[str, list[str]]) -> dict[str, Any]:
    """The bytes of the documents of JSONL shards, each with a LF, bound to their shards; and the data root of a run."""
    contents = {name: "".join(f'{{"text":"{text}"}}\n' for text in texts).encode() for name, texts in files.items()}
    listed, leaves, records = [], [], []
    for name in sorted(files, key=str.encode):
        tokens = "".join(f"{text}\n" for text in files[name]).encode()
        body = b"".join(struct.pack("<H", token) for token in tokens)
        shard = {"bytes": len(contents[name]), "name": name, "root": chunk_root(contents[name])}
        listed.append({"count": len(tokens), "root": chunk_root(body)})
        leaves.append(canonical({**listed[-1], "shard": shard}))
        records.append(canonical(shard))
    root = root_and_path(hashed(leaves))[0].hex()
    count = sum(each["count"] for each in listed)
    data = {
        "kind": "corpus",
        "source": {"count": len(records), "kind": "shards", "root": root_and_path(hashed(records))[0].hex()},
        "tokenizer": named("blob", {"kind": "bytes", "version": 1}),
        "tokens": {"chunk_bytes": CHUNK, "count": count, "root": root, "vocabulary": 256},
        "version": 1,
    }
    tokens_json = canonical({"shards": listed, "version": 1, "vocabulary": 256}).decode()
    return {"files": files, "tokens_json": tokens_json, "data": data, "data_root": named("dataset", data)}


def tokenizer_vectors() -> list[dict[str, Any]]:
    """Definitions with hand-checked tokens; ' hi' is one piece, and merges never reach over its edge."""
    bpe = {
        "kind": "bpe",
        "merges": [[104, 105], [32, 256], [97, 97], [97, 98]],
        "pieces": "ascii/v1",
        "version": 1,
    }
    cases = {"hi hi": [256, 257], "hi\n hi!": [256, 10, 257, 33], "aaab": [258, 259], "é": [195, 169], "": []}
    plain = {"kind": "bytes", "version": 1}
    return [
        {
            "definition": plain,
            "digest": named("tokenizer", plain),
            "vocabulary": 256,
            "texts": [{"text": text, "tokens": list(text.encode())} for text in cases],
        },
        {
            "definition": bpe,
            "digest": named("tokenizer", bpe),
            "vocabulary": 260,
            "texts": [{"text": text, "tokens": tokens} for text, tokens in cases.items()],
        },
    ]


def corpus_vector(files: dict[str, bytes]) -> dict[str, Any]:
    """A directory, given as names and as texts repeated; its commit, and the last chunk of every shard opened."""
    names = sorted(files, key=str.encode)
    shards = [{"bytes": len(files[name]), "name": name, "root": chunk_root(files[name])} for name in names]
    records = [canonical(shard) for shard in shards]
    commit = {"count": len(shards), "kind": "shards", "root": root_and_path(hashed(records))[0].hex()}
    openings = []
    for place, name in enumerate(names):
        chunks = [files[name][at : at + CHUNK] for at in range(0, len(files[name]), CHUNK)]
        if chunks and len(chunks[-1]) < 100:
            proof = root_and_path(hashed(chunks), len(chunks) - 1)[1]
            path = root_and_path(hashed(records), place)[1]
            shard = {
                "index": place,
                "proof": [node.hex() for node in path],
                "record": b64encode(records[place]).decode(),
            }
            chunk, index = b64encode(chunks[-1]).decode(), len(chunks) - 1
            openings.append({"chunk": chunk, "index": index, "proof": [node.hex() for node in proof], "shard": shard})
    digest = named("dataset", commit)
    value = {"chunk_bytes": CHUNK, "corpus": digest, "shards": shards, "version": 1}
    return {"commit": canonical(value).decode(), "digest": digest, "root": commit["root"], "openings": openings}


def write(folder: Path, name: str, vectors: dict[str, Any]) -> None:
    """Write one file of vectors, readable."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    """Write every file of vectors below the folder that is given."""
    folder = Path(sys.argv[1])
    plans = [plan_vector(7, 20, 4, 3, [1, 5, 6, 1000]), plan_vector(2**53 - 1, 5, 0, 7, [1, 2])]
    texts = [["one"], ['{"text":"one"}', '{"text":"two"}', '{"text":"three"}'], list("abcdefg")]
    parts = {
        "a.jsonl": ['{"text":"one"}\n', 1],
        "d/b.txt": ["a stick\n", (3 << 17) + 1],
        "d-e": ["", 0],
        "é/c.jsonl": ["x", 1 << 20],
    }
    kinds = ["text", "jsonl", "jsonl"]
    write(folder, "order/order.json", {"plans": plans})
    steps = [step_vector(seed, step) for seed, step in ((0, 1), (7, 1), (7, 2), (2**53 - 1, 10**6))]
    write(folder, "philox/steps.json", {"steps": steps})
    records = [record_vector(kind, record) for kind, record in zip(kinds, texts, strict=True)]
    write(folder, "dataset/records.json", {"records": records})
    write(
        folder,
        "tokens/tokens.json",
        {"tokens": [token_vector([0, 1, 255], 256), token_vector([65_536, 2], 65_537)]},
    )
    corpora_tokens = [{"a.jsonl": ["one", "é"]}, {"b.jsonl": ["two"], "a/c.jsonl": [], "a.jsonl": ["one", "one"]}]
    write(folder, "tokens/corpus.json", {"corpora": [corpus_tokens_vector(files) for files in corpora_tokens]})
    write(folder, "tokenizer/tokenizers.json", {"tokenizers": tokenizer_vectors()})
    corpora = [["a.jsonl"], ["d/b.txt", "a.jsonl", "d-e"], list(parts)]
    made = [
        {"files": {name: parts[name] for name in names}}
        | corpus_vector({name: (parts[name][0] * parts[name][1]).encode() for name in names})
        for names in corpora
    ]
    write(folder, "corpus/corpora.json", {"corpora": made})


if __name__ == "__main__":
    main()
