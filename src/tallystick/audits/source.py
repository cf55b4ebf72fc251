"""Derives tokenizer and tokens again from the committed source, for a full audit.

The digests of source, tokenizer and tokens do not show that one comes from the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Policy
from tallystick.datasets.verify import BpeTraining, verify_data, verify_tokenizer
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.workloads.verifier_stack import VerifierStack


def derive_data(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterable[str]:
    """Derive tokens and tokenizer again into the findings, as far as the policy asks; yields what cannot be done here.

    A full audit derives all of them. Of a corpus that the verifier has, any audit derives some shards.
    """
    commitment = evidence.spec.data
    if commitment is None or commitment.tokens is None or evidence.dataset is None:
        return
    if commitment.kind == "corpus":
        if policy.full or stack.corpus is not None:
            from tallystick.audits.corpus import derive_corpus

            yield from derive_corpus(evidence, policy, nonce, stack)
    elif policy.full:
        yield from _derive_source(evidence, commitment, stack)


def _derive_source(evidence: CheckedRun, commitment: DatasetCommitment, stack: VerifierStack) -> Iterable[str]:
    recipe = evidence.spec.recipe
    with evidence.findings.check("tokens of the source"):
        verify_data(evidence.run.data_path, commitment)
    assert recipe is not None  # only a recipe has data
    if recipe.tokenizer.kind == "bytes":
        return  # its kind was checked when the data was opened
    if stack.train_bpe is None:
        yield "whether the tokenizer was trained on the source: nothing here trains one"
        return
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    training = BpeTraining(stack.train_bpe, ours, theirs)
    with evidence.findings.check("tokenizer of the source"):
        verify_tokenizer(evidence.run.data_path, commitment, "bpe", recipe.tokenizer.vocabulary, training)
