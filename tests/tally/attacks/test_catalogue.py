from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from research.attacks.training import PROVER_NONCE, SAMPLES
from tallystick.audits.training import audit_training
from tallystick.core.errors import UsageError
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import ATTACKS, AUDITS, TABLE, Audit, Reference, find_attack
from tests.support.attacks.examine import Answer, examine, policy_of
from tests.support.attacks.reference import RECIPE, reference_policy, this_verifier_stack

Forge = Callable[[str], Path]
Ask = Callable[[str, Audit], Answer]

NEVER_MISSING = (
    "bad-seed",
    "gradient-noise",
    "weights-edited",
    "broken-seal",
    "record-inserted",
    "record-inserted-resealed",
    "record-removed",
    "record-removed-resealed",
    "record-swapped",
    "record-swapped-resealed",
    "record-edited",
    "record-edited-resealed",
    "data-substituted",
    "wrong-rate",
    "wrong-optimizer",
    "wrong-schedule",
    "skipped-steps",
    "runs-spliced",
    "optimizer-reset",
    "anchor-replaced",
    "transcript-without-training",
    "environment-forged",
    "nonce-ground",
    "hidden-batch",
    "prover-auditor-split",
    "graph-other-epsilon",
    "graph-not-causal",
    "graph-skips-a-tensor",
    "graph-hidden-constant",
    "graph-hidden-input",
    "graph-removed",
    "graph-exchanged",
    "loop-batch-exchanged",
    "loop-batch-withheld",
    "loop-batch-renamed",
    "loop-constant-exchanged",
    "loop-clipping-undeclared",
    "loop-graph-excused",
    "recipe-graph-excused",
    "undetermined-moved",
)
BY_RECIPE_TOO = ("honest-copy", "bad-seed", "gradient-noise", "weights-edited-by-one-ulp", "one-token-substituted")


def asked() -> list[tuple[str, Audit]]:
    """Every attack and audit; of those that say what an exact one says, only a few are asked."""
    pairs = [(name, audit) for name in ATTACKS for audit in AUDITS]
    stated = {
        "full": lambda name: ATTACKS[name].full,
        "recipe": lambda name: ATTACKS[name].recipe or name in BY_RECIPE_TOO,
    }
    return [(name, audit) for name, audit in pairs if audit not in stated or stated[audit](name)]


@pytest.mark.parametrize(("name", "audit"), asked())
def test_each_audit_says_what_is_expected_of_it(name: str, audit: Audit, ask: Ask) -> None:
    expected, answer = find_attack(name).expected(audit), ask(name, audit)
    assert answer.meets(expected), f"{expected}, but {answer}"


@pytest.mark.parametrize("audit", AUDITS)
def test_the_honest_twin_of_every_attack_is_accepted(audit: Audit, ask: Ask) -> None:
    assert ask("honest-copy", audit).outcome == "accepted"


def test_no_attack_of_the_list_is_missing() -> None:
    assert [name for name in NEVER_MISSING if name not in ATTACKS] == []


@pytest.mark.parametrize("name", [name for name in ATTACKS if not ATTACKS[name].is_honest])
def test_each_attack_is_seen_by_some_audit_or_says_why_not(name: str) -> None:
    attack = ATTACKS[name]
    for audit in AUDITS:
        expected = attack.expected(audit)
        assert expected.checks or expected.why, f"{name}: nothing is stated about {audit}"


def test_a_forger_leaves_the_honest_run_alone(reference: Path, forged: Forge) -> None:
    before = fingerprint(reference)
    for name in ("anchor-replaced", "gradient-noise", "runs-spliced"):
        forged(name)
    assert fingerprint(reference) == before


def test_a_forger_refuses_to_overwrite(reference: Path, forged: Forge) -> None:
    with pytest.raises(UsageError, match="not an empty directory"):
        find_attack("record-edited").forge(reference, forged("record-edited"))


def test_an_unknown_attack_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError, match=r"no such attack bad-sed: did you mean bad-seed\?"):
        find_attack("bad-sed")


def test_attacks_are_listed_without_pytorch_and_each_has_its_forger() -> None:
    listing = "import sys; from tallystick.tally.attacks.catalogue import ATTACKS; print(len(ATTACKS), *sys.modules)"
    listed = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert listed[0] == str(len(ATTACKS)) == str(len(TABLE))
    assert not {"torch", "numpy"} & set(listed)
    homes = {name: getattr(import_module(each.home), name.replace("-", "_"), None) for name, each in ATTACKS.items()}
    assert [name for name, forger in homes.items() if not callable(forger)] == []


