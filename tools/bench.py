"""`make bench`: speed as ratios against named peers, both timed in the same run; never part of a test.

Each row is the best of several runs of a process, or of a loop in one, in CPU seconds.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from auditwheel import lddtree
from PySquashfsImage import SquashFsImage

from lumiimg.cluster.nodes.node import Library, NodeAnswer, gather, write_answer
from lumiimg.cluster.nodes.report import build_report
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.elf import Process
from lumiimg.engine.engine import PACKED, exec_words, kernel_engine
from lumiimg.fabric.path import FabricPath
from lumiimg.image import open_image
from lumiimg.joblog import read_log, vocabulary
from tests.shared import fabric_builder, gpu_builder, joblog, python_image
from tests.shared.node_answers import CONTEXT, FILES, levels

RUNS = 7
RANKS, LOG_BYTES = 4096, 2 * 10**9
CHANNEL_BYTES = 28_000_000
NODES = 2978
"""Number of LUMI's GPU nodes."""
LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBRARY_COUNT = 450
MODULES_IN_IMAGE = 5000
CHROOT = (LOADER, "/bin/sh", "/bin/true")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


def main() -> None:
    print(f"{'what':<44}{'lumiimg':>12}{'peer':>12}{'ratio':>9}  peer")
    bare = cpu_of(sys.executable, "-c", "pass")
    row("start: --help", cpu_of(sys.executable, "-m", "lumiimg", "--help"), bare, "python -c pass")
    demo = [sys.executable, "-m", "lumiimg", "build", "--recipe", "demo", "--dry-run"]
    row("start: build --recipe demo --dry-run", cpu_of(*demo), bare, "python -c pass")
    program = shutil.which("gdb") or shutil.which("git") or sys.executable
    ours_s = best(lambda: closure(program))
    row(f"closure of {Path(program).name}", ours_s, wall_of(LOADER, "--list", program), "ld.so --list (wall)")
    row(f"closure of {Path(program).name}", ours_s, best(lambda: lddtree.ldd(Path(program))), "auditwheel's lddtree")
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-") as scratch:
        bench_log(Path(scratch))
        bench_image(Path(scratch))
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-") as scratch:
        bench_check(Path(scratch))
        bench_nodes(Path(scratch))


def bench_log(scratch: Path) -> None:
    """Time the log of a job with 4,096 ranks, beside grep counting the lines with any of the same literals."""
    small, large = scratch / "small.out", scratch / "large.out"
    with small.open("wb") as file:
        joblog.write(file, 16, 0)
    row("log of 16 ranks", cpu_of(*log_command(small)), cpu_of(sys.executable, "-c", "pass"), "python -c pass")
    with large.open("wb") as file:
        joblog.write(file, RANKS, LOG_BYTES, sick=frozenset({17}))
    literals = scratch / "literals"
    literals.write_text("|".join(escaped(hint) for hint in vocabulary().hints))
    bench_channels(scratch / "channels.out")
    seconds, grep_s = wall_of(*log_command(large)), wall_of("grep", "-cE", literals.read_text(), str(large))
    gib = large.stat().st_size / 2**30
    row(f"log of {RANKS} ranks, {gib:.1f} GiB (wall)", seconds, grep_s, "grep -cE with the same literals (wall)")
    print(f"memory of that log: {memory_of(*log_command(large))} MiB")
    large.unlink()


def bench_channels(file: Path) -> None:
    """Time a log of channels, read on one core, beside one pass of Python's re over it."""
    file.write_bytes(b"".join(joblog.channel_log(512, CHANNEL_BYTES)))
    data = file.read_bytes()
    pattern = re.compile(rb"via NET/|via P2P|via SHM|Using network")

    peer = best(lambda: sum(1 for _ in pattern.finditer(data)))
    row(
        f"channels of 512 ranks, {len(data) >> 20} MiB",
        best(lambda: read_log([str(file)], warn=print)),
        peer,
        "one pass of re",
    )
    file.unlink()


def log_command(file: Path) -> list[str]:
    return [sys.executable, "-m", "lumiimg", "log", str(file)]


