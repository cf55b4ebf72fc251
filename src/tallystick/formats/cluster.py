"""The devices of a cluster and the links between them, with what makers state about accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tallystick.core.documents import Document, Label, Positive

# What makers state about accelerators: the most dense operations per second by dtype, and the memory's bandwidth.
#
# The figures are those of the fastest variant, so that they are an upper bound for the others. Tensors in F32 may be
# multiplied as TF32, which is therefore the bound for F32. Sources: the data sheets "NVIDIA A100 Tensor Core GPU"
# (2021), "NVIDIA H100 Tensor Core GPU" (2023) and "NVIDIA H200 Tensor Core GPU" (2024), without sparsity.

TERA: Final = 10**12
HOPPER: Final = {"BF16": 990 * TERA, "F16": 990 * TERA, "F32": 495 * TERA, "F64": 67 * TERA}


class Capacity(NamedTuple):
    """The most operations per second by dtype, and bytes per second of the memory."""

    peak: Mapping[str, int]
    bandwidth: int


CAPACITIES: Final = {
    "A100": Capacity({"BF16": 312 * TERA, "F16": 312 * TERA, "F32": 156 * TERA, "F64": 19_500 * 10**9}, 2_039 * 10**9),
    "H100": Capacity(HOPPER, 3_940 * 10**9),
    "H200": Capacity(HOPPER, 4_800 * 10**9),
}


def capacity_of(model: str) -> Capacity | None:
    """What is stated about an accelerator whose name holds that of a known model; None if it is not known."""
    words = model.replace("-", " ").upper().split()
    return next((capacity for name, capacity in CAPACITIES.items() if name in words), None)


# The devices of a cluster and the links between them: a statement, by which traces name where something ran.

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@\-]{0,127}$"
DeviceName = Annotated[str, Field(pattern=NAME)]
DeviceKind = Literal["cpu", "gpu", "host", "other", "switch", "tpu"]
DtypeName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,15}$")]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Device(Document):
    """One piece of hardware; what nobody knows about it is left out.

    `memory` is in bytes, `bandwidth` that of the memory in bytes per second, `peak` the most operations per second by
    dtype, `host` the device of kind `host` in which it sits.
    """

    name: DeviceName
    kind: DeviceKind
    model: Label | None = None
    memory: Positive | None = None
    bandwidth: Positive | None = None
    peak: dict[DtypeName, Positive] = {}
    host: DeviceName | None = None


class Link(Document):
    """Two devices that reach each other directly: bytes per second in each direction, seconds from one to the other."""

    ends: tuple[DeviceName, DeviceName]
    bandwidth: Positive | None = None
    latency: Seconds | None = None


class Cluster(Document):
    """Devices by ascending name, and links by ascending ends; each name and each pair of ends once."""

    digest_noun: ClassVar[str] = "cluster"

    cluster: Literal["devices"] = "devices"
    version: Literal[1] = 1
    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=1 << 20)]
    links: Annotated[tuple[Link, ...], Field(max_length=1 << 20)] = ()

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        for what, names in (
            ("devices", [(device.name,) for device in self.devices]),
            ("links", [link.ends for link in self.links]),
        ):
            for before, after in pairwise(names):
                if before >= after:
                    raise ValueError(f"{what}: {' to '.join(after)} stands twice, or not in ascending order")
        for device in self.devices:
            if device.host is not None and self.by_name.get(device.host, device).kind != "host":
                raise ValueError(f"{device.name} sits in {device.host}, which is no device of kind host")
        for link in self.links:
            if link.ends[0] >= link.ends[1]:
                raise ValueError(f"a link from {link.ends[0]} to {link.ends[1]}: its ends do not ascend")
            if unknown := [end for end in link.ends if end not in self.by_name]:
                raise ValueError(f"a link to {min(unknown)}, which is no device of this cluster")
        return self

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """The devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def _links_by_end(self) -> dict[str, list[Link]]:
        links: dict[str, list[Link]] = {}
        for link in self.links:
            for end in link.ends:
                links.setdefault(end, []).append(link)
        return links

    def links_of(self, name: str) -> list[Link]:
        """The links that end at a device."""
        return self._links_by_end.get(name, [])

    @classmethod
    def of(cls, devices: list[Device], links: list[Link]) -> Self:
        """A cluster of devices and links in any order; raises `ValueError` where one stands twice."""
        return cls(
            devices=tuple(sorted(devices, key=lambda device: device.name)),
            links=tuple(sorted(links, key=lambda link: link.ends)),
        )
