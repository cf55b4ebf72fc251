"""The devices of this machine as a cluster. Nothing names the machine: its host is called `host`."""

from __future__ import annotations

import os
from typing import Final

import torch

from tallystick.frameworks.torch.environment import processor_name
from tallystick.traces.cluster import Cluster, Device, Link
from tallystick.traces.datasheets import capacity_of

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