def escaped(literal: str) -> str:
    """Return a literal escaped for an extended regular expression."""
    return "".join(f"\\{c}" if c in ".[](){}?*+|^$\\" else c for c in literal)


def bench_image(scratch: Path) -> None:
    """Time an image that has this machine's libraries and loader in a tree of 70,000 files."""
    image = make_image(scratch)
    folder = scratch / "root/usr/lib/x86_64-linux-gnu"
    libraries = sum(not path.is_symlink() for path in folder.iterdir())
    ours_s = best(lambda: open_and_look(image))
    row("open an image of 70,000 files, read one", ours_s, best(lambda: peer_open(image)), "PySquashfsImage")
    command = [sys.executable, "-m", "lumiimg", "ldd", str(image), "--all"]
    peak = memory_of(*command)
    files = [f"/usr/lib/x86_64-linux-gnu/{path.name}" for path in folder.iterdir() if not path.is_symlink()]
    script = f"for f in {' '.join(files)}; do {LOADER} --list $f; done"
    if os.geteuid() == 0:
        unpacked_s = cpu_of("chroot", str(scratch / "root"), "/bin/sh", "-c", script)
        row(
            f"ldd --all, {libraries} libraries", cpu_of(*command), unpacked_s, "ld.so --list one by one, image unpacked"
        )
    engine = shutil.which("apptainer") or ""
    if (
        engine
        and subprocess.run([engine, "exec", image, "/bin/true"], capture_output=True, check=False).returncode == 0
    ):
        for place, kind in ((image, "squashfs"), (scratch / "root", "a folder")):
            start = [str(word) for word in exec_words(kernel_engine(), place, ["/bin/true"])]
            theirs = wall_of(engine, "exec", str(place), "/bin/true")
            row(f"start of a container, {kind}, by the kernel", wall_of(*start), theirs, "Apptainer (wall)")
    else:
        print("no engine that works here: `make bench` as an ordinary user compares with containers")
    print(f"memory of ldd --all: {peak} MiB")


def bench_check(scratch: Path) -> None:
    """Time a check of 5,000 sparse ELF files, GPU code and faults included, beside file(1) on the same files."""
    root, packages = make_large(scratch)
    file = ["sh", "-c", f"find {packages} -name '*.so' -print0 | xargs -0 file -b"]
    squashed = scratch / "image.sqfs"
    for place, what in ((root, f"{MODULES_IN_IMAGE} ELF files, 20 GB"), (squashed, "the same as squashfs, 1 GB")):
        if place is squashed:
            for path in packages.rglob("*.so"):
                os.truncate(path, 200 << 10)
            subprocess.run(["mksquashfs", root, place, "-quiet", "-no-progress", *PACKED], check=True)
        command = [sys.executable, "-m", "lumiimg", "check", str(place), "--level", "static", "--site", "lumi"]
        row(f"check, {what}", wall_of(*command), wall_of(*file), "file(1), one process (wall)")


def bench_nodes(scratch: Path) -> None:
    """Time gathering simulated answers of as many nodes as LUMI-G has: sixty libraries each, some other libcxi."""
    folder = scratch / "answers"
    folder.mkdir()
    job = simulate(folder)

    def ours() -> None:
        build_report(CONTEXT, FILES, "1", levels(gather(folder, "run", job, started=job)))

    def peer() -> None:
        for file in folder.iterdir():
            json.loads(file.read_bytes())

    size_kib = sum(file.stat().st_size for file in folder.iterdir()) / len(job) / 1024
    row(f"gather and group {NODES} answers of {size_kib:.0f} KiB", best(ours), best(peer), "json.loads of each")


