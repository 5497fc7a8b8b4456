"""`make bench`: speed as ratios against named peers, both timed in the same run; never part of a test.

Each row is the best of several runs of a whole process, or of a loop within one, in CPU seconds.
"""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from auditwheel import lddtree
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from PySquashfsImage import SquashFsImage

from lumiimg.elf.facts import read_elf
from lumiimg.elf.loader import Process
from lumiimg.elf.reader import BytesReader
from lumiimg.engine.engine import PACKED, exec_words, of_kernel
from lumiimg.image import open_image
from lumiimg.nccl.reader import LogReader
from lumiimg.nccl.sources import blocks
from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.resolve.uv import find_uv
from tests.shared import fabric_builder, gpu_builder, joblog, python_image

RUNS = 7
RANKS, LOG_BYTES = 4096, 2 * 10**9
PROCESSES = 600_000
CHANNEL_BYTES = 28_000_000
WHEELS, MODULES = 100, 15
LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBRARY_COUNT, SAMPLE = 450, 20
MODULES_IN_IMAGE = 5000
CHROOT = (LOADER, "/bin/sh", "/bin/true")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


def main() -> None:
    print(f"{'what':<44}{'lumiimg':>12}{'peer':>12}{'ratio':>9}  peer")
    bare = cpu_of(sys.executable, "-c", "pass")
    row("start: --help", cpu_of(sys.executable, "-m", "lumiimg", "--help"), bare, "python -c pass")
    row("start: build --recipe demo --dry-run", cpu_of(*dry_run()), bare, "python -c pass")
    files = [path.read_bytes() for path in sorted(LIBRARIES.glob("*.so*")) if path.is_file()][:300]
    row(
        f"ELF facts of {len(files)} libraries", best(lambda: ours(files)), best(lambda: pyelftools(files)), "pyelftools"
    )
    program = shutil.which("gdb") or shutil.which("git") or sys.executable
    ours_s = best(lambda: closure(program))
    row(f"closure of {Path(program).name}", ours_s, wall_of_loader(program), "ld.so --list (wall)")
    row(f"closure of {Path(program).name}", ours_s, best(lambda: lddtree.ldd(Path(program))), "auditwheel's lddtree")
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-") as scratch:
        bench_wheels(Path(scratch))
        bench_log(Path(scratch))
        bench_image(Path(scratch))
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-") as scratch:
        bench_check(Path(scratch))


def bench_wheels(scratch: Path) -> None:
    """Time the installation of a layer's wheels, offline and into an environment of its own: uv against pip."""
    wheels = make_wheels(scratch / "wheels")
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True)
    python, uv = str(scratch / "venv/bin/python"), find_uv(scratch, os.environ)
    by_uv = [uv, "pip", "install", "--quiet", "--python", python, "--offline", "--no-index", "--no-cache"]
    by_pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-index"]
    for what, of_uv, of_pip in (("with byte code", "--compile-bytecode", ""), ("no byte code", "", "--no-compile")):
        seconds = []
        for words in ([*by_uv, of_uv], [*by_pip, of_pip]):
            seconds.append(cpu_once(*filter(None, words), "--no-deps", *wheels))
            subprocess.run([uv, "pip", "uninstall", "--quiet", "--python", python, *map(name_of, wheels)], check=True)
        row(f"install {WHEELS} wheels, {what}: uv", seconds[0], seconds[1], "pip")


def make_wheels(folder: Path) -> list[str]:
    """Write wheels of modules of the standard library, a few in each."""
    folder.mkdir()
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    for at in range(WHEELS):
        name = f"bench_{at:03}"
        with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for module in (modules[(at * MODULES + n) % len(modules)] for n in range(MODULES)):
                wheel.write(module, f"{name}/{module.name}")
            info = f"{name}-1.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            about = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{info}/WHEEL", about)
            wheel.writestr(f"{info}/RECORD", "")
    return sorted(map(str, folder.iterdir()))


