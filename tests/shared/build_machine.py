"""A machine as a value, without a look at this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumiimg.build.capabilities import BuildMachine, CapabilityTrial

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine


def build_machine(engine: Engine, *, maps_ids: bool = True, mksquashfs: str = "4.6", **more: Any) -> BuildMachine:
    """Return one with this engine and this mksquashfs, and no other program."""
    trials = (CapabilityTrial("mksquashfs", works=True, said=mksquashfs),)
    return BuildMachine(engine, maps_ids, True, True, None, None, None, None, trials, **more)
