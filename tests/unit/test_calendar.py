"""No answer depends on the date: with a clock months and years ahead, commands print and exit as today."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.clock import ahead_by
from tests.shared.doc_files import DOCKERFILE
from tests.shared.programs import EVERYTHING, sampled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
DAYS = (0, 100, 365, 1095) if EVERYTHING else (0, 1095)
RUN = """
import io, json, sys
from lumiimg.cli.main import main
answers, out = [], sys.stdout
for argv in json.load(sys.stdin):
    sys.stdout = sys.stderr = io.StringIO()
    try: code = main(argv)
    except SystemExit as error: code = error.code
    answers.append((code, sys.stdout.getvalue()))
json.dump(answers, out)
"""
BY_THE_WAY = re.compile(r'[0-9.]+ [KMGT]iB|"taken": "[^"]*"|no difference from the existing lock\n')
"""Output that differs from run to run: free space, when a node was scanned, that there is a lock already."""
BASES = ("rocm-6.1.2", "rocm-6.4.4", "rocm-7.0", "rocm-7.2.4", "rocm-7.14.0", "lumi-multitorch-u24r70")
LOGS = (
    "rccl-2.22.3-aws-ofi-nccl-1.18.0-cxi",
    "rccl-2.22.3-aws-ofi-nccl-1.18.0-tcp",
    "rccl-2.16.5-rc38",
    "no-nccl-lines",
)
CLOCK = {
    "cli/check.py": "until when it waits for other nodes, in words",
    "cluster/job/job.sh": "the name of a second folder of one job",
    "cluster/module/plan.py": "when a module was made, in its notes",
    "cluster/trial/plan.py": "when a trial was planned",
    "cluster/trial/run.py": "when a step began, and the name of its folder",
    "core/files.py": "`today`",
    "definition/docker/draft.py": "the date of a draft",
    "engine/workspace.py": "what a process left that died is removed later",
    "fetch/download.py": "what a process left that died is removed later",
    "host/scan.py": "when a node was scanned",
    "image/oci/layers.py": "what a process left that died is removed later",
    "report/page.py": "when a page was written, in its footer",
    "resolve/unlisted.py": "when a release without a row was read",
}
"""Every place in lumiimg that reads the clock, and why; none of them affects an answer."""


def test_who_reads_the_clock_and_what_for() -> None:
    reads = re.compile(
        r"\b(?:now|today)\(|\btime\.(?:time|time_ns|localtime|gmtime|ctime)\(|\bdate \+|\bEPOCHSECONDS\b"
    )
    package = ROOT / "lumiimg"
    files = [file for folder in (package, ROOT / "layers") for kind in ("*.py", "*.sh") for file in folder.rglob(kind)]
    found = {file for file in files if reads.search(file.read_text())}
    assert {str(file.relative_to(package)) for file in found} == CLOCK.keys()


def answers_by(days: int, commands: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        env=os.environ | ahead_by(days, folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, BY_THE_WAY.sub("", text)) for code, text in json.loads(done.stdout)]


def about_images(images: Sequence[str], nodes: Sequence[str]) -> Iterator[list[str]]:
    lumi, hosts = ["--site", "lumi"], [["--host", node] for node in nodes]
    for image in images:
        for machine in ([], lumi, ["--site", "frontier"], *hosts, *([*lumi, *host] for host in hosts)):
            yield ["check", image, "--level", "static", *machine]
        yield ["explain", image, *lumi]
        yield ["bind", image, *lumi, *hosts[0]]
        yield ["adapt", image, *lumi, "--dry-run", "--offline"]
        yield ["job", image, *lumi, "--", "true"]
        yield ["show", image, "--gpu", *lumi]
    yield ["check", *images, "--level", "static", *lumi]
    yield ["drift", *nodes, "--image", *images, *lumi]


def about_requests(node: str, recipes: Sequence[str]) -> Iterator[list[str]]:
    lumi = ["--site", "lumi"]
    for base in BASES:
        for machine in ([], lumi, ["--site", "frontier"], [*lumi, "--fabric", "bundled"], [*lumi, "--host", node]):
            yield ["explain", "--base", base, "--add", "pytorch", *machine, "--verbose"]
        yield ["build", "--base", base, "--add", "pytorch", *lumi, "--dry-run", "--offline"]
    for recipe in recipes:
        yield ["explain", "--recipe", recipe]
        yield ["build", "--recipe", recipe, *lumi, "--dry-run", "--offline"]
    yield ["explain", "--base", "rocm-7.0", "--add", "vllm==0.30.0", "--offline", *lumi]
    yield ["explain", "--add", "vllm", *lumi]


@pytest.mark.usefixtures("clean_home")
def test_answers_are_the_same_in_a_hundred_days_in_a_year_and_in_three(tmp_path: Path) -> None:
    """Word by word, without exceptions. `make test-all` tries all commands and clocks, this run some."""
    images = {
        "bundled": fabric_builder.bundled(tmp_path / "bundled"),
        "newer": fabric_builder.image(tmp_path / "newer"),
        "old": fabric_builder.image(tmp_path / "old", glibc=35),
        "bare": fabric_builder.image(tmp_path / "bare", plugin=False),
    }
    for name, rocm in (("bundled", "6.4.4"), ("newer", "7.14.0")):
        info = images[name] / "opt/rocm/.info"
        info.mkdir(parents=True)
        (info / "version").write_text(f"{rocm}-1\n")
    host = fabric_builder.host(tmp_path / "host")
    older, node = (
        str(fabric_builder.snapshot(host, name=name, taken=f"{day}T00:00:00Z", gpu_driver=driver))
        for name, day, driver in (("older", "2024-11-20", None), ("node", "2026-11-20", "6.10.5"))
    )
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    request = ["--base", "rocm-6.4.4", "--site", "lumi"]
    good = [
        ["explain", *request],
        ["check", str(images["bundled"]), "--level", "static", "--site", "lumi"],
        ["lock", "--recipe", "demo", "--offline", "-o", str(tmp_path / "lock.toml")],
        [],
    ]
    others = [
        *about_images([str(image) for image in images.values()], [older, node]),
        *about_requests(node, open_catalogue({"HOME": str(tmp_path)}).recipe_names()),
        *(["log", f"{ROOT}/tests/fixtures/nccl/{log}.log", "--site", "lumi"] for log in LOGS),
        ["draft", str(tmp_path / "Dockerfile")],
        ["host", "scan", "--json"],
        ["doctor"],
        ["list"],
        ["show", "lumi"],
    ]
    commands = good + sampled(others, 6)
    by_day = {
        days: dict(zip(map(" ".join, commands), answers_by(days, commands, tmp_path), strict=True)) for days in DAYS
    }
    assert {by_day[0][" ".join(words)][0] for words in good} == {ExitCode.GOOD}, by_day[0]
    assert not [(words, expected) for words, (code, expected) in by_day[0].items() if code == ExitCode.BAD_INPUT]
    for days in DAYS:
        assert by_day[days] == by_day[0], f"in {days} days"
