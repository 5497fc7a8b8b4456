"""`make bench`: speed as ratios against named peers, both timed in the same run; never part of a test.

Each row is the best of several runs of a whole process, or of a loop within one, in CPU seconds.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from lumiimg.elf.facts import BytesReader, read_elf
from lumiimg.elf.loader import Process
from lumiimg.image import open_image

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 7
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


def main() -> None:
    print(f"{'what':<44}{'lumiimg':>12}{'peer':>12}{'ratio':>9}  peer")
    bare = cpu_of(sys.executable, "-c", "pass")
    row("start: --help", cpu_of(sys.executable, "-m", "lumiimg", "--help"), bare, "python -c pass")
    row("start: build --recipe demo --dry-run", cpu_of(*dry_run()), bare, "python -c pass")
    with_requests = cpu_of(sys.executable, "-c", "import requests")
    row("start: log of 20 lines", cpu_of(*log_of_20_lines()), with_requests, "python -c 'import requests'")
    files = [path.read_bytes() for path in sorted(LIBRARIES.glob("*.so*")) if path.is_file()][:300]
    row(
        f"ELF facts of {len(files)} libraries", best(lambda: ours(files)), best(lambda: pyelftools(files)), "pyelftools"
    )
    program = "/usr/bin/apptainer" if Path("/usr/bin/apptainer").exists() else sys.executable
    row(
        f"closure of {Path(program).name}",
        best(lambda: closure(program)),
        wall_of_loader(program),
        "ld.so --list (wall)",
    )


def row(what: str, seconds: float, peer_s: float, peer: str) -> None:
    print(f"{what:<44}{seconds * 1000:>9.1f} ms{peer_s * 1000:>9.1f} ms{seconds / peer_s:>8.2f}x  {peer}")


def cpu_of(*argv: str) -> float:
    """Return the least CPU seconds of several runs of a program."""
    seconds = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def dry_run() -> list[str]:
    return [sys.executable, "-m", "lumiimg", "build", "--recipe", "demo", "--dry-run"]


def log_of_20_lines() -> list[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".out", delete=False) as file:
        file.write("h:1:1 [0] NCCL INFO Using network Socket\n" * 20)
    return [sys.executable, "-m", "lumiimg", "log", file.name]


def ours(files: list[bytes]) -> int:
    return sum(len(read_elf(BytesReader(data)).needed) for data in files)


def pyelftools(files: list[bytes]) -> int:
    count = 0
    for data in files:
        elf = ELFFile(io.BytesIO(data))
        section = elf.get_section_by_name(".dynamic")
        if isinstance(section, DynamicSection):
            count += sum(
                1 for tag in section.iter_tags() if tag.entry.d_tag in {"DT_NEEDED", "DT_SONAME", "DT_RUNPATH"}
            )
        versions = elf.get_section_by_name(".gnu.version_r")
        if isinstance(versions, GNUVerNeedSection):
            count += sum(1 for _, needs in versions.iter_versions() for _ in needs)
    return count


def closure(program: str) -> int:
    with open_image(Path("/")) as image:
        return len(Process(image.root).start(program).objects)


def wall_of_loader(program: str) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.monotonic()
        subprocess.run(["/lib64/ld-linux-x86-64.so.2", "--list", program], stdout=subprocess.DEVNULL, check=False)
        seconds.append(time.monotonic() - start)
    return min(seconds)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    main()
