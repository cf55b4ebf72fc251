"""Derived dtypes and shapes are PyTorch's own; what does not fit is refused; operations and bytes are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.tensors import DTYPES, dtype_name
from tallystick.programs.operators.definition import OPERATORS, REQUIRED, Parameter, operator
from tallystick.programs.operators.types import Types
from tests.programs.operators.examples import Bf16, Call, call, collected, mapped, specs, tensor_of

EXAMPLES = collected("EXAMPLES")
MALFORMED = collected("MALFORMED")
ATEN = [name for name in OPERATORS if name.startswith("aten.")]
TAKE_ANYTHING = {
    f"aten.{name}.default"
    for name in (
        *("alias", "clone", "contiguous", "detach", "detach_", "lift", "lift_fresh", "lift_fresh_copy"),
        *("resolve_conj", "resolve_neg", "ceil", "floor", "round", "trunc", "isfinite", "nan_to_num"),
    )
}
WITHOUT_META = {
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    "aten._native_batch_norm_legit_no_training.default",
    "aten.convolution_backward.default",
    "aten.native_batch_norm_backward.default",
}
"""What PyTorch's meta device derives for these is not what its kernels return."""


def derived(each: Call) -> list[TensorSpec | None]:
    return list(operator(each.operator).read(Types(), specs(each.arguments)))


def on_meta(each: Call) -> list[TensorSpec | None]:
    """What PyTorch derives on its meta device, or from the kernel where it cannot."""
    _, name, overload = each.operator.split(".")
    kernel = getattr(getattr(torch.ops.aten, name), overload)
    device = "cpu" if each.operator in WITHOUT_META else "meta"
    try:
        results = kernel(**arguments_of(each, kernel, device))
    except (NotImplementedError, RuntimeError):
        results = kernel(**arguments_of(each, kernel, "cpu"))
    found = results if isinstance(results, tuple | list) else () if results is None else (results,)
    return [None if x is None else TensorSpec(dtype_name(x.dtype), tuple(x.shape)) for x in found]


def arguments_of(each: Call, kernel: Any, device: str) -> dict[str, Any]:
    kinds = {parameter.name: parameter.kind for parameter in operator(each.operator).parameters}
    loaded = mapped(each.arguments, lambda tensor: torch_tensor(tensor, device))
    found = {
        name: DTYPES[value] if kinds[name].startswith("dtype") and value is not None else value
        for name, value in loaded.items()
    }
    placed = {argument.name for argument in kernel._schema.arguments} & {"device"}
    return found | dict.fromkeys(placed, device)


def torch_tensor(tensor: Tensor, device: str) -> torch.Tensor:
    held = torch.frombuffer(bytearray(tensor.data) or bytearray(8), dtype=DTYPES[tensor.dtype])
    return held[: int(np.prod(tensor.shape))].reshape(tensor.shape).to(device)


def test_every_operator_has_an_example() -> None:
    assert [name for name in OPERATORS if not EXAMPLES.get(name)] == []


def test_every_operator_has_something_to_refuse() -> None:
    for name in sorted(OPERATORS.keys() - TAKE_ANYTHING - MALFORMED.keys()):
        with pytest.raises(MalformedError):
            pytest.fail(f"{name} takes {derived(in_unknown_dtype(EXAMPLES[name][0]))}")


def in_unknown_dtype(each: Call) -> Call:
    """The call with its first operand in a dtype in which nothing is computed."""
    first = next(name for name, value in each.arguments.items() if isinstance(value, np.ndarray | Bf16))
    shape = tensor_of(each.arguments[first]).shape
    return Call(each.operator, {**each.arguments, first: np.zeros(shape, np.uint16)})


def test_every_example_is_of_an_operator() -> None:
    assert not {*EXAMPLES, *MALFORMED} - OPERATORS.keys()


@pytest.mark.parametrize("name", ATEN)
def test_dtypes_and_shapes_are_those_of_pytorch(name: str) -> None:
    for each in EXAMPLES.get(name, []):
        assert derived(each) == on_meta(each), str(each)


@pytest.mark.parametrize("name", MALFORMED)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    for each in MALFORMED[name]:
        with pytest.raises(MalformedError) as refusal:
            derived(each)
        assert len(str(refusal.value)) < 400, str(each)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ATEN)
def test_schemas_are_those_of_pytorch(name: str) -> None:
    _, packet, overload = name.split(".")
    theirs = {each.name: each for each in getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments}
    for ours in operator(name).parameters:
        assert ours.name in theirs
        assert (ours.default is REQUIRED) == (not theirs[ours.name].has_default_value()) or ours.kind.endswith("?")
    left = theirs.keys() - {ours.name for ours in operator(name).parameters}
    assert left <= {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}


# ---- anything else


