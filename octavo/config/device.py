"""Where the model runs, and how its steps are launched."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.fields import check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The device."""

    device: str = option("auto", "kind of device, cuda or cpu for example; auto takes the first that the machine has")
    enforce_eager: bool = option(
        False, "launch every kernel of every step, instead of replaying recorded steps as graphs"
    )

    def __post_init__(self) -> None:
        check_options(self)