def name_of(wheel: str) -> str:
    return Path(wheel).name.partition("-")[0]


def bench_log(scratch: Path) -> None:
    """Time the log of a job of 4,096 ranks, against grep that counts the lines with any of the same literals."""
    small, large = scratch / "small.out", scratch / "large.out"
    with small.open("wb") as file:
        joblog.write(file, 16, 0)
    row("log of 16 ranks", cpu_of(*log_command(small)), cpu_of(sys.executable, "-c", "pass"), "python -c pass")
    with large.open("wb") as file:
        joblog.write(file, RANKS, LOG_BYTES, sick=frozenset({17}))
    literals = scratch / "literals"
    literals.write_text("|".join(escaped(hint) for hint, _ in vocabulary().by_hint))
    bench_channels(scratch / "channels.out")
    seconds, grep_s = wall_of(*log_command(large)), wall_of("grep", "-cE", literals.read_text(), str(large))
    gib = large.stat().st_size / 2**30
    row(f"log of {RANKS} ranks, {gib:.1f} GiB (wall)", seconds, grep_s, "grep -cE with the same literals (wall)")
    row(f"log of {RANKS} ranks, {gib:.1f} GiB (CPU)", cpu_once(*log_command(large)), grep_s, "grep (one core)")
    print(f"memory of that log: {memory_of_all(*log_command(large))} MiB in all its processes")
    with large.open("wb") as file:
        file.writelines(joblog.channel_log(RANKS, LOG_BYTES))
    gib = large.stat().st_size / 2**30
    grep_s = wall_of("grep", "-cE", literals.read_text(), str(large))
    row(f"channels of {RANKS} ranks, {gib:.1f} GiB (wall)", wall_of(*log_command(large)), grep_s, "grep -cE (wall)")
    print(f"memory of that log: {memory_of_all(*log_command(large))} MiB in all its processes")
    bench_processes(large)
    large.unlink()


def bench_processes(file: Path) -> None:
    """Time a log of 600,000 processes, more than are kept apart."""
    with file.open("wb") as stream:
        stream.writelines(joblog.process_log(PROCESSES))
    mib, grep_s = file.stat().st_size >> 20, wall_of("grep", "-c", "NET/AWS", str(file))
    row(f"{PROCESSES:,} processes, {mib} MiB (wall)", wall_of(*log_command(file)), grep_s, "grep -c (wall)")
    print(f"memory of that log: {memory_of_all(*log_command(file))} MiB in all its processes")


def bench_channels(file: Path) -> None:
    """Time a log of channels, read on one core, against one pass of Python's re over it."""
    file.write_bytes(b"".join(joblog.channel_log(512, CHANNEL_BYTES)))
    data = file.read_bytes()
    pattern = re.compile(rb"via NET/|via P2P|via SHM|Using network")

    def read() -> None:
        reader = LogReader()
        for block in blocks(str(file), lambda _: None):
            reader.feed("job.out", block)
        reader.report()

    peer = best(lambda: sum(1 for _ in pattern.finditer(data)))
    row(f"channels of 512 ranks, {len(data) >> 20} MiB", best(read), peer, "one pass of re")
    file.unlink()


def log_command(file: Path) -> list[str]:
    return [sys.executable, "-m", "lumiimg", "log", str(file)]


def escaped(literal: str) -> str:
    """Return a literal as an extended regular expression."""
    return "".join(f"\\{c}" if c in ".[](){}?*+|^$\\" else c for c in literal)


def memory_of_all(*argv: str) -> int:
    """Return the most MiB that a program and its children had together, shared pages counted once."""
    program = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while program.poll() is None:
        group = [program.pid, *map(int, children_of(program.pid))]
        most = max(most, sum(map(proportional_kib, group)))
        time.sleep(0.1)
    return most // 1024


