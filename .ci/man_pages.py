"""A hook of the build: a wheel has the manual pages where they have been written, as `make dist` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface's
        if Path(self.root, "docs", "man").is_dir():
            # where `man` looks for what is in the bin folder beside it, of a virtual environment too
            build_data["shared_data"]["docs/man"] = "share/man/man1"
