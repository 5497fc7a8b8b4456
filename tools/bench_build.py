"""Time builds beside the engine's own build of the flat definition: the same stack, one run each, both from scratch.

Run it as a user with a working engine; it takes about fifteen minutes, most of them for the engine. The last column is
the project's goal.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lumiimg.engine.engine import Engine, find_engine

LAYER = """\
kind = "layer"
summary = "A layer of the benchmark"
source = "the benchmark"
date = 2026-11-21
files = [{files}]
"""
_POLL_S = 0.1


class Cost(NamedTuple):
    """Resources used by a command."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    """Peak usage of its file system, less the usage before."""


class Bench:
    """One folder with its own cache."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.layers = folder / "layers"
        self.env = os.environ | {"LUMIIMG_CACHE": str(folder / "cache")}

    def layer(self, name: str, script: str, *files: Path) -> None:
        folder = self.layers / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
        (folder / "layer.toml").write_text(LAYER.format(files=", ".join(f'"{file.name}"' for file in files)))
        (folder / "post.sh").write_text(script)

    def lumiimg(self, output: str, *words: str) -> Cost:
        argv = [sys.executable, "-m", "lumiimg", "build", "--site", "generic", "--layers", str(self.layers), *words]
        return cost([*argv, "-o", output, "--quiet"], self.folder, self.env)

    def plain(self, output: str, *words: str) -> Cost:
        """Time the engine's own build of the same stack from one definition."""
        definitions = self.folder / f"{output}.defs"
        argv = [sys.executable, "-m", "lumiimg", "build", "--site", "generic", "--layers", str(self.layers), *words]
        subprocess.run([*argv, "--definitions", str(definitions), "--quiet"], env=self.env, check=True)
        env = os.environ | {f"{self.engine.prefix}_TMPDIR": str(self.folder), "TMPDIR": str(self.folder)}
        fakeroot = ["--fakeroot"] if os.geteuid() else []
        return cost(
            [str(self.engine.path), "build", *fakeroot, "--force", str(self.folder / output), "flat.def"],
            definitions,
            env,
        )


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    engine = find_engine(os.environ)
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-", dir=os.environ.get("LUMIIMG_CACHE")) as name:
        bench = Bench(engine, Path(name))
        print(f"{'what':<44}{'lumiimg':>12}{engine.name.partition(' ')[0]:>12}{'ratio':>8}  wanted")
        builds(bench)


def builds(bench: Bench) -> None:
    """Time the demo stack with a layer that changes."""
    bench.layer("changing", "echo one >/opt/changing\n")
    words = ["--recipe", "demo", "--add", "changing"]
    peer = bench.plain("plain.sif", *words)
    ours = bench.lumiimg("image.sif", *words)
    row("from nothing", ours.seconds, peer.seconds, "<= 1")
    row("    CPU", ours.cpu_s, peer.cpu_s, "")
    row("    most on disk", ours.peak_bytes / 2**20, peer.peak_bytes / 2**20, "<= 1", "MiB")
    again = bench.lumiimg("image.sif", *words)
    row("the same again", again.seconds, peer.seconds, "< 1 s")
    bench.layer("changing", "echo two >/opt/changing\n")
    peer = bench.plain("plain-changed.sif", *words)
    ours = bench.lumiimg("changed.sif", *words)
    row("the top layer changed", ours.seconds, peer.seconds, "<= 0.1")
    changed, plain = ((bench.folder / name).stat().st_size / 2**20 for name in ("changed.sif", "plain-changed.sif"))
    row("size of the image", changed, plain, "<= 1.05", "MiB")


def row(what: str, ours: float, peer: float, wanted: str, unit: str = "s") -> None:
    print(f"{what:<44}{f'{ours:.2f} {unit}':>12}{f'{peer:.2f} {unit}':>12}{ours / peer:>8.3f}  {wanted}", flush=True)


def cost(argv: list[str], folder: Path, env: Mapping[str, str]) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with watched(folder) as peak:
        done = subprocess.run(argv, env=env, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: {done.stderr[-2000:]}")
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, max(peak))


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Record by how much the used space of a folder's file system grows."""
    folder.mkdir(parents=True, exist_ok=True)
    used = shutil.disk_usage(folder).used
    peak = [0]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_POLL_S):
            peak.append(shutil.disk_usage(folder).used - used)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
