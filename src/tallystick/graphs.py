"""Tensor programs as data: read, checked, sliced, bound and executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.core.lazy import lazy

if TYPE_CHECKING:
    from tallystick.programs.admission import check_graph as check_graph, read_graph as read_graph
    from tallystick.programs.batching import BatchSlice as BatchSlice, slice_batch as slice_batch
    from tallystick.programs.decoding import (
        generate_with_graph as generate_with_graph,
        sampler_given as sampler_given,
        token_output as token_output,
    )
    from tallystick.programs.difference import compare_graphs as compare_graphs
    from tallystick.programs.encoding import (
        NodeProof as NodeProof,
        check_node as check_node,
        graph_bytes as graph_bytes,
        graph_root as graph_root,
        prove_node as prove_node,
    )
    from tallystick.programs.execution import Engine as Engine, Reference as Reference, execute as execute
    from tallystick.programs.files import load_program as load_program, save_program as save_program
    from tallystick.programs.graph import (
        Constant as Constant,
        Graph as Graph,
        GraphForm as GraphForm,
        GraphLimits as GraphLimits,
        Input as Input,
        Node as Node,
        Output as Output,
        Role as Role,
    )
    from tallystick.programs.operators.balls.bound import bound as bound
    from tallystick.programs.operators.definition import operator as operator
    from tallystick.programs.random_words import seed_words as seed_words
    from tallystick.programs.slicing import (
        Binding as Binding,
        Coverage as Coverage,
        between as between,
        bind as bind,
        subgraph as subgraph,
        verification_slice as verification_slice,
    )
    from tallystick.programs.templates import Template as Template
    from tallystick.programs.transforms.sampling import with_sampler as with_sampler
    from tallystick.programs.transforms.teacher_forcing import to_teacher_forcing as to_teacher_forcing

__getattr__, __dir__ = lazy(__name__)