def test_two_processes_reach_the_same_transcript_bit_for_bit(reference: Path, forged: Forge) -> None:
    ours, theirs = RunDirectory(reference), RunDirectory(forged("prover-auditor-split"))
    assert ours.claim().transcript == theirs.claim().transcript
    assert ours.claim().final_state == theirs.claim().final_state


def test_a_program_in_the_run_directory_is_never_executed(forged: Forge, ask: Ask) -> None:
    assert ask("smuggled-program", "full").outcome == "accepted"
    assert not (forged("smuggled-program") / "executed").exists()


def test_a_nonce_that_the_prover_knew_misses_the_fraud(forged: Forge) -> None:
    run, policy = RunDirectory(forged("nonce-ground")), reference_policy(SAMPLES)
    assert audit_training(run, policy, PROVER_NONCE, this_verifier_stack()).verdict.outcome == "accepted"


def test_a_nonce_that_the_prover_did_not_know_hits_it_sometimes(forged: Forge) -> None:
    run, policy = RunDirectory(forged("nonce-ground")), reference_policy(SAMPLES)
    stack = this_verifier_stack()
    outcomes = {audit_training(run, policy, bytes([n]) * 32, stack).verdict.outcome for n in range(1, 13)}
    assert "rejected" in outcomes


def test_an_exact_replay_of_the_honest_twin_of_a_forged_environment_is_accepted(ask: Ask) -> None:
    assert ask("environment-forged", "exact").outcome == "inconclusive"
    assert "different stack" in ask("environment-forged", "exact").detail
    assert ask("honest-copy", "exact").outcome == "accepted"


def test_policies_differ_in_what_their_names_say(reference: Path) -> None:
    kept = RunDirectory(reference).claim().identity
    assert policy_of("claim", reference_policy(), kept).claim == kept
    assert policy_of("full", reference_policy(), kept).full
    assert policy_of("recipe", reference_policy(), kept).replay == "recipe"
    assert policy_of("exact", reference_policy(), kept).replay == "graph"
    assert policy_of("tolerant", reference_policy(), kept).mode == "tolerant"


@pytest.mark.parametrize("kind", ["loop", "gpt2", "bpe"])
@pytest.mark.parametrize("audit", AUDITS)
def test_the_honest_run_that_other_attacks_start_from_is_accepted(
    kind: Reference, audit: Audit, honest: Callable[[Reference], Path]
) -> None:
    kept = RunDirectory(honest(kind)).claim().identity
    answer = examine(honest(kind), audit, reference_policy(), kept, bytes(32), this_verifier_stack())
    assert answer.outcome == "accepted"


def test_an_audit_of_a_recipe_replays_its_graph_and_one_that_is_told_so_the_recipe(reference: Path) -> None:
    run, policy, stack = RunDirectory(reference), reference_policy(1), this_verifier_stack()
    assert audit_training(run, policy, bytes(32), stack).replayed == f"graph {run.spec().graph}"
    by_recipe = audit_training(run, policy.model_copy(update={"replay": "recipe"}), bytes(32), stack)
    assert by_recipe.replayed == "the recipe"


@pytest.mark.parametrize("name", ["graph-other-epsilon", "graph-hidden-constant", "graph-exchanged"])
def test_an_attack_on_a_step_graph_refuses_a_run_without_one(name: str, one_thread: None, tmp_path: Path) -> None:
    from tallystick.formats.recipe import Recipe
    from tallystick.recording.training import Config, train

    source = tmp_path / "text.txt"
    source.write_text("one line of text, and another one\n" * 100)
    steps = RECIPE["training"] | {"steps": 2}
    recipe = Recipe.from_json(RECIPE | {"training": steps, "schedule": {}}, "recipe")
    train(Config(recipe, source), tmp_path / "plain")
    with pytest.raises(UsageError, match="no step graph to forge"):
        find_attack(name).forge(tmp_path / "plain", tmp_path / "out")


def test_a_loop_is_not_forged_as_a_recipe_is_nor_the_other_way_round(
    reference: Path, honest: Callable[[Reference], Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no recipe"):
        find_attack("wrong-rate").forge(honest("loop"), tmp_path / "a")
    with pytest.raises(UsageError, match="keeps none"):
        find_attack("loop-batch-exchanged").forge(reference, tmp_path / "b")


def fingerprint(run: Path) -> str:
    hasher = hashlib.sha256()
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        hasher.update(path.relative_to(run).as_posix().encode() + path.read_bytes())
    return hasher.hexdigest()