def children_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def bench_image(scratch: Path) -> None:
    """Time an image: the libraries of this machine with its loader, in a tree of 70,000 files."""
    image = make_image(scratch)
    folder = scratch / "root/usr/lib/x86_64-linux-gnu"
    libraries = sum(not path.is_symlink() for path in folder.iterdir())
    ours_s = best(lambda: open_and_look(image))
    row("open an image of 70,000 files, read one", ours_s, best(lambda: peer_open(image)), "PySquashfsImage")
    command = [sys.executable, "-m", "lumiimg", "ldd", str(image), "--all"]
    seconds, peak = wall_of(*command), memory_of(*command)
    files = [f"/usr/lib/x86_64-linux-gnu/{path.name}" for path in folder.iterdir() if not path.is_symlink()]
    script = f"for f in {' '.join(files)}; do {LOADER} --list $f; done"
    if os.geteuid() == 0:
        unpacked_s = wall_of("chroot", str(scratch / "root"), "/bin/sh", "-c", script)
        row(f"ldd --all, {libraries} libraries", seconds, unpacked_s, "ld.so --list one by one, image unpacked (wall)")
    engine = shutil.which("apptainer") or ""
    if (
        engine
        and subprocess.run([engine, "exec", image, "/bin/true"], capture_output=True, check=False).returncode == 0
    ):
        some = files[:SAMPLE]
        each = f"for f in {' '.join(some)}; do {engine} exec {image} {LOADER} --list $f; done"
        container_s = wall_of("/bin/sh", "-c", each) / len(some) * len(files)
        row(
            f"ldd --all, {libraries} libraries",
            seconds,
            container_s,
            f"a container for each file ({SAMPLE} timed, scaled)",
        )
        for place, kind in ((image, "squashfs"), (scratch / "root", "a folder")):
            start = [str(word) for word in exec_words(of_kernel(), place, ["/bin/true"])]
            theirs = wall_of(engine, "exec", str(place), "/bin/true")
            row(f"start of a container, {kind}, by the kernel", wall_of(*start), theirs, "Apptainer (wall)")
    else:
        print("no engine that works here: `make bench` as an ordinary user compares with containers")
    print(f"memory of ldd --all: {peak} MiB")


def bench_check(scratch: Path) -> None:
    """Time a check, GPU code and faults included, of 5,000 ELF files with holes, against file(1) on the same files."""
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
        print(f"read by that check: {read_by(*command) / 1e6:.0f} MB")


def make_large(scratch: Path) -> tuple[Path, Path]:
    """Return the root of an image with a Python, a torch and thousands of modules, and the folder of its packages."""
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


def read_by(*argv: str) -> int:
    """Return the bytes that a program read by system calls."""
    code = "import runpy, sys; sys.argv = sys.argv[2:]\ntry: runpy.run_module('lumiimg', run_name='__main__')\n"
    code += "except SystemExit: pass\nprint(open('/proc/self/io').read().split()[1], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *argv[1:]], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1])


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
    """Return the least wall seconds of a few runs of a program."""
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        # grep that writes to /dev/null stops at the first match
        subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        seconds.append(time.monotonic() - start)
    return min(seconds)


def memory_of(*argv: str) -> int:
    """Return the most MiB that a program has had in memory."""
    # by way of a small process: a child starts with the memory of the one that it was forked from
    code = (
        "import os, sys; p = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); print(os.wait4(p, 0)[2].ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) // 1024


def row(what: str, seconds: float, peer_s: float, peer: str) -> None:
    print(f"{what:<44}{seconds * 1000:>9.1f} ms{peer_s * 1000:>9.1f} ms{seconds / peer_s:>8.2f}x  {peer}")


def cpu_once(*argv: str) -> float:
    """Return the CPU seconds of one run of a program and of the processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
        subprocess.run([LOADER, "--list", program], stdout=subprocess.DEVNULL, check=False)
        seconds.append(time.monotonic() - start)
    return min(seconds)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    main()
