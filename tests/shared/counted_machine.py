"""A machine that counts how often lumiimg tries what it can do."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import TYPE_CHECKING, Any

from lumiimg.build import capability_trials
from lumiimg.build.capabilities import BuildMachine, CapabilityTrial
from lumiimg.build.capability_cache import look_or_recall
from lumiimg.engine.engine import Engine, EngineKind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROGRAMS = ("mksquashfs", "unsquashfs", "squashfuse_ll", "proot", "newuidmap", "engine")


class CountedMachine:
    """A machine that counts how often it is tried."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.cache, self.tried = folder / "bin", folder / "cache", 0
        self.bin.mkdir()
        for name in PROGRAMS:
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)
        self.environment = {"PATH": str(self.bin)}
        self.engine = Engine(self.bin / "engine", EngineKind.APPTAINER, "1.4.5", frozenset())
        self.trials: tuple[CapabilityTrial, ...] = (CapabilityTrial("the environment", works=True, said="x"),)
        self.mounts = False
        self.proot_works = True
        monkeypatch.setattr(capability_trials, "look", self.look)

    @property
    def file(self) -> Path:
        return self.cache / "hosts" / f"{socket.gethostname()}.{self.engine.kind}.json"

    def look(self, engine: Engine, _environment: Any) -> BuildMachine:
        self.tried += 1
        programs = [self.bin / name if (self.bin / name).exists() else None for name in PROGRAMS[:4]]
        fuse = os.access("/dev/fuse", os.W_OK)
        values = (engine, True, self.mounts, fuse, *programs, self.trials)
        fields = [field.name for field in dataclasses.fields(BuildMachine)]
        made: Any = dict(zip(fields, values, strict=False))
        if not self.proot_works:
            made["proot"] = None
        return BuildMachine(**made)

    def ask(self) -> BuildMachine:
        return look_or_recall(self.engine, self.environment, self.cache)