WHOLE = st.one_of(
    st.integers(-9, 9), st.integers(-(2**53) + 1, 2**53 - 1), st.sampled_from([2**31, 2**53 - 1, -(2**53) + 1])
)
SCALARS = st.one_of(WHOLE, st.floats(), st.booleans())
DTYPE_NAMES = st.sampled_from(["F32", "BF16", "F16", "F64", "I64", "I32", "U8", "U64", "BOOL", "F8_E4M3"])
ATTRIBUTES = {
    "int": WHOLE,
    "float": st.floats(),
    "bool": st.booleans(),
    "Scalar": SCALARS,
    "str": st.sampled_from(["", "mean", "constant", "reflect", "circular", "replicate", "tanh", "none", "x" * 99]),
    "dtype": DTYPE_NAMES,
}
SPECS = st.builds(TensorSpec, DTYPE_NAMES, st.lists(st.sampled_from([0, 1, 2, 3, 4, 2**40]), max_size=5).map(tuple))


def garbage(parameter: Parameter) -> st.SearchStrategy[Any]:
    """Anything of the kind of `parameter`."""
    kind = parameter.kind
    if kind.endswith("?"):
        return st.one_of(st.none(), garbage(Parameter("", kind[:-1])))
    if kind.endswith("[]"):
        return st.lists(garbage(Parameter("", kind[:-2])), max_size=5).map(tuple)
    return SPECS if kind == "Tensor" else ATTRIBUTES[kind]


@pytest.mark.parametrize("name", OPERATORS)
def test_garbage_is_refused_or_read_and_nothing_else(name: str) -> None:
    check_garbage(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_much_garbage_is_refused_or_read_and_nothing_else(name: str) -> None:
    check_garbage(name, 300)


def check_garbage(name: str, draws: int) -> None:
    described = operator(name)
    strategy = st.fixed_dictionaries({each.name: garbage(each) for each in described.parameters})
    examples = [specs(each.arguments) for each in EXAMPLES.get(name, [])]
    near = st.sampled_from(examples).flatmap(
        lambda example: st.sampled_from(described.parameters).flatmap(
            lambda changed: garbage(changed).map(lambda value: example | {changed.name: value})
        )
    )

    @settings(max_examples=draws, deadline=None)
    @given(st.one_of(strategy, near) if examples and described.parameters else strategy)
    def check(arguments: dict[str, Any]) -> None:
        for parameter in described.parameters:
            if not parameter.is_operand:
                parameter.check(arguments[parameter.name])
        try:
            results = described.read(Types(), arguments)
        except MalformedError:
            return
        assert all(result is None or result in arguments.values() or result.nbytes <= 1 << 40 for result in results)

    check()


# ---- counts


def counted(name: str, **arguments: Any) -> Types:
    types = Types()
    operator(name).read(types, specs(call(name, **arguments).arguments))
    return types


def test_a_matrix_product_is_two_operations_per_product() -> None:
    types = counted("aten.mm.default", self=np.zeros((3, 5), np.float32), mat2=np.zeros((5, 7), np.float32))
    assert types.flops == 2 * 3 * 5 * 7
    assert types.bytes_moved == 4 * (3 * 5 + 5 * 7 + 3 * 7)


def test_arithmetic_on_floats_counts_and_moves_do_not() -> None:
    x = np.zeros((4, 6), np.float32)
    assert counted("aten.add.Tensor", self=x, other=x).flops == 24
    assert counted("aten.add.Tensor", self=x.astype(np.int64), other=x.astype(np.int64)).flops == 0
    assert counted("aten.view.default", self=x, size=(24,)).flops == 0
    assert counted("aten.view.default", self=x, size=(24,)).bytes_moved == 0
    assert counted("aten.cat.default", tensors=(x, x)).bytes_moved == 2 * 2 * x.nbytes


def test_the_largest_intermediate_is_known_before_it_is_made() -> None:
    big = Types(bytes_max=1 << 20)
    x = TensorSpec("F32", (1 << 9, 1 << 9))
    assert big.add(x, TensorSpec("F32", (1, 1 << 9))) == x
    assert big.largest_bytes == 1 << 20
    with pytest.raises(MalformedError, match="takes 1073741824 bytes, more than 1048576"):
        big.add(TensorSpec("F32", (1 << 14, 1)), TensorSpec("F32", (1 << 14,)))


@pytest.mark.parametrize("sides", [(2**53 - 1,) * 3, (0, 2**53 - 1, 2**53 - 1), (-1,), (1,) * 65])
def test_shapes_that_no_array_has_are_refused(sides: tuple[int, ...]) -> None:
    with pytest.raises(MalformedError):
        Types().full(sides, 0, "F32")
    assert Types().full((0, 2**20), 0, "F32").size == 0
