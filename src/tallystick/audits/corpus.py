"""Derives the tokens of sampled shards again from the verifier's own copy of a corpus."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import sample
from tallystick.datasets.corpus_verify import CorpusCheck, Encoding
from tallystick.workloads.verifier_stack import VerifierStack

CHECK = "tokens of the corpus"


def derive_corpus(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterable[str]:
    """Hash and tokenize the sampled shards again into the findings; yields what cannot be done here."""
    commitment, recipe = evidence.spec.data, evidence.spec.recipe
    assert commitment is not None
    assert recipe is not None  # only a recipe has data
    if stack.corpus is None or stack.read_encoder is None:
        yield "whether the tokens are those of the corpus: give its directory with --corpus"
        return
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    encoding = Encoding(stack.read_encoder, ours, theirs)
    with evidence.findings.check(CHECK):
        check = CorpusCheck.open(evidence.run.data_path, stack.corpus, commitment, recipe, encoding)
        shards = check.corpus.shards
        chosen = range(len(shards)) if policy.full else sample_shards(evidence, nonce, len(shards), policy.shards)
        for index in chosen:
            with evidence.findings.check(CHECK, f"shard {index}"):
                check.check([index])
        evidence.derived = len(chosen), len(shards)


def sample_shards(evidence: CheckedRun, nonce: bytes, shards: int, count: int) -> tuple[int, ...]:
    """`count` distinct shards, in ascending order, uniformly distributed to anyone without the nonce."""
    name = encode({"claim": str(evidence.claim.identity), "nonce": nonce.hex(), "of": "shards"})
    return tuple(int(each) for each in sample(digest_bytes(digest("sample", name)), shards, min(count, shards)))
