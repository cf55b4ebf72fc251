"""The environment of this process, and the devices of this machine as a cluster."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Final, Literal

import torch

from tallystick.formats.cluster import Cluster, Device, Link, capacity_of
from tallystick.formats.spec import Environment

# Describes the environment of this process, as far as it can be determined.

SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "PYTORCH_CUDA_ALLOC_CONF",
)
MATH_LIBRARY: Final = re.compile(r"(Intel\(R\)|OpenMP|LAPACK|CPU capability|CuDNN|Magma)")


def describe_environment(device: Literal["cpu", "cuda"]) -> Environment:
    """The stack of this process on `device`, with the number of threads; it names no host, person or path."""
    built = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    return Environment(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cpu=processor_name(),
        capability=torch.backends.cpu.get_cpu_capability(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        device=device,
        cuda=str(torch.version.cuda or "none"),
        cudnn=str(torch.backends.cudnn.version() or "none"),  # type: ignore[no-untyped-call]
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        math_libraries=tuple(line for line in built if MATH_LIBRARY.match(line)),
        variables={name: os.environ.get(name, "") for name in SWITCHES} | switches_now(),
        packages=dict(_packages()),
    )


def processor_name() -> str:
    """The model name of the processor, because math libraries choose their kernels by it."""
    information = Path("/proc/cpuinfo")
    if not information.is_file():
        return platform.processor() or "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", information.read_text(errors="replace"), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or "unknown"


def switches_now() -> dict[str, str]:
    """The switches of PyTorch that decide the bits of a result, and that a program can turn while it runs."""
    return {
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": str(torch.backends.mkldnn.enabled).lower(),  # type: ignore[attr-defined,unused-ignore]
    }


@cache
def _packages() -> tuple[tuple[str, str], ...]:
    """What is installed, by name in lower case. Read once: what a process has imported stays, whatever is installed."""
    installed = (dist.metadata for dist in importlib.metadata.distributions())  # parsed anew at every access
    named = sorted((fields["Name"], fields["Version"]) for fields in installed)
    return tuple({name.lower(): version for name, version in named if name}.items())


# The devices of this machine as a cluster. Nothing names the machine: its host is called `host`.

HOST: Final = "host"


def this_machine() -> Cluster:
    """The host with its memory, its processor, and the GPUs that PyTorch sees; peaks of those that are known."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    host = Device(name=HOST, kind="host", memory=memory)
    processor = Device(name=f"{HOST}/cpu", kind="cpu", model=processor_name(), memory=memory, host=HOST)
    gpus = [_gpu(index) for index in range(torch.cuda.device_count())]
    links = [Link(ends=(HOST, device.name)) for device in (processor, *gpus)]
    return Cluster.of([host, processor, *gpus], links)


def _gpu(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    known = capacity_of(properties.name)
    return Device(
        name=f"{HOST}/gpu{index}",
        kind="gpu",
        model=properties.name,
        memory=properties.total_memory,
        bandwidth=None if known is None else known.bandwidth,
        peak={} if known is None else dict(known.peak),
        host=HOST,
    )
