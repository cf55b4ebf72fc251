"""Tensor programs as data: read, checked, sliced, bound and executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.graphs.admission import read_graph as read_graph
    from tallystick.graphs.batching import BatchSlice as BatchSlice
    from tallystick.graphs.batching import slice_batch as slice_batch
    from tallystick.graphs.binding import Binding as Binding
    from tallystick.graphs.binding import Coverage as Coverage
    from tallystick.graphs.binding import bind as bind
    from tallystick.graphs.check import check_graph as check_graph
    from tallystick.graphs.comparison import compare_graphs as compare_graphs
    from tallystick.graphs.encoding import graph_bytes as graph_bytes
    from tallystick.graphs.engine import Engine as Engine
    from tallystick.graphs.execution import execute as execute
    from tallystick.graphs.files import load_program as load_program
    from tallystick.graphs.files import save_program as save_program
    from tallystick.graphs.generation import generate_with_graph as generate_with_graph
    from tallystick.graphs.generation import sampler_given as sampler_given
    from tallystick.graphs.generation import token_output as token_output
    from tallystick.graphs.graph import Constant as Constant
    from tallystick.graphs.graph import Graph as Graph
    from tallystick.graphs.graph import GraphForm as GraphForm
    from tallystick.graphs.graph import Input as Input
    from tallystick.graphs.graph import Node as Node
    from tallystick.graphs.graph import Output as Output
    from tallystick.graphs.graph import Role as Role
    from tallystick.graphs.limits import GraphLimits as GraphLimits
    from tallystick.graphs.reference import Reference as Reference
    from tallystick.graphs.root import NodeProof as NodeProof
    from tallystick.graphs.root import check_node as check_node
    from tallystick.graphs.root import graph_root as graph_root
    from tallystick.graphs.root import prove_node as prove_node
    from tallystick.graphs.slicing import between as between
    from tallystick.graphs.slicing import subgraph as subgraph
    from tallystick.graphs.slicing import verification_slice as verification_slice
    from tallystick.graphs.template import Template as Template
    from tallystick.graphs.transforms.sampling import with_sampler as with_sampler
    from tallystick.graphs.transforms.teacher_forcing import to_teacher_forcing as to_teacher_forcing
    from tallystick.operators.balls.bound import bound as bound
    from tallystick.operators.registry import operator as operator
    from tallystick.sampling.stream import seed_words as seed_words

HOMES = {
    "BatchSlice": "tallystick.graphs.batching",
    "Binding": "tallystick.graphs.binding",
    "Constant": "tallystick.graphs.graph",
    "Coverage": "tallystick.graphs.binding",
    "Engine": "tallystick.graphs.engine",
    "Graph": "tallystick.graphs.graph",
    "GraphForm": "tallystick.graphs.graph",
    "GraphLimits": "tallystick.graphs.limits",
    "Input": "tallystick.graphs.graph",
    "Node": "tallystick.graphs.graph",
    "NodeProof": "tallystick.graphs.root",
    "Output": "tallystick.graphs.graph",
    "Reference": "tallystick.graphs.reference",
    "Role": "tallystick.graphs.graph",
    "Template": "tallystick.graphs.template",
    "between": "tallystick.graphs.slicing",
    "bind": "tallystick.graphs.binding",
    "bound": "tallystick.operators.balls.bound",
    "check_graph": "tallystick.graphs.check",
    "check_node": "tallystick.graphs.root",
    "compare_graphs": "tallystick.graphs.comparison",
    "execute": "tallystick.graphs.execution",
    "generate_with_graph": "tallystick.graphs.generation",
    "graph_bytes": "tallystick.graphs.encoding",
    "graph_root": "tallystick.graphs.root",
    "load_program": "tallystick.graphs.files",
    "operator": "tallystick.operators.registry",
    "prove_node": "tallystick.graphs.root",
    "read_graph": "tallystick.graphs.admission",
    "sampler_given": "tallystick.graphs.generation",
    "save_program": "tallystick.graphs.files",
    "seed_words": "tallystick.sampling.stream",
    "slice_batch": "tallystick.graphs.batching",
    "subgraph": "tallystick.graphs.slicing",
    "to_teacher_forcing": "tallystick.graphs.transforms.teacher_forcing",
    "token_output": "tallystick.graphs.generation",
    "verification_slice": "tallystick.graphs.slicing",
    "with_sampler": "tallystick.graphs.transforms.sampling",
}
__all__ = sorted(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES)
