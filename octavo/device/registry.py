"""Which devices there are, best first. A device is one file with a `find(index) -> Device | None`, and one row here.

index: of several of a kind, as ranks take one each.
"""

from __future__ import annotations

from octavo.base.errors import ConfigError
from octavo.base.naming import unknown_name
from octavo.base.plugins import extend
from octavo.base.registry import Registry
from octavo.device.base import Device


def devices() -> Registry:
    """Return the registry of devices, with those of other packages (entry points `octavo.devices`)."""
    registry = Registry("device", {"cuda": "octavo.device.cuda:find", "cpu": "octavo.device.cpu:find"})
    extend(registry, "octavo.devices")
    return registry


def detect(kind: str = "auto", index: int = 0) -> Device:
    """Return the device of this kind, or of the first that this machine has; raises ConfigError if there is none."""
    registry = devices()
    if kind not in ("auto", *registry):
        raise ConfigError(unknown_name("device", kind, registry), field="device")
    hosts_last = sorted(registry, key=lambda name: name == "cpu")
    for name in hosts_last if kind == "auto" else (kind,):
        device: Device | None = registry.load(name)(index)
        if device is not None:
            return device
    raise ConfigError(f"this machine has no {kind} device", field="device")
