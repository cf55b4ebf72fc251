"""All attacks as one table: what a liar changes, and which audit must see it by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from tallystick.core.errors import UnavailableError, UsageError, suggestion

if TYPE_CHECKING:
    from tallystick.verdicts.verdict import Outcome

Audit = Literal["screens", "exact", "recipe", "full", "claim", "tolerant"]
"""How a run is audited.

screens    every digest, root and commitment, and the screens that need no replay
exact      as `screens`, and the sampled steps are replayed bit for bit from the step graph, which must be that of the
           recipe; the sample is chosen to hit the fraud
recipe     as `exact`, but with a trainer built from the recipe; no graph is run
full       as `exact` over the whole chain, and the tokens are derived again from their source
claim      an exact audit by a verifier who kept the digest of the honest claim
tolerant   the sampled steps are judged by calibrated limits instead of bits
"""
AUDITS: tuple[Audit, ...] = get_args(Audit)
Reference = Literal["recipe", "bpe", "corpus", "loop", "dropout", "checkpoint", "rows", "gpt2", "gpt2-bf16"]
"""Which honest run an attack forges.

recipe     a Llama-style model, trained from a recipe
bpe        the same with a byte-pair tokenizer that is trained on the source
corpus     the same on a corpus of shards, which the auditor has
loop       a custom training loop with a step graph
dropout    the same with dropout from PyTorch's own generator
checkpoint the same from the weights of a directory, which the auditor has
rows       the same on packed rows of conversations, whose corpus, tokenizer and template the auditor has
gpt2       a GPT-2, trained from a recipe: no replay determines its key biases
gpt2-bf16  the same in bfloat16
"""


@dataclass(frozen=True)
class Expected:
    """The outcome of one audit of a forged run; every one of `checks` must fail."""

    outcome: Outcome
    checks: tuple[str, ...] = ()
    why: str = ""


def rejected(*checks: str) -> Expected:
    """The audit rejects the run, and each of `checks` fails."""
    return Expected("rejected", checks)


def accepted(why: str) -> Expected:
    """The audit cannot detect the fraud, for the stated reason."""
    return Expected("accepted", why=why)


def inconclusive(why: str) -> Expected:
    """The audit cannot decide, for the stated reason."""
    return Expected("inconclusive", why=why)


KEPT_DIGEST: Final = rejected("claim")


@dataclass(frozen=True)
class Attack:
    """One way to forge a run, or an honest control, with the outcome of each audit.

    Its forger is the function of its name in the module `home`. It is loaded when it is called: forgers load PyTorch,
    and names and changes are listed without it. Those in `research` are found in a clone of the repository.
    """

    name: str
    home: str
    change: str
    screens: Expected
    exact: Expected | None = None
    """As the screens, if not stated."""
    tolerant: Expected | None = None
    """As `exact`, if not stated; so are `full` and `recipe`."""
    claim: Expected = KEPT_DIGEST
    full: Expected | None = None
    recipe: Expected | None = None
    reference: Reference = "recipe"
    is_honest: bool = False

    def forge(self, run: Path, out: Path) -> None:
        """Read the honest run directory `run`, and write the forged run to `out`.

        Raises `UnavailableError` outside of a clone of the repository where the forger is kept with the research.
        """
        if find_spec(self.home.partition(".")[0]) is None:
            raise UnavailableError(
                f"{self.name}: this forger is in the repository and not in the package; "
                f"in a clone, `python -m tallystick attack {self.name} RUN OUT`"
            )
        forger = getattr(import_module(self.home), self.name.replace("-", "_"))
        cast("Callable[[Path, Path], None]", forger)(run, out)

    def expected(self, audit: Audit) -> Expected:
        """The expected outcome of `audit`."""
        exact = self.exact or self.screens
        if audit == "screens":
            return self.screens
        if audit == "claim":
            return self.claim
        stated = {"tolerant": self.tolerant, "full": self.full, "recipe": self.recipe}
        return stated.get(audit) or exact


# What several audits or attacks have in common.

WEIGHTS: Final = rejected("weights residual")
REPLAY: Final = rejected("projection summary", "state")
LOSS_AND_REPLAY: Final = rejected("loss", "projection summary", "state")
STATE: Final = rejected("state")
ORDER: Final = rejected("record order")
OTHER_STEP: Final = rejected("step graph of the recipe")
STEP_GRAPH: Final = rejected("step graph")
ANCHOR: Final = rejected("anchor")
ROOT_AND_ORDER: Final = rejected("transcript root", "record order")
VALUES: Final = rejected("loss", "gradient norm", "projection summary")
SKETCH: Final = rejected("projection summary")
CORPUS: Final = rejected("tokens of the corpus")
ROWS: Final = rejected("rows of the corpus")
REPLAY_OF_EDIT: Final = rejected("state", "projection summary")
ROOT: Final = rejected("transcript root")
NO_STEP: Final = accepted("no step is taken")
POSSIBLE: Final = accepted("each anchor is one that the declared recipe could have reached on some data")
HONEST: Final = accepted("nothing is forged")
NO_GRAPH: Final = accepted("no step is taken, and no graph is read")
NO_ROWS: Final = accepted("the screens read no batch and have no corpus")
SMOOTH: Final = accepted("the step is as long and as smooth as an honest one")
IN_ORDER: Final = accepted("numbers, batches, learning rates and links are all in order")
NO_TRACE: Final = accepted("records name the declared batches, and what was really read leaves no trace in an anchor")
NO_SHARDS: Final = accepted("the screens do not read the shards")
NO_BATCH: Final = accepted("a batch is read when its step is replayed")
NO_CHECKPOINT: Final = accepted("the screens have no checkpoint to compare the first anchor with")
WITHIN_REACH: Final = accepted("every weight moved a little less than it did, which is always within reach")
BELOW_DRIFT: Final = accepted(
    "an honest run on another stack would differ as much; only a replay on the prover's stack can tell"
)
IS_THE_PROGRAM: Final = accepted(
    "no recipe says what the step should be: the graph is the program, the report assumes it, and a person "
    "who relies on it must read it (`tally graph show`, `tally graph diff`)"
)
PUSHED: Final = accepted("every weight moved no further than its learning rates reach")
AS_HONEST: Final = accepted("honest stacks differ as much in these weights; their number and effect are stated below")
NOT_READ: Final = accepted(
    "a replay of the recipe does not read the graph that the spec names, and the recipe was followed"
)
STATED_RATE: Final = accepted(
    "a loop states its rates, and the report their range and the first step off a schedule; see --strict"
)
UNEXPLAINED: Final = inconclusive("the step is another program, which nobody approved: `tally graph diff` shows it")
MEMORY: Final = inconclusive("the memory of the optimizer is neither that of a new run nor of one that the auditor has")
LOOSE: Final = inconclusive("nobody can replay the last segment, and nothing else ties the final weights to the run")
OTHER_STACK: Final = inconclusive(
    "different stack: an exact audit does not guess, and says where to go: that stack, or --tolerant"
)
MISSING: Final = inconclusive("what is not there cannot be checked, and what is there agrees")
ANEW: Final = "; the spec names the graph of that step, and all is made anew with it"
STATED: Final = ", under the corpus and the tokenizer that it states"
FORGERS: Final = "tallystick.tally.attacks.forgers"
RECORDS: Final = "research.attacks.records"
STATES: Final = "research.attacks.states"
TRAINING: Final = "research.attacks.training"
DATA: Final = "research.attacks.data"
GRAPHS: Final = "research.attacks.graphs"
LOOPS: Final = "research.attacks.loops"

# fmt: off
TABLE: Final = (
    Attack("honest-copy", FORGERS, "nothing; the run is copied", HONEST, claim=HONEST, is_honest=True),
    Attack("prover-auditor-split", TRAINING,
           "nothing; a process of its own trains the same spec, and only the run directory is left of it",
           HONEST, is_honest=True),
    Attack("smuggled-program", FORGERS, "Python files are put into the run directory; the audit must not run them",
           accepted("nothing in a run directory is ever executed, so the files do no harm"),
           accepted("nothing in a run directory is ever executed"), claim=accepted("the claim is the honest one"),
           is_honest=True),
    Attack("bad-seed", FORGERS, "the initial weights are those of another seed; every step after them is honest",
           accepted("an initial state of another seed looks like any other"), rejected("initial state")),
    Attack("gradient-noise", FORGERS, "one step in the middle takes a gradient with noise of 1 % of its norm",
           SMOOTH, REPLAY, WEIGHTS),
    Attack("weights-edited", FORGERS,
           "the final weights are edited after training; anchor, summaries, roots and claim are made anew",
           WITHIN_REACH, REPLAY_OF_EDIT, WEIGHTS),
    Attack("weights-edited-below-drift", STATES,
           "3e-6 of every weight's last move is taken back; anchor, summaries, roots and claim are made anew",
           WITHIN_REACH, STATE, BELOW_DRIFT),
    Attack("weights-edited-by-one-ulp", FORGERS,
           "one final weight is moved to the next float32; anchor, summaries, roots and claim are made anew",
           accepted("one unit in the last place is below everything a screen measures"), STATE, BELOW_DRIFT),
    Attack("sign-of-a-zero", STATES,
           "one zero of the optimizer's memory is made a negative zero at the end, and everything written anew",
           accepted("no number has changed"), STATE,
           accepted("limits compare numbers, and -0.0 is 0.0; the report says so"), reference="gpt2"),
    Attack("broken-seal", FORGERS, "one weight in an anchor file is changed by 1e-8; every record stays as it was",
           ANCHOR, claim=ANCHOR),
    Attack("record-inserted", FORGERS, "the line of one step is repeated", ROOT_AND_ORDER, claim=ROOT_AND_ORDER),
    Attack("record-inserted-resealed", FORGERS,
           "the record of one step is repeated; root, tiles and claim are made anew",
           ORDER),
    Attack("record-inserted-renumbered", RECORDS,
           "an invented step pushes later ones back, all under their right numbers and batches; resealed",
           IN_ORDER, VALUES, SKETCH),
    Attack("tail-repeated-resealed", RECORDS, "the last record is repeated; root, tiles and claim are made anew",
           ORDER),
    Attack("record-removed", FORGERS, "the line of one step is deleted", ROOT_AND_ORDER, claim=ROOT_AND_ORDER),
    Attack("record-removed-resealed", FORGERS, "the record of one step is deleted; root, tiles and claim are made anew",
           ORDER),
    Attack("record-removed-renumbered", RECORDS,
           "the values of one step are deleted, later ones move up under their right numbers and batches; resealed",
           IN_ORDER, VALUES, SKETCH),
    Attack("record-swapped", FORGERS, "the lines of two neighbouring steps are swapped",
           ROOT_AND_ORDER, claim=ROOT_AND_ORDER),
    Attack("record-swapped-resealed", FORGERS,
           "the records of two neighbouring steps are swapped; root, tiles and claim are made anew",
           ORDER),
    Attack("record-swapped-renumbered", RECORDS,
           "the values of two neighbouring steps are swapped under their right numbers and batches; resealed",
           IN_ORDER, VALUES, SKETCH),
    Attack("record-edited", FORGERS, "the loss of one step is lowered by a tenth in its record", ROOT, claim=ROOT),
    Attack("record-edited-resealed", FORGERS,
           "the loss of one step is lowered by a tenth; root, tiles and claim are made anew",
           accepted("a lower loss is a possible loss"), rejected("loss")),
    Attack("data-file-edited", DATA, "one token in the file of tokens is exchanged",
           rejected("data"), claim=rejected("data")),
    Attack("data-substituted", FORGERS, "the second half learns from other text than the declared batches",
           NO_TRACE, LOSS_AND_REPLAY, rejected("loss", "weights residual")),
    Attack("one-token-substituted", TRAINING, "one token of one batch is another than the declared one",
           NO_TRACE, REPLAY, WEIGHTS),
    Attack("batch-repeated", TRAINING, "the second half learns from the same batch in every step",
           NO_TRACE, LOSS_AND_REPLAY, rejected("loss", "weights residual")),
    Attack("data-recommitted", DATA, "the whole run is made anew on another text, to which it commits",
           accepted("it is an honest run on the data it names; only a party who knows the agreed data can object")),
    Attack("tokens-not-of-the-source", DATA,
           "the run is made anew on tokens that do not come from the source it commits to",
           accepted("a sampled audit checks the digest of the tokens and does not derive them from the source"),
           full=rejected("tokens of the source")),
    Attack("tokenizer-of-other-text", DATA,
           "the run is made again on its source, with byte pairs that were learned from another text",
           accepted("a sampled audit checks the digest of the tokenizer and does not train it again on the source"),
           full=rejected("tokenizer of the source"), reference="bpe"),
    Attack("corpus-shard-replaced", DATA,
           "the run on a corpus is made anew on other documents in the place of a whole shard",
           NO_SHARDS, CORPUS, reference="corpus"),
    Attack("corpus-documents-swapped", DATA,
           "the run on a corpus is made anew with two documents of a shard in the places of each other",
           NO_SHARDS, CORPUS, reference="corpus"),
    Attack("corpus-tokens-forged", DATA, "the run on a corpus is made anew with one token of a shard exchanged",
           NO_SHARDS, CORPUS, reference="corpus"),
    Attack("wrong-rate-recorded", TRAINING,
           "the second half is trained at a learning rate 1 % too high, as its records say",
           ORDER),
    Attack("wrong-rate", FORGERS,
           "the second half is trained at a learning rate 1 % too high; the records state the declared one",
           POSSIBLE, REPLAY, WEIGHTS),
    Attack("wrong-decay", TRAINING, "the second half is trained with ten times the declared weight decay",
           POSSIBLE, REPLAY, WEIGHTS),
    Attack("wrong-precision", TRAINING, "the second half is computed in bfloat16 and declared as float32",
           POSSIBLE, LOSS_AND_REPLAY, WEIGHTS),
    Attack("wrong-optimizer", TRAINING,
           "the second half follows the plain gradient; moments are kept as the declared optimizer would",
           POSSIBLE, REPLAY, WEIGHTS),
    Attack("wrong-schedule", TRAINING,
           "the second half is trained at the peak learning rate instead of the declared schedule",
           rejected("reach"), REPLAY, WEIGHTS),
    Attack("skipped-steps", TRAINING,
           "no step of the middle segment is computed: its weights go on along the update before it",
           accepted("weights move as far and as smoothly as they did before"), LOSS_AND_REPLAY, WEIGHTS),
    Attack("transcript-without-training", TRAINING,
           "nothing is computed: stolen final weights, a straight way to them, invented moments and losses",
           accepted("invented weights stay within reach and invented moments never fall"), LOSS_AND_REPLAY, WEIGHTS),
    Attack("infinitesimal-update", TRAINING,
           "the same invention under a declared learning rate of 1e-12, with which a replay moves nothing",
           rejected("reach"), STATE, rejected("weights update-floor")),
    Attack("runs-spliced", TRAINING,
           "from the middle on, the steps and anchors are those of a run from another seed; links are made anew",
           rejected("reach"), LOSS_AND_REPLAY, WEIGHTS),
    Attack("optimizer-reset", STATES, "all moments of the optimizer are set to zero before one step",
           rejected("second moment"), REPLAY, WEIGHTS),
    Attack("optimizer-reset-first-moment", STATES, "the first moments of the optimizer are set to zero before one step",
           accepted("first moments may change their sign at any time"), REPLAY, WEIGHTS),
    Attack("anchor-replaced", STATES,
           "the weights of a middle anchor are edited; its record, its summaries, roots and claim are made anew",
           accepted("only weights that turned around there are edited, so that both moves stay within reach"),
           REPLAY_OF_EDIT, WEIGHTS),
    Attack("anchor-swapped", RECORDS, "the file of one anchor replaces that of another", ANCHOR, claim=ANCHOR),
    Attack("anchor-swapped-resealed", RECORDS,
           "the file and the record of one anchor replace those of another; roots and claim are made anew",
           ANCHOR, claim=rejected("claim", "anchor")),
    Attack("environment-edited", RECORDS, "environment.json names another version of PyTorch",
           rejected("environment"), claim=rejected("environment")),
    Attack("environment-forged", TRAINING,
           "a learning rate 1 % too high hides behind another version of PyTorch in environment, header and claim",
           accepted("nothing is replayed"), OTHER_STACK, WEIGHTS),
    Attack("environment-cosmetics-forged", RECORDS,
           "the honest run names another version of Python in environment, header and claim",
           accepted("the version of Python decides no bit of the result, so no replay can tell")),
    Attack("nonce-ground", TRAINING,
           "one noisy step, and a claim ground until a nonce known beforehand samples past it",
           SMOOTH, REPLAY, WEIGHTS),
    Attack("hidden-batch", TRAINING,
           "an undeclared batch is learned between two recorded steps; all counters stay right",
           rejected("second moment"), LOSS_AND_REPLAY, WEIGHTS),
    Attack("hidden-batch-careful", TRAINING,
           "an undeclared batch moves the weights by a tenth of a step at most, past the optimizer's moments",
           accepted("moments are untouched and the weights stay within reach"), REPLAY, WEIGHTS),
    Attack("fraud-out-of-reach", TRAINING,
           "the spec declares no anchor between the first and the last state, and a step far from both is noisy",
           SMOOTH,
           inconclusive("the sampled steps lie further from the anchor than the window, and the report says so"),
           inconclusive("as in the exact audit"), full=REPLAY),
    Attack("bucket-forged", RECORDS,
           "the record of one anchor names a bucket digest that is not that of its weights; resealed",
           rejected("anchor summary")),
    Attack("summaries-omitted", RECORDS, "no step records the summaries that the spec asks for; resealed", ORDER),
    Attack("clock-forged", RECORDS, "the timeline states a hundred times the training time; resealed",
           accepted("times are the prover's statement and decide nothing; the report says so beside the cost ratio")),
    Attack("nan-planted", STATES, "one of the final weights is NaN; anchor, summaries, roots and claim are made anew",
           rejected("finite state")),
    Attack("transcript-empty", RECORDS, "the claim names a transcript without a single record", ORDER),
    Attack("spec-digest-missing", RECORDS, "the header does not name its spec", ROOT, claim=ROOT),
    Attack("graph-other-epsilon", GRAPHS, "the optimizer's ε is 1e-6 instead of 1e-8" + ANEW,
           POSSIBLE, OTHER_STEP, recipe=REPLAY),
    Attack("graph-other-decay", GRAPHS, "the second moment keeps 0.998 a step, not 0.999" + ANEW,
           rejected("second moment"), OTHER_STEP, recipe=REPLAY),
    Attack("graph-not-causal", GRAPHS, "attention looks ahead" + ANEW, POSSIBLE, OTHER_STEP, recipe=REPLAY),
    Attack("graph-skips-a-tensor", GRAPHS, "the update leaves one weight tensor as it was" + ANEW,
           POSSIBLE, OTHER_STEP, recipe=REPLAY),
    Attack("graph-hidden-constant", GRAPHS, "a gradient is shifted by a constant pattern" + ANEW,
           POSSIBLE, OTHER_STEP, recipe=REPLAY),
    Attack("graph-hidden-input", GRAPHS, "a gradient is shifted by an input that no batch declares" + ANEW,
           POSSIBLE, OTHER_STEP, recipe=REPLAY),
    Attack("graph-of-another-step", GRAPHS,
           "every step is that of the recipe; the spec names the graph of a step with another ε; resealed",
           accepted("no screen captures the recipe's step"), rejected("step graph of the recipe", "state"), OTHER_STEP,
           recipe=NOT_READ),
    Attack("graph-removed", GRAPHS, "the step graph that the spec names is deleted", MISSING, claim=MISSING),
    Attack("graph-exchanged", GRAPHS,
           "the graph of a step with another ε lies in the place of the one that the spec names",
           STEP_GRAPH, claim=STEP_GRAPH),
    Attack("graph-unknown-operator", GRAPHS, "an operator of the step graph is exchanged for one that no verifier runs",
           STEP_GRAPH, claim=STEP_GRAPH),
    Attack("graph-respelled", GRAPHS, "the step graph is the same in meaning, and its bytes hold one space more",
           STEP_GRAPH, claim=STEP_GRAPH),
    Attack("loop-batch-exchanged", LOOPS, "the file of one batch holds the batch of another step",
           NO_BATCH, rejected("batch"), claim=rejected("batch"), reference="loop"),
    Attack("loop-batch-withheld", LOOPS, "the file of one batch is deleted",
           NO_BATCH, inconclusive("the step cannot be taken again without its batch, and the report says so"),
           claim=inconclusive("the step cannot be taken again without its batch, and the report says so"),
           reference="loop"),
    Attack("loop-batch-renamed", LOOPS,
           "one record names a batch that differs in one token from the one learned; that batch is kept; resealed",
           NO_BATCH, LOSS_AND_REPLAY, WEIGHTS, reference="loop"),
    Attack("loop-rate-misstated", LOOPS, "one record states a learning rate 1 % above the one that was used; resealed",
           NO_STEP, REPLAY, WEIGHTS, reference="loop"),
    Attack("loop-rule-misstated", LOOPS,
           "the spec states ten times the weight decay that was used; summaries, roots and claim are made anew",
           NO_STEP, REPLAY, WEIGHTS, reference="loop"),
    Attack("loop-data-recommitted", LOOPS, "the whole run is made anew on other batches, which its records name",
           accepted("it is an honest run on the batches it names; no recipe says which data they should be"),
           reference="loop"),
    Attack("loop-graph-of-another-step", GRAPHS,
           "the spec names the graph of a step with another ε than the one that was taken; resealed",
           NO_STEP, STATE, WEIGHTS, reference="loop"),
    Attack("loop-graph-removed", GRAPHS, "the step graph that the spec names is deleted",
           MISSING, claim=MISSING, reference="loop"),
    Attack("loop-constant-exchanged", GRAPHS, "one number in the file of the graph's constants is another one",
           STEP_GRAPH, claim=STEP_GRAPH, reference="loop"),
    Attack("loop-constants-removed", GRAPHS, "the file of the graph's constants is deleted",
           MISSING, claim=MISSING, reference="loop"),
    Attack("loop-graph-hidden-constant", GRAPHS,
           "a constant pattern is added to the gradient of one weight tensor, in the graph as in the training",
           IS_THE_PROGRAM, reference="loop"),
    Attack("loop-graph-skips-a-tensor", GRAPHS,
           "the update leaves one weight tensor as it was, in the graph as in the training",
           IS_THE_PROGRAM, reference="loop"),
    Attack("loop-step-with-its-own-graph", GRAPHS,
           "nothing; one step names a graph of its own, which is that of the others with its nodes renumbered",
           accepted("it is the same program, with other numbers of its nodes"), reference="loop", is_honest=True),
    Attack("loop-step-of-another-optimizer", GRAPHS,
           "one step is taken with another ε, and its record names the graph of that step; resealed",
           NO_STEP, STEP_GRAPH, reference="loop"),
    Attack("loop-step-hidden-constant", GRAPHS,
           "one step adds a constant pattern to a finished gradient, and its record names its graph; resealed",
           NO_STEP, STEP_GRAPH, reference="loop"),
    Attack("loop-step-graph-exchanged", GRAPHS,
           "the graph of a step with another ε lies in the place of the one that a record names",
           NO_STEP, STEP_GRAPH, reference="loop"),
    Attack("loop-step-graph-removed", GRAPHS, "the graph that a record names is deleted",
           NO_STEP, MISSING, reference="loop"),
    Attack("loop-start-tuned", LOOPS,
           "the spec states a published checkpoint, and the run begins with weights that were trained further",
           NO_CHECKPOINT, rejected("first weights"), reference="checkpoint"),
    Attack("loop-start-moments", LOOPS,
           "the run begins with the checkpoint that its spec states, and with a chosen moment of one weight",
           NO_CHECKPOINT, MEMORY, reference="checkpoint"),
    Attack("loop-start-counters", LOOPS,
           "the run begins with the checkpoint that its spec states, and counts its steps from a thousand on",
           NO_CHECKPOINT, MEMORY, reference="checkpoint"),
    Attack("loop-start-stated", TRAINING, "nothing; the loop begins with the checkpoint that its spec states",
           HONEST, claim=HONEST, reference="checkpoint", is_honest=True),
    Attack("loop-step-gradient-negated", GRAPHS,
           "one step goes up the gradient of a weight, and its record names the graph of that step; resealed",
           NO_GRAPH, UNEXPLAINED, reference="loop"),
    Attack("loop-gradients-scaled-from-a-step", GRAPHS,
           "from one step on a gradient counts four times, and records name the graph of these steps; resealed",
           NO_GRAPH, UNEXPLAINED, reference="loop"),
    Attack("loop-step-loss-squared", GRAPHS,
           "one step records the square of its loss, and its record names a graph that does; resealed",
           NO_GRAPH, UNEXPLAINED, reference="loop"),
    Attack("loop-step-update-under-other-decay", GRAPHS,
           "one step states weight decay × 1.0000001, and names a graph that negates a weight after the update; "
           "resealed",
           NO_GRAPH, UNEXPLAINED, reference="loop"),
    Attack("loop-step-other-betas", GRAPHS,
           "one step states β₁ = 0.999, which makes its step larger; its graph is that of the spec; resealed",
           NO_GRAPH, inconclusive("the graph of the step has not the settings that its record states"),
           reference="loop"),
    Attack("loop-step-negative-rate", GRAPHS,
           "one step is taken with a negative learning rate, which its record states; resealed",
           NO_GRAPH, inconclusive("no rule of an optimizer takes a negative rate"), reference="loop"),
    Attack("loop-step-tripled-rate", GRAPHS,
           "one step is taken with three times the learning rate, which its record states; resealed",
           NO_GRAPH, STATED_RATE, reference="loop"),
    Attack("loop-schedule-before-record", LOOPS, "nothing; the schedule of the loop steps before the recorder",
           HONEST, reference="loop", is_honest=True),
    Attack("loop-clipping-undeclared", LOOPS,
           "nothing; the loop clips its gradients, and does not declare this to the recorder",
           HONEST, reference="loop", is_honest=True),
    Attack("loop-autocast-around", LOOPS,
           "nothing; the loop runs under autocast, and the loss that was captured does not",
           HONEST, reference="loop", is_honest=True),
    Attack("loop-decay-changed", LOOPS, "nothing; the loop takes its weight decay away in the middle",
           HONEST, reference="loop", is_honest=True),
    Attack("loop-dropout-as-it-comes", LOOPS, "nothing; the loop drops out as PyTorch's own generator says",
           HONEST, reference="dropout", is_honest=True),
    Attack("loop-dropout-state-replaced", LOOPS,
           "a middle anchor holds the state of a generator with another seed; its record, roots and claim are made "
           "anew",
           accepted("one state of a generator looks like another"), STATE, rejected("state exact"),
           reference="dropout"),
    Attack("loop-dropout-words-misstated", LOOPS,
           "one record says that the generator was moved on before its step, which it was not; resealed",
           NO_STEP, LOSS_AND_REPLAY, WEIGHTS, reference="dropout"),
    Attack("loop-dropout-masks-searched", LOOPS,
           "words of the generator are skipped before one step, until the masks suit; its record says so, and all is "
           "made anew",
           NO_STEP, accepted("the report says before how many steps the generator was moved"), reference="dropout"),
    Attack("loop-dropout-start-chosen", LOOPS,
           "the generator begins in a state that keeps every element and that no seed gives; all is made anew",
           NO_STEP, accepted("the report names the first state of the generator, which no new run has"),
           reference="dropout"),
    Attack("loop-graph-excused", LOOPS,
           "one record states a learning rate 1 % above the one that was used; the claim withdraws the step graph",
           NO_STEP, inconclusive("the claim says why its graph is not what the loop did, and no step is replayed"),
           reference="loop"),
    Attack("recipe-graph-excused", LOOPS, "the claim of a run by a recipe withdraws its step graph", KEPT_DIGEST),
    Attack("loop-end-withdrawn", LOOPS,
           "the final weights are edited after training, and the claim withdraws the graph of the last steps",
           NO_STEP, LOOSE, reference="loop"),
    Attack("loop-end-without-batch", LOOPS,
           "the final weights are edited after training, and the batch of the last step is deleted",
           NO_STEP, LOOSE, reference="loop"),
    Attack("rows-exchanged", DATA,
           "one step is taken on the row of another step, and its record names its own; all made anew",
           NO_ROWS, rejected("rows"), reference="rows"),
    Attack("rows-label-unmasked", DATA, "the run on rows is made anew with a label on a token of the user" + STATED,
           NO_ROWS, ROWS, reference="rows"),
    Attack("rows-in-another-order", DATA,
           "the run on rows is made anew with two rows in the places of each other" + STATED,
           NO_ROWS, ROWS, reference="rows"),
    Attack("rows-of-another-tokenizer", DATA,
           "the run on rows is made anew on rows of a tokenizer that spells otherwise" + STATED,
           NO_ROWS, ROWS, reference="rows"),
    Attack("rows-as-stated", TRAINING, "nothing; the loop is trained on the rows that its spec states",
           HONEST, claim=HONEST, reference="rows", is_honest=True),
    Attack("undetermined-moved", STATES,
           "weights that no replay determines are moved to the end of their reach, past the sketch; all made anew",
           PUSHED, STATE, AS_HONEST, reference="gpt2"),
    Attack("undetermined-moved-bf16", STATES, "the same in bfloat16, where more is undetermined",
           PUSHED, STATE, AS_HONEST, reference="gpt2-bf16"),
)
# fmt: on
ATTACKS: Final[dict[str, Attack]] = {attack.name: attack for attack in TABLE}


def find_attack(name: str) -> Attack:
    """The attack of this name; raises `UsageError` with the one that was meant if there is none."""
    if name not in ATTACKS:
        raise UsageError(f"no such attack {name}{suggestion(name, tuple(ATTACKS))}; `tally attack --list` lists all")
    return ATTACKS[name]
