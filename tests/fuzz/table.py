"""All targets: those of the modules in `targets/`."""

from __future__ import annotations

import importlib
import pkgutil

from tests.fuzz import targets
from tests.fuzz.target import TARGETS

for _module in pkgutil.iter_modules(targets.__path__):
    importlib.import_module(f"{targets.__name__}.{_module.name}")

__all__ = ["NOT_FOREIGN", "TARGETS"]

_OWN_TABLE = "a table of this package"
_OWN_TEXT = "text that this package has written itself"
NOT_FOREIGN = {
    "engine.namespaces.processes": "the tables of ids of this machine, which root has written",
    "engine.namespaces.syscalls": "what the kernel says of this process",
    "check.probe.inside": "the memory of the process that it runs in, inside of a container",
    "engine.room": "the kernel's own words of mounts, and what programs of this machine print of quotas",
    "catalog.drivers": _OWN_TABLE,
    "catalog.ledger": _OWN_TABLE,
    "definition.writer": _OWN_TEXT,
    "build.layer_build": "what bash says of a script that it has run: shown, in one line each",
    "report.terminal": "the lines that rich has just drawn",
    "engine.process": "the lines of any child, not taken apart further",
}
"""Modules that split or parse, but no foreign input, and the reason."""
