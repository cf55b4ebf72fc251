"""The names of all attacks and what each changes, for whoever types or lists them: the attacks load PyTorch."""

from __future__ import annotations

from typing import Final

from tallystick.core.errors import UsageError, suggestion

CHANGES: Final = {
    "honest-copy": "nothing; the run is copied",
    "prover-auditor-split": (
        "nothing; a process of its own trains the same spec, and only the run directory is left of it"
    ),
    "smuggled-program": "Python files are put into the run directory; the audit must not run them",
    "bad-seed": "the initial weights are those of another seed; every step after them is honest",
    "gradient-noise": "one step in the middle takes a gradient with noise of 1 % of its norm",
    "weights-edited": "the final weights are edited after training; anchor, summaries, roots and claim are made anew",
    "weights-edited-below-drift": (
        "3e-6 of every weight's last move is taken back; anchor, summaries, roots and claim are made anew"
    ),
    "weights-edited-by-one-ulp": (
        "one final weight is moved to the next float32; anchor, summaries, roots and claim are made anew"
    ),
    "sign-of-a-zero": (
        "one zero of the optimizer's memory is made a negative zero at the end, and everything written anew"
    ),
    "broken-seal": "one weight in an anchor file is changed by 1e-8; every record stays as it was",
    "record-inserted": "the line of one step is repeated",
    "record-inserted-resealed": "the record of one step is repeated; root, tiles and claim are made anew",
    "record-inserted-renumbered": (
        "an invented step pushes later ones back, all under their right numbers and batches; resealed"
    ),
    "tail-repeated-resealed": "the last record is repeated; root, tiles and claim are made anew",
    "record-removed": "the line of one step is deleted",
    "record-removed-resealed": "the record of one step is deleted; root, tiles and claim are made anew",
    "record-removed-renumbered": (
        "the values of one step are deleted, later ones move up under their right numbers and batches; resealed"
    ),
    "record-swapped": "the lines of two neighbouring steps are swapped",
    "record-swapped-resealed": "the records of two neighbouring steps are swapped; root, tiles and claim are made anew",
    "record-swapped-renumbered": (
        "the values of two neighbouring steps are swapped under their right numbers and batches; resealed"
    ),
    "record-edited": "the loss of one step is lowered by a tenth in its record",
    "record-edited-resealed": "the loss of one step is lowered by a tenth; root, tiles and claim are made anew",
    "data-file-edited": "one token in the file of tokens is exchanged",
    "data-substituted": "the second half learns from other text than the declared batches",
    "one-token-substituted": "one token of one batch is another than the declared one",
    "batch-repeated": "the second half learns from the same batch in every step",
    "data-recommitted": "the whole run is made anew on another text, to which it commits",
    "tokens-not-of-the-source": "the run is made anew on tokens that do not come from the source it commits to",
    "tokenizer-of-other-text": (
        "the run is made again on its source, with byte pairs that were learned from another text"
    ),
    "corpus-shard-replaced": "the run on a corpus is made anew on other documents in the place of a whole shard",
    "corpus-documents-swapped": (
        "the run on a corpus is made anew with two documents of a shard in the places of each other"
    ),
    "corpus-tokens-forged": "the run on a corpus is made anew with one token of a shard exchanged",
    "wrong-rate-recorded": "the second half is trained at a learning rate 1 % too high, as its records say",
    "wrong-rate": "the second half is trained at a learning rate 1 % too high; the records state the declared one",
    "wrong-decay": "the second half is trained with ten times the declared weight decay",
    "wrong-precision": "the second half is computed in bfloat16 and declared as float32",
    "wrong-optimizer": "the second half follows the plain gradient; moments are kept as the declared optimizer would",
    "wrong-schedule": "the second half is trained at the peak learning rate instead of the declared schedule",
    "skipped-steps": "no step of the middle segment is computed: its weights go on along the update before it",
    "transcript-without-training": (
        "nothing is computed: stolen final weights, a straight way to them, invented moments and losses"
    ),
    "infinitesimal-update": (
        "the same invention under a declared learning rate of 1e-12, with which a replay moves nothing"
    ),
    "runs-spliced": (
        "from the middle on, the steps and anchors are those of a run from another seed; links are made anew"
    ),
    "optimizer-reset": "all moments of the optimizer are set to zero before one step",
    "optimizer-reset-first-moment": "the first moments of the optimizer are set to zero before one step",
    "anchor-replaced": (
        "the weights of a middle anchor are edited; its record, its summaries, roots and claim are made anew"
    ),
    "anchor-swapped": "the file of one anchor replaces that of another",
    "anchor-swapped-resealed": (
        "the file and the record of one anchor replace those of another; roots and claim are made anew"
    ),
    "environment-edited": "environment.json names another version of PyTorch",
    "environment-forged": (
        "a learning rate 1 % too high hides behind another version of PyTorch in environment, header and claim"
    ),
    "environment-cosmetics-forged": "the honest run names another version of Python in environment, header and claim",
    "nonce-ground": "one noisy step, and a claim ground until a nonce known beforehand samples past it",
    "hidden-batch": "an undeclared batch is learned between two recorded steps; all counters stay right",
    "hidden-batch-careful": (
        "an undeclared batch moves the weights by a tenth of a step at most, past the optimizer's moments"
    ),
    "fraud-out-of-reach": (
        "the spec declares no anchor between the first and the last state, and a step far from both is noisy"
    ),
    "bucket-forged": "the record of one anchor names a bucket digest that is not that of its weights; resealed",
    "summaries-omitted": "no step records the summaries that the spec asks for; resealed",
    "clock-forged": "the timeline states a hundred times the training time; resealed",
    "nan-planted": "one of the final weights is NaN; anchor, summaries, roots and claim are made anew",
    "transcript-empty": "the claim names a transcript without a single record",
    "spec-digest-missing": "the header does not name its spec",
    "graph-other-epsilon": (
        "the optimizer's ε is 1e-6 instead of 1e-8; the spec names the graph of that step, and all is made anew with it"
    ),
    "graph-other-decay": (
        "the second moment keeps 0.998 a step, not 0.999; the spec names the graph of that step, and all is "
        "made anew with it"
    ),
    "graph-not-causal": "attention looks ahead; the spec names the graph of that step, and all is made anew with it",
    "graph-skips-a-tensor": (
        "the update leaves one weight tensor as it was; the spec names the graph of that step, and all is "
        "made anew with it"
    ),
    "graph-hidden-constant": (
        "a gradient is shifted by a constant pattern; the spec names the graph of that step, and all is made "
        "anew with it"
    ),
    "graph-hidden-input": (
        "a gradient is shifted by an input that no batch declares; the spec names the graph of that step, and "
        "all is made anew with it"
    ),
    "graph-of-another-step": (
        "every step is that of the recipe; the spec names the graph of a step with another ε; resealed"
    ),
    "graph-removed": "the step graph that the spec names is deleted",
    "graph-exchanged": "the graph of a step with another ε lies in the place of the one that the spec names",
    "graph-unknown-operator": "an operator of the step graph is exchanged for one that no verifier runs",
    "graph-respelled": "the step graph is the same in meaning, and its bytes hold one space more",
    "loop-batch-exchanged": "the file of one batch holds the batch of another step",
    "loop-batch-withheld": "the file of one batch is deleted",
    "loop-batch-renamed": (
        "one record names a batch that differs in one token from the one learned; that batch is kept; resealed"
    ),
    "loop-rate-misstated": "one record states a learning rate 1 % above the one that was used; resealed",
    "loop-rule-misstated": (
        "the spec states ten times the weight decay that was used; summaries, roots and claim are made anew"
    ),
    "loop-data-recommitted": "the whole run is made anew on other batches, which its records name",
    "loop-graph-of-another-step": (
        "the spec names the graph of a step with another ε than the one that was taken; resealed"
    ),
    "loop-graph-removed": "the step graph that the spec names is deleted",
    "loop-constant-exchanged": "one number in the file of the graph's constants is another one",
    "loop-constants-removed": "the file of the graph's constants is deleted",
    "loop-graph-hidden-constant": (
        "a constant pattern is added to the gradient of one weight tensor, in the graph as in the training"
    ),
    "loop-graph-skips-a-tensor": "the update leaves one weight tensor as it was, in the graph as in the training",
    "loop-step-with-its-own-graph": (
        "nothing; one step names a graph of its own, which is that of the others with its nodes renumbered"
    ),
    "loop-step-of-another-optimizer": (
        "one step is taken with another ε, and its record names the graph of that step; resealed"
    ),
    "loop-step-hidden-constant": (
        "one step adds a constant pattern to a finished gradient, and its record names its graph; resealed"
    ),
    "loop-step-graph-exchanged": "the graph of a step with another ε lies in the place of the one that a record names",
    "loop-step-graph-removed": "the graph that a record names is deleted",
    "loop-start-tuned": (
        "the spec states a published checkpoint, and the run begins with weights that were trained further"
    ),
    "loop-start-moments": (
        "the run begins with the checkpoint that its spec states, and with a chosen moment of one weight"
    ),
    "loop-start-counters": (
        "the run begins with the checkpoint that its spec states, and counts its steps from a thousand on"
    ),
    "loop-start-stated": "nothing; the loop begins with the checkpoint that its spec states",
    "loop-step-gradient-negated": (
        "one step goes up the gradient of a weight, and its record names the graph of that step; resealed"
    ),
    "loop-gradients-scaled-from-a-step": (
        "from one step on a gradient counts four times, and records name the graph of these steps; resealed"
    ),
    "loop-step-loss-squared": (
        "one step records the square of its loss, and its record names a graph that does; resealed"
    ),
    "loop-step-update-under-other-decay": (
        "one step states weight decay × 1.0000001, and names a graph that negates a weight after the update; resealed"
    ),
    "loop-step-other-betas": (
        "one step states β₁ = 0.999, which makes its step larger; its graph is that of the spec; resealed"
    ),
    "loop-step-negative-rate": "one step is taken with a negative learning rate, which its record states; resealed",
    "loop-step-tripled-rate": "one step is taken with three times the learning rate, which its record states; resealed",
    "loop-schedule-before-record": "nothing; the schedule of the loop steps before the recorder",
    "loop-clipping-undeclared": "nothing; the loop clips its gradients, and does not declare this to the recorder",
    "loop-autocast-around": "nothing; the loop runs under autocast, and the loss that was captured does not",
    "loop-decay-changed": "nothing; the loop takes its weight decay away in the middle",
    "loop-graph-excused": (
        "one record states a learning rate 1 % above the one that was used; the claim withdraws the step graph"
    ),
    "recipe-graph-excused": "the claim of a run by a recipe withdraws its step graph",
    "loop-end-withdrawn": (
        "the final weights are edited after training, and the claim withdraws the graph of the last steps"
    ),
    "loop-end-without-batch": "the final weights are edited after training, and the batch of the last step is deleted",
    "rows-exchanged": "one step is taken on the row of another step, and its record names its own; all made anew",
    "rows-label-unmasked": (
        "the run on rows is made anew with a label on a token of the user, under the corpus and the tokenizer "
        "that it states"
    ),
    "rows-in-another-order": (
        "the run on rows is made anew with two rows in the places of each other, under the corpus and the "
        "tokenizer that it states"
    ),
    "rows-of-another-tokenizer": (
        "the run on rows is made anew on rows of a tokenizer that spells otherwise, under the corpus and the "
        "tokenizer that it states"
    ),
    "rows-as-stated": "nothing; the loop is trained on the rows that its spec states",
    "undetermined-moved": (
        "weights that no replay determines are moved to the end of their reach, past the sketch; all made anew"
    ),
    "undetermined-moved-bf16": "the same in bfloat16, where more is undetermined",
}
NAMES: Final = tuple(CHANGES)


def require_attack(name: str) -> str:
    """`name`, if an attack is called so; raises `UsageError` with the one that was meant."""
    if name not in NAMES:
        raise UsageError(f"no such attack {name}{suggestion(name, NAMES)}; `tally attack --list` lists all")
    return name
