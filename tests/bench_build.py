"""Builds beside the engine's own build of the flat definition: the same stack, one run, both from nothing.

python -m tests.bench_build      as a user whose engine works; about ten minutes, most of them the engine's
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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.engine.engine import find_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYER = """\
kind = "layer"
summary = "A layer that changes"
status = "proved"
source = "the benchmark"
date = 2026-11-21
"""
_POLL_S = 0.2


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    """Most that its folder held, less what it held before."""


def main() -> None:
    engine = find_engine(os.environ)
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-", dir=os.environ.get("LUMIIMG_CACHE")) as name:
        folder = Path(name)
        layer = folder / "layers" / "changing"
        layer.mkdir(parents=True)
        (layer / "layer.toml").write_text(LAYER)
        (layer / "post.sh").write_text("echo one >/opt/changing\n")
        words = ["--recipe", "demo", "--layers", str(layer.parent), "--add", "changing"]
        env = os.environ | {"LUMIIMG_CACHE": str(folder / "cache")}
        lumiimg = [sys.executable, "-m", "lumiimg"]
        subprocess.run(
            [*lumiimg, "build", *words, "--definitions", str(folder / "defs"), "--quiet"], env=env, check=True
        )
        plain = [str(engine.path), "build", "--fakeroot", "--force", "plain.sif", "flat.def"]
        print(f"{'what':<46}{'lumiimg':>18}{'engine build':>18}{'ratio':>8}")
        peer_env = os.environ | {f"{engine.prefix}_TMPDIR": str(folder / "defs")}
        peer = cost(plain, folder / "defs", peer_env, cwd=folder / "defs")
        ours = cost([*lumiimg, "build", *words, "-o", "image.sif", "--quiet"], folder / "cache", env, cwd=folder)
        row("from nothing", ours, peer)
        row(
            "the same again",
            cost([*lumiimg, "build", *words, "-o", "image.sif", "--quiet"], folder, env, cwd=folder),
            peer,
        )
        for number, form in enumerate(("flat", "layered")):
            (layer / "post.sh").write_text(f"echo {number} >/opt/changing\n")
            output = ["-o", f"{form}.sif", "--format", form, "--quiet", "--force"]
            row(
                f"the top layer changed, {form}",
                cost([*lumiimg, "build", *words, *output], folder, env, cwd=folder),
                peer,
            )
        sizes = [(folder / "flat.sif").stat().st_size, (folder / "defs" / "plain.sif").stat().st_size]
        print(
            f"{'size of the image':<46}{sizes[0] / 2**20:>14.0f} MiB{sizes[1] / 2**20:>14.0f} MiB{sizes[0] / sizes[1]:>8.2f}"
        )
        start = [str(engine.path), "exec"]
        images = [best([*start, str(folder / name), "true"]) for name in ("flat.sif", "layered.sif")]
        there = best([*start, str(folder / "defs" / "plain.sif"), "true"])
        for form, seconds in zip(("flat", "layered"), images, strict=True):
            print(f"{f'start of the image, {form}':<46}{seconds:>16.2f} s{there:>16.2f} s{seconds / there:>8.2f}")


def row(what: str, ours: Cost, peer: Cost) -> None:
    print(f"{what:<46}{ours.seconds:>16.2f} s{peer.seconds:>16.2f} s{ours.seconds / peer.seconds:>8.3f}")
    print(f"{'    CPU':<46}{ours.cpu_s:>16.2f} s{peer.cpu_s:>16.2f} s{ours.cpu_s / peer.cpu_s:>8.3f}")
    if ours.peak_bytes > 2**20:
        mine, theirs = ours.peak_bytes / 2**20, peer.peak_bytes / 2**20
        print(f"{'    most on disk':<46}{mine:>14.0f} MiB{theirs:>14.0f} MiB{mine / theirs:>8.2f}")


def cost(argv: list[str], folder: Path, env: dict[str, str], *, cwd: Path) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with watched(folder) as peak:
        subprocess.run(argv, env=env, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.monotonic() - start, cpu, max(peak))


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Note how much the file system of a folder holds more than before."""
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


def best(argv: list[str]) -> float:
    seconds = []
    for _ in range(5):
        start = time.monotonic()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.monotonic() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
