"""One row, as a user asks for it: `lumiimg lock`, or `lumiimg build`, with stand-ins for what is not asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.fetch.mirrors import PYPI, apt_mirror
from tools.rehearsal.rows import lock_of

if TYPE_CHECKING:
    from lumiimg.resolve.plan import Plan
    from tools.rehearsal.archives import Archives

_LIMIT_S = 1800

_INDEXES = ("download.pytorch.org", "wheels.vllm.ai", "repo.amd.com", "stable.repo.amd.com")
"""Of wheels that stand-ins are made of."""


@dataclass(frozen=True, slots=True)
class Program:
    """lumiimg, with where everything is."""

    address: str
    """Of the server of stand-ins."""
    index: str
    """The address of the package index: else each run of the program asks pip for it, a second of a processor."""
    folder: Path
    archives: Archives
    cache: Path | None = None
    """None: the user's own."""
    layers: tuple[Path, ...] = ()
    """Folders of layers that are searched first."""

    def lock(self, plan: Plan, name: str) -> str:
        """Lock a plan; return the obstacle, or nothing."""
        target = self.folder / f"{name}.lock"
        target.unlink(missing_ok=True)
        return self._run(["lock", *self._words(plan), "-o", str(target), "--quiet"])

    def build(self, plan: Plan, name: str, more: Sequence[str]) -> str:
        """Build a plan, with more words; return the obstacle, or nothing. The image does not stay."""
        target = self.folder / f"{name}.sif"
        log = target.with_name(f"{target.name}.log")
        how = ["-o", str(target), "--force", "--quiet"]
        against = self._run(["build", *self._words(plan), *more, *how])
        target.unlink(missing_ok=True)
        if against and log.exists() and log.name not in against:
            against = f"{against} ({log})"
        return against

    def _words(self, plan: Plan) -> list[str]:
        words = ["--base", plan.base.name, "--site", "generic"]
        words += ["--mirror", f"docker.io={self.address}", "--mirror", f"{PYPI}={self.index}"]
        for host in _INDEXES:
            words += ["--mirror", f"https://{host}={self.address}/whl"]
        if debian := apt_mirror("debian"):
            words += ["--mirror", f"debian={debian}"]
        words += [word for folder in self.layers for word in ("--layers", str(folder))]
        words += [word for asked in plan.asked.add for word in ("--add", asked)]
        for layer in lock_of(plan).layers:
            for source in layer.sources:
                words += ["--source", f"{source.name}={self.archives.of(layer, source)}"]
        return words

    def _run(self, words: list[str]) -> str:
        path = f"{Path(__file__).parent}/standin/bin:{os.environ['PATH']}"
        environment = os.environ | {"COLUMNS": "10000", "PATH": path}
        environment |= {"LUMIIMG_CACHE": str(self.cache)} if self.cache else {}
        argv = [sys.executable, "-m", "lumiimg", *words]
        try:
            done = subprocess.run(
                argv, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return f"{words[0]} did not end within {_LIMIT_S} s"
        message = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in message if line.startswith("lumiimg: ")] or message[-1:]
        return "" if done.returncode == 0 else " ".join(errors)[:400] or f"status {done.returncode}"
