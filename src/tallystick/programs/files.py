"""A program on disk: `<name>.json` is the graph; `<name>.safetensors` its constants, absent if there are none.

`<name>.modules.json` names the modules that its nodes came from, for people (`programs.modules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tallystick.core.errors import MalformedError
from tallystick.core.files import file_size, read_document, write_atomically
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensors import Tensor
from tallystick.programs.admission import DEFAULT, check_constants, read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Graph, GraphLimits
from tallystick.programs.modules import ModulePaths, save_modules


def save_program(
    path: Path | str, graph: Graph, constants: Mapping[str, Tensor], modules: ModulePaths | None = None
) -> Path:
    """Write `graph` to `path` and its constants beside it; returns the path of the graph, which ends in `.json`.

    `constants` may hold more than the graph needs, and so may `modules`, the module paths of its nodes.

    Raises:
        MalformedError: a constant is missing or has another digest.
        UnavailableError: a file cannot be written.
    """
    check_constants(graph.constants, constants)
    target = _graph_path(path)
    if graph.constants:
        write_state(constants_path(target), {each.name: constants[each.name] for each in graph.constants})
    else:
        constants_path(target).unlink(missing_ok=True)
    write_atomically(target, graph_bytes(graph))
    save_modules(target, graph, modules or {})
    return target


def load_program(path: Path | str, limits: GraphLimits = DEFAULT) -> tuple[Graph, dict[str, Tensor]]:
    """The graph and its constants; everything is checked.

    Raises:
        MalformedError: the graph is invalid, or a constant is missing or has another digest.
        UnavailableError: there is no such file.
    """
    target = _graph_path(path)
    graph = load_graph(target, limits)
    return graph, load_constants(target, graph)


def load_constants(path: Path, graph: Graph) -> dict[str, Tensor]:
    """The constants of the graph at `path`; raises what `load_program` raises."""
    if not graph.constants:
        return {}
    with StateFile(constants_path(path)) as file:
        wanted = [each.name for each in graph.constants if each.name in file.specs]
        tensors = {name: file.tensor(name).copy() for name in wanted}
    check_constants(graph.constants, tensors)
    return tensors


def load_graph(path: Path, limits: GraphLimits = DEFAULT) -> Graph:
    """The graph at `path`, without its constants; errors name the file. Raises what `load_program` raises."""
    data = read_graph_file(path, limits)
    try:
        return read_graph(data, limits)
    except MalformedError as error:
        raise MalformedError(f"{path.name}: {error}") from None


def constants_path(path: Path) -> Path:
    """The path of the constants of the graph at `path`."""
    return path.with_suffix(".safetensors")


def read_graph_file(path: Path, limits: GraphLimits = DEFAULT) -> bytes:
    """The bytes of a graph file; raises `UnavailableError` if there is none, `MalformedError` if it is too large."""
    if file_size(path) > limits.document_bytes:
        raise MalformedError(f"{path.name}: more than the {limits.document_bytes} bytes allowed")
    return read_document(path, limits.document_bytes)


def _graph_path(path: Path | str) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
