"""Tensor programs as data: read, checked, sliced, inspected, bound and executed."""

from tallystick.graphs.batching import BatchSlice, slice_batch
from tallystick.graphs.binding import Binding, Coverage, bind
from tallystick.graphs.check import check_graph
from tallystick.graphs.diff import Change, Diff, diff
from tallystick.graphs.door import check_constants, read_graph
from tallystick.graphs.drawing import draw_dot, draw_svg
from tallystick.graphs.encoding import graph_bytes
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.execute import execute
from tallystick.graphs.files import load_program, save_program
from tallystick.graphs.graph import Constant, Form, Graph, Input, Node, Operand, Output, Ref, Role, refs_of, result_ref
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.limits import Limits
from tallystick.graphs.reference import Reference
from tallystick.graphs.root import NodeProof, check_node, graph_root, prove_node
from tallystick.graphs.slicing import ancestors, between, descendants, subgraph, verification_slice
from tallystick.graphs.template import Template

__all__ = [
    "Arguments",
    "BatchSlice",
    "Binding",
    "Change",
    "Constant",
    "Coverage",
    "Diff",
    "Engine",
    "Form",
    "Graph",
    "Input",
    "Inspection",
    "Limits",
    "Node",
    "NodeProof",
    "Operand",
    "Output",
    "Ref",
    "Reference",
    "Role",
    "Template",
    "ancestors",
    "between",
    "bind",
    "check_constants",
    "check_graph",
    "check_node",
    "descendants",
    "diff",
    "draw_dot",
    "draw_svg",
    "execute",
    "graph_bytes",
    "graph_root",
    "load_program",
    "prove_node",
    "read_graph",
    "refs_of",
    "result_ref",
    "save_program",
    "slice_batch",
    "subgraph",
    "verification_slice",
]
