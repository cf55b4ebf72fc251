"""The step graph that a spec names: read, and compared with the one captured from the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.audits.claimed_graph import read_claimed_graph
from tallystick.audits.further_graphs import FurtherGraphs
from tallystick.audits.policy import Policy
from tallystick.errors import UnavailableError
from tallystick.judging.findings import Findings, require
from tallystick.workloads.names import AVERAGE
from tallystick.workloads.program import StepProgram, recipe_program
from tallystick.workloads.verifier_stack import VerifierStack

if TYPE_CHECKING:
    from tallystick.audits.checked_run import CheckedRun
    from tallystick.graphs.graph import Graph
    from tallystick.workloads.program import Further

CAPTURING = ("torch:", "transformers:")
"""The libraries whose version decides which graph a recipe gives."""


def open_step_graph(evidence: CheckedRun, policy: Policy) -> StepProgram | None:
    """The program of the step graph; `None` where the claim withdraws it, or the data was rejected.

    Raises `ProofError` for another graph than the spec names, `MalformedError` where no verifier would run that one.
    """
    spec = evidence.spec
    graph, constants = read_claimed_graph(evidence.run.graph_path, spec.graph, "the spec")
    if evidence.claim.no_graph is not None:
        return None
    if spec.average is not None or any(each.name.startswith(AVERAGE) for each in graph.outputs):
        from tallystick.audits.averages import check_averages  # few loops average their weights

        check_averages(graph, spec.average)
    if spec.recipe is None:
        return StepProgram(
            graph,
            constants,
            spec.optimizer or (),
            evidence.batch,
            evidence.rates,
            spec.seed,
            _further(evidence, graph, policy),
            grows=True,
        )
    if evidence.dataset is None or evidence.plan is None:
        return None
    return recipe_program(spec.recipe, graph, constants, evidence.dataset, evidence.plan)


def _further(evidence: CheckedRun, first: Graph, policy: Policy) -> Callable[[int], Further | None]:
    """The graphs that records name besides `first`."""
    graphs = FurtherGraphs(evidence, first, policy.graphs)
    return lambda index: graphs(index) if evidence.varies else None


def check_recipe_graph(evidence: CheckedRun, findings: Findings, stack: VerifierStack) -> None:
    """Capture the step of the recipe with the verifier's own libraries: naming both in the spec binds neither."""
    if stack.recipe_graph is None:
        raise UnavailableError("whether the step graph is that of the recipe: nothing here can capture it")
    captured = stack.recipe_graph(evidence.spec)
    others = [line for line in stack.environment.differences(evidence.environment) if line.startswith(CAPTURING)]
    if captured != evidence.spec.graph and others:
        raise UnavailableError(
            f"these libraries capture another graph from the recipe ({others[0]}); replay the recipe"
        )
    with findings.check("step graph of the recipe"):
        require(captured == evidence.spec.graph, f"the step of the recipe is the graph {captured}, not the one claimed")
