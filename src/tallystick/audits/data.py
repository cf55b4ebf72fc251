"""The data of a run: tokens and tokenizer derived again, and batches compared with the rows that a spec names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy, sample_steps
from tallystick.audits.replay import SegmentReport
from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.tensors import State
from tallystick.formats.data.preparation import CorpusCheck, LibraryVersions, verify_data, verify_tokenizer
from tallystick.formats.data.rows import CommittedRows, leaves_of_batch, read_rows
from tallystick.programs.random_words import sample
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import require

CORPUS: Final = "tokens of the corpus"
ROWS_MAX: Final = 64
"""How many rows of the replayed steps, drawn with the nonce, are rendered and tokenized again."""


# Tokens and tokenizer: the digests of source, tokenizer and tokens do not show that one comes from the other.


def derive_data(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterator[str]:
    """Derive tokens and tokenizer again into the findings, as far as the policy demands; yields what stays open.

    A full audit derives all of them. Of a corpus that the verifier has, any audit derives some shards.
    """
    commitment = evidence.spec.data
    if commitment is None or commitment.tokens is None or evidence.dataset is None:
        return
    if commitment.kind == "corpus" and (policy.full or stack.corpus is not None):
        yield from _derive_corpus(evidence, policy, nonce, stack)
    elif commitment.kind != "corpus" and policy.full:
        yield from _derive_source(evidence, stack)


def _derive_corpus(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterator[str]:
    """Hash and tokenize shards of the verifier's own copy: all of them, or those that the nonce draws."""
    commitment, recipe = evidence.spec.data, evidence.spec.recipe
    assert commitment is not None
    assert recipe is not None  # only a recipe has data
    if stack.corpus is None or stack.read_encoder is None:
        yield "whether the tokens are those of the corpus: give its directory with --corpus"
        return
    with evidence.findings.check(CORPUS):
        path, versions = evidence.run.data_path, LibraryVersions(*_tokenizers(evidence, stack))
        corpus = CorpusCheck.open(path, stack.corpus, commitment, recipe, stack.read_encoder, versions)
        shards = len(corpus.corpus.shards)
        for index in range(shards) if policy.full else sample_shards(evidence, nonce, shards, policy.shards):
            with evidence.findings.check(CORPUS, f"shard {index}"):
                corpus.check([index])


def sample_shards(evidence: CheckedRun, nonce: bytes, shards: int, count: int) -> tuple[int, ...]:
    """`count` distinct shards, in ascending order, uniformly distributed to anyone without the nonce."""
    name = encode({"claim": str(evidence.claim.identity), "nonce": nonce.hex(), "of": "shards"})
    return tuple(int(shard) for shard in sample(digest_bytes(digest("sample", name)), shards, min(count, shards)))


def shards_derived(evidence: CheckedRun) -> int:
    """How many shards of the corpus were tokenized again."""
    return sum(finding.name == CORPUS and finding.where != "" for finding in evidence.findings.seen)


def _derive_source(evidence: CheckedRun, stack: VerifierStack) -> Iterator[str]:
    commitment, recipe = evidence.spec.data, evidence.spec.recipe
    assert commitment is not None
    assert recipe is not None  # only a recipe has data
    with evidence.findings.check("tokens of the source"):
        verify_data(evidence.run.data_path, commitment)
    if recipe.tokenizer.kind == "bytes":
        return  # its kind was checked when the data was opened
    if stack.train_bpe is None:
        yield "whether the tokenizer was trained on the source: nothing here trains one"
        return
    versions = LibraryVersions(*_tokenizers(evidence, stack))
    with evidence.findings.check("tokenizer of the source"):
        verify_tokenizer(evidence.run.data_path, commitment, recipe.tokenizer, stack.train_bpe, versions)


def _tokenizers(evidence: CheckedRun, stack: VerifierStack) -> tuple[str, str]:
    """The versions of `tokenizers` here and in the run."""
    return stack.environment.package("tokenizers"), evidence.environment.package("tokenizers")


# Rows: the batches of replayed steps are rows that the spec names, and rows come from conversations.


def check_rows(
    evidence: CheckedRun, reports: Sequence[SegmentReport], nonce: bytes, stack: VerifierStack
) -> Iterator[str]:
    """Check the batches of the replayed steps into the findings; yields what stays open."""
    findings, rows = evidence.findings, None
    steps = [step for report in reports for step in range(report.segment.start + 1, report.segment.end + 1)]
    with findings.check("rows"):
        rows = read_rows(evidence.run.data_path)
        require(rows.recipe.identity == evidence.spec.rows, "data/rows.json is not the rows recipe of the spec")
    if rows is None or not steps or findings.rejected:
        return
    unnamed = [step for step in steps if evidence.step(step).batch.indices is None]
    if unnamed:
        yield f"rows: the batches of {len(unnamed)} of {len(steps)} replayed steps name no rows (step {unnamed[0]})"
    named = sorted(set(steps) - set(unnamed))
    for step in named:
        with findings.check("rows", f"step {step}"):
            _check_batch(evidence, rows, step)
    if findings.rejected or unnamed:
        return
    what = f"{len(steps):,} replayed batches are rows of {rows.recipe.identity}, of the corpus {rows.recipe.corpus}"
    findings.checked.append(f"data: the {what}")
    yield from _derive_rows(evidence, rows, named, nonce, stack)


def _check_batch(evidence: CheckedRun, rows: CommittedRows, step: int) -> None:
    batch: State = {name.removeprefix(BATCH): tensor for name, tensor in evidence.batch(step).items()}
    leaves, places = leaves_of_batch(batch, rows.recipe), evidence.step(step).batch.indices or ()
    require(leaves is not None and len(leaves) == len(places), f"the batch holds other tensors than {len(places)} rows")
    assert leaves is not None  # required above
    for place, leaf in zip(places, leaves, strict=True):
        is_there = place < len(rows.leaves) and rows.leaves[place] == leaf
        require(is_there, f"the batch is not row {place} of the corpus, which its record names")


def _derive_rows(
    evidence: CheckedRun, rows: CommittedRows, steps: Sequence[int], nonce: bytes, stack: VerifierStack
) -> Iterator[str]:
    """Render and tokenize drawn rows of the replayed steps again from the verifier's conversations."""
    findings = evidence.findings
    if stack.made_again is None:
        findings.not_checked.append(
            "whether the rows are those of the conversations: give the corpus with --corpus, and a directory with its "
            "tokenizer and chat template with --initial"
        )
        return
    named = sorted({place for step in steps for place in evidence.step(step).batch.indices or ()})
    drawn = sample_steps(nonce, evidence.claim.identity, len(named), ROWS_MAX)
    ours, theirs = _tokenizers(evidence, stack)
    try:
        stack.made_again(rows, [named[number - 1] for number in drawn])
    except (MalformedError, UnavailableError) as error:
        yield f"rows: {error}"
    except ProofError as error:
        if ours == theirs:
            findings.differs("rows of the corpus", detail=str(error))
        else:
            yield f"rows: {error} with tokenizers {ours}; the run states {theirs}: install that one to decide"
    else:
        findings.agrees("rows of the corpus")
        findings.checked.append(f"data: {len(drawn):,} of {len(named):,} rows were made again from the conversations")
