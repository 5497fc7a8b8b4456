"""`make bench`, the part of many nodes: gathering as many answers as LUMI-G has nodes, and what one node costs.

The answers are simulated: each with sixty libraries and its own log lines, some of another libcxi, some broken.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lumiimg.check.opening import opened
from lumiimg.check.pipeline import check_files
from lumiimg.check.probe.task import make_task
from lumiimg.check.run.execution import provide_all_reduce
from lumiimg.cluster.nodes import check as nodes
from lumiimg.cluster.nodes.answers import Details, Fingerprint, Head, Library, write_answer
from lumiimg.cluster.nodes.groups import gather
from lumiimg.cluster.nodes.node_task import SCHEMA, NodeTask, identity_of, write_task
from lumiimg.cluster.nodes.request import NodesRequest
from lumiimg.engine.engine import find_engine
from lumiimg.fabric.path import FabricPath
from lumiimg.findings import Code, Finding, Level, Severity

NODES = 2978
"""GPU nodes of LUMI."""
RUNS = 5


def main() -> None:
    print(f"{'what':<44}{'lumiimg':>12}{'peer':>12}{'ratio':>9}  peer")
    with tempfile.TemporaryDirectory(prefix="lumiimg-bench-nodes-") as scratch:
        bench_gathering(Path(scratch))
        bench_node(Path(scratch))


def bench_gathering(scratch: Path) -> None:
    folder = scratch / "answers"
    folder.mkdir()
    job = simulate(folder)
    request = NodesRequest(Path("image.sif"), NODES, level=None, snapshot=None, site=None, simulate=False)
    report = nodes.sum_up(request, "1", gather(folder, "run", job, started=job), ())
    print(f"{report.sentence}")

    def ours() -> None:
        nodes.sum_up(request, "1", gather(folder, "run", job, started=job), ())

    def peer() -> None:
        for file in folder.iterdir():
            for line in file.read_bytes().splitlines():
                json.loads(line)

    size_kib = sum(file.stat().st_size for file in folder.iterdir()) / len(job) / 1024
    row(f"gather and group {NODES} answers of {size_kib:.0f} KiB", best(ours), best(peer), "json.loads of every line")


def simulate(folder: Path) -> list[str]:
    libraries = tuple(Library(f"lib{n}.so.1", f"/opt/rocm/lib/lib{n}.so.1", f"{n:040x}") for n in range(60))
    well = Fingerprint(
        findings=("provider.cxi ok",),
        fabric=FabricPath(rccl="/opt/rocm/lib/librccl.so.1", plugin="/usr/lib/librccl-net.so", provider="cxi"),
        libraries=libraries,
        engine="SingularityCE 4.1.3",
    )
    other = replace(well, libraries=(replace(libraries[0], build="f" * 40), *libraries[1:]))
    job = [f"nid{number:06}" for number in range(5000, 5000 + NODES)]
    for number, node in enumerate(job[:-1]):
        lines = tuple(f"{node}:{n}:{number} [0] NCCL INFO NET/OFI Selected Provider is cxi" for n in range(6))
        proof = Finding(Code.PROVIDER_CXI, Severity.OK, Level.PROBE, "it listens on 4 NIC(s)", evidence=lines)
        fingerprint = other if number % 997 == 3 else well
        write_answer(folder, Head(1, "run", node, 900), fingerprint, Details((proof,)))
    return job


def bench_node(scratch: Path) -> None:
    """Time what one node of a step does, on the demo image, against a start of the same container."""
    engine = find_engine(os.environ)
    image_path, folder = scratch / "demo.sif", scratch / "check"
    folder.mkdir()
    build = [sys.executable, "-m", "lumiimg", "build", "--recipe", "demo", "-o", str(image_path)]
    subprocess.run(build, check=True, capture_output=True)
    with opened(image_path) as image:
        static = check_files(image_path, image, os.environ, None).static
        probes = make_task(engine, image_path, image, static, None, os.environ, folder, simulate=False)
    counter = provide_all_reduce(engine, image_path, image, os.environ, (), folder)
    write_task(folder, NodeTask(SCHEMA, "run", identity_of(image_path), probes, counter))
    argv = [*nodes.own_command(), "node", str(folder)]
    start = best(lambda: subprocess.run([engine.path, "exec", image_path, "true"], check=True, capture_output=True))
    whole = best(lambda: subprocess.run(argv, check=True, capture_output=True))
    row("one node of a step: probes and answer (wall)", whole, start, f"{engine.name} exec … true (wall)")
    answer = next(folder.glob("node-*.json"))
    print(f"its answer: {answer.stat().st_size} bytes, its task {(folder / 'task').stat().st_size}")
    shutil.rmtree(folder)


def best(work: Callable[[], object]) -> float:
    """Return the least wall seconds of several runs."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def row(what: str, seconds: float, peer_s: float, peer: str) -> None:
    print(f"{what:<44}{seconds:>10.3f} s{peer_s:>10.3f} s{seconds / peer_s:>9.2f}  {peer}")


if __name__ == "__main__":
    main()