def simulate(folder: Path) -> list[str]:
    libraries = tuple(Library(f"lib{n}.so.1", f"/opt/rocm/lib/lib{n}.so.1", f"{n:040x}") for n in range(60))
    well = NodeAnswer(
        "run",
        "",
        fabric=FabricPath(rccl="/opt/rocm/lib/librccl.so.1", plugin="/usr/lib/librccl-net.so", provider="cxi"),
        libraries=libraries,
        engine="SingularityCE 4.1.3",
    )
    other = replace(well, libraries=(Library("lib0.so.1", "/opt/rocm/lib/lib0.so.1", "f" * 40), *libraries[1:]))
    job = [f"nid{number:06}" for number in range(5000, 5000 + NODES)]
    for number, node in enumerate(job[:-1]):
        lines = tuple(f"{node}:{n}:{number} [0] NCCL INFO NET/OFI Selected Provider is cxi" for n in range(6))
        proof = Finding("provider.cxi", Severity.OK, Level.PROBE, "it listens on 4 NIC(s)", evidence=lines)
        write_answer(folder, replace(other if number % 997 == 3 else well, node=node, findings=(proof,)))
    return job


def make_large(scratch: Path) -> tuple[Path, Path]:
    """Return the root of an image with a Python, a torch and thousands of modules, and its packages folder."""
    root = fabric_builder.image(scratch / "root")
    python_image.python(root, "usr")
    python_image.torch(root, "usr")
    python_image.environment(root, PATH="/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    packages = root / "usr" / python_image.SITE
    small = [path for path in sorted(LIBRARIES.glob("*.so*")) if path.is_file() and path.stat().st_size < 150 << 10]
    kernels = gpu_builder.library(gpu_builder.bundle(*gpu_builder.hip("gfx90a", "gfx942")))
    for number in range(MODULES_IN_IMAGE):
        path = packages / f"p{number % 100}" / f"m{number}.so"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(small[number % len(small)].read_bytes() if number % 50 else kernels)
        os.truncate(path, 4 << 20)
        for inner in range(4):
            path.with_name(f"m{number}_{inner}.py").write_text("x = 1\n")
    return root, packages


def make_image(scratch: Path) -> Path:
    root = scratch / "root"
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    files = [path for path in sorted(LIBRARIES.glob("*.so*")) if path.is_file() and not path.is_symlink()]
    needed = {
        path for path in files if path.name.startswith(("libc.", "libm.", "ld-", "libpcre", "libselinux", "libtinfo"))
    }
    for path in {*files[:LIBRARY_COUNT], *needed}:
        shutil.copy(path, folder / path.name)
    for name in CHROOT:
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    for number in range(700):
        many = root / f"srv/{number:03}"
        many.mkdir(parents=True)
        for inner in range(100):
            (many / f"{inner}.py").write_text(f"x = {number * inner}\n")
    (root / "etc").mkdir(exist_ok=True)
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)
    image = scratch / "image.sqfs"
    subprocess.run(["mksquashfs", root, image, "-quiet", "-no-progress", *PACKED], check=True)
    return image


def open_and_look(image: Path) -> int:
    with open_image(image) as opened:
        return len(opened.root.read_bytes("/srv/350/50.py", 100))


def peer_open(image: Path) -> int:
    with SquashFsImage.from_file(str(image)) as opened:
        found = opened.select("/srv/350/50.py")
        return len(found.read_bytes())


def wall_of(*argv: str) -> float:
    """Return the lowest wall time of a few runs of a program, in seconds."""
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        # grep stops at the first match if it writes to /dev/null
        subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        seconds.append(time.monotonic() - start)
    return min(seconds)


def memory_of(*argv: str) -> int:
    """Return the peak memory of a program in MiB."""
    # through a small process: a forked child starts with the memory of its parent
    code = (
        "import os, sys; p = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); print(os.wait4(p, 0)[2].ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) // 1024


def row(what: str, seconds: float, peer_s: float, peer: str) -> None:
    print(f"{what:<44}{seconds * 1000:>9.1f} ms{peer_s * 1000:>9.1f} ms{seconds / peer_s:>8.2f}x  {peer}")


def cpu_of(*argv: str) -> float:
    """Return the lowest CPU time of several runs of a program, in seconds."""
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


def closure(program: str) -> int:
    with open_image(Path("/")) as image:
        return len(Process(image.root).start(program).objects)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    main()
