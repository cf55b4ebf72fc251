"""Tensor programs as data: read, checked, sliced, bound and executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.graphs.admission import read_graph as read_graph
    from tallystick.graphs.batching import BatchSlice as BatchSlice, slice_batch as slice_batch
    from tallystick.graphs.binding import Binding as Binding, Coverage as Coverage, bind as bind
    from tallystick.graphs.check import check_graph as check_graph
    from tallystick.graphs.comparison import compare_graphs as compare_graphs
    from tallystick.graphs.encoding import graph_bytes as graph_bytes
    from tallystick.graphs.engine import Engine as Engine
    from tallystick.graphs.execution import execute as execute
    from tallystick.graphs.files import load_program as load_program, save_program as save_program
    from tallystick.graphs.generation import (
        generate_with_graph as generate_with_graph,
        sampler_given as sampler_given,
        token_output as token_output,
    )
    from tallystick.graphs.graph import (
        Constant as Constant,
        Graph as Graph,
        GraphForm as GraphForm,
        Input as Input,
        Node as Node,
        Output as Output,
        Role as Role,
    )
    from tallystick.graphs.limits import GraphLimits as GraphLimits
    from tallystick.graphs.reference import Reference as Reference
    from tallystick.graphs.root import (
        NodeProof as NodeProof,
        check_node as check_node,
        graph_root as graph_root,
        prove_node as prove_node,
    )
    from tallystick.graphs.slicing import (
        between as between,
        subgraph as subgraph,
        verification_slice as verification_slice,
    )
    from tallystick.graphs.template import Template as Template
    from tallystick.graphs.transforms.sampling import with_sampler as with_sampler
    from tallystick.graphs.transforms.teacher_forcing import to_teacher_forcing as to_teacher_forcing
    from tallystick.operators.balls.bound import bound as bound
    from tallystick.operators.registry import operator as operator
    from tallystick.sampling.stream import seed_words as seed_words

HOMES = {
    "tallystick.graphs.admission": "read_graph",
    "tallystick.graphs.batching": "BatchSlice slice_batch",
    "tallystick.graphs.binding": "Binding Coverage bind",
    "tallystick.graphs.check": "check_graph",
    "tallystick.graphs.comparison": "compare_graphs",
    "tallystick.graphs.encoding": "graph_bytes",
    "tallystick.graphs.engine": "Engine",
    "tallystick.graphs.execution": "execute",
    "tallystick.graphs.files": "load_program save_program",
    "tallystick.graphs.generation": "generate_with_graph sampler_given token_output",
    "tallystick.graphs.graph": "Constant Graph GraphForm Input Node Output Role",
    "tallystick.graphs.limits": "GraphLimits",
    "tallystick.graphs.reference": "Reference",
    "tallystick.graphs.root": "NodeProof check_node graph_root prove_node",
    "tallystick.graphs.slicing": "between subgraph verification_slice",
    "tallystick.graphs.template": "Template",
    "tallystick.graphs.transforms.sampling": "with_sampler",
    "tallystick.graphs.transforms.teacher_forcing": "to_teacher_forcing",
    "tallystick.operators.balls.bound": "bound",
    "tallystick.operators.registry": "operator",
    "tallystick.sampling.stream": "seed_words",
}
__all__, __getattr__, __dir__ = lazy(__name__, HOMES)
