"""The all-reduces of the netprobe layer: sums that fit a float in jobs of any size, and how ranks end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import read_events
from tests.shared.gpu_standin import SOURCES, standin_libraries
from tests.shared.programs import EVERYTHING, needs, patient

NETPROBE = shipped_layers() / "netprobe"
SUMS = """
#define main the_program
#include "allreduce.c"
#undef main
int main(void)
{
    static const int jobs[] = {1, 2, 8, 13, 5781, 24000, 100003, 1118481};

    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        for (size_t index = 0; index < OF_INDEX; index++) {
            long long whole = 0;
            float up = 0, down = 0;

            for (int rank = 0; rank < jobs[i]; rank++) {
                whole += (long long)element(index, rank);
                up += element(index, rank);
                down += element(index, jobs[i] - 1 - rank);
            }
            if (up != sum_of(index, jobs[i]) || down != up || (long long)up != whole)
                printf("%d ranks, element %zu: %f and %f, not %lld\\n", jobs[i], index, up, down, whole);
        }
    }
    return 0;
}
"""


def test_sums_are_exact_in_any_order_for_more_ranks_than_any_machine_has(tmp_path: Path) -> None:
    needs("gcc")
    source = tmp_path / "sums.c"
    source.write_text(SUMS)
    built: list[str | Path] = ["gcc", "-std=c11", "-O2", "-I", NETPROBE, "-o", tmp_path / "sums", source, "-ldl"]
    subprocess.run(built, check=True)
    assert subprocess.run([tmp_path / "sums"], capture_output=True, text=True, check=True).stdout == ""


def test_both_programs_sum_the_same_numbers() -> None:
    in_c = re.search(r"OF_INDEX = (\d+), OF_RANK = (\d+)", (NETPROBE / "allreduce.c").read_text())
    in_python = re.search(r"OF_INDEX, OF_RANK = (\d+), (\d+)", (NETPROBE / "torch_allreduce.py").read_text())
    assert in_c is not None
    assert in_python is not None
    assert in_c.groups() == in_python.groups()


def test_each_stand_in_has_the_functions_that_the_program_looks_up() -> None:
    wanted = set(re.findall(r'FIND\(library, "(\w+)"', (NETPROBE / "allreduce.c").read_text()))
    for of_hip in (SOURCES / "hip.c", SOURCES.parents[1] / "gpu/hipshim.c"):
        has = set(re.findall(r"\b((?:hip|nccl)[A-Z]\w+)[(,]", of_hip.read_text() + (SOURCES / "rccl.c").read_text()))
        assert wanted - has == set(), of_hip


# ---- a rank that died while another one waits for it in an all-reduce


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The all-reduce, of small messages only, on stand-ins for librccl and libamdhip64."""
    needs("gcc")
    folder = tmp_path_factory.mktemp("allreduce")
    built, source = folder / "allreduce", folder / "allreduce.c"
    source.write_text((NETPROBE / "allreduce.c").read_text().replace("LARGEST = 256 << 20", "LARGEST = 4 << 20"))
    subprocess.run(["gcc", "-std=c11", "-O2", "-I", NETPROBE, "-o", built, source, "-ldl"], check=True)
    return [built, standin_libraries(folder)[1]]


STUCK = {"STANDIN_DIED": "30", "STANDIN_ABORTS": "60"}
DEATHS = [({"STANDIN_DIED": "30"}, 23), ({"STANDIN_DIED": "0"}, 16), *([(STUCK, 23)] if EVERYTHING else [])]


@pytest.mark.parametrize(("died", "code"), DEATHS, ids=["noted", "not noted", "cannot abort"][: len(DEATHS)])
def test_a_rank_that_waits_for_one_that_died_ends_with_the_error_of_rccl(
    program: list[str | Path], died: dict[str, str], code: int, tmp_path: Path
) -> None:
    start = time.monotonic()
    limit = "2" if code == 16 else "50"
    argv = [program[0], "--folder", tmp_path, "--timeout", limit, program[1]]
    done = subprocess.run(argv, env=os.environ | died, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert time.monotonic() - start < patient(10)
    events = [event for event in read_events(done.stdout) if event["topic"] in {"allreduce", "timeout"}]
    error = {"rank": "0", "rc": "6", "error": "remote process exited or there was a network error"}
    noted, silent = {"topic": "allreduce"} | error, {"topic": "timeout", "seconds": "2", "during": "allreduce"}
    assert events == [noted if code == 23 else silent]


# ---- ranks that hang: torch is not needed to test how they end


def ranks_of_torch(folder: Path, device: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a stand-in for torch, whose ranks do `device` first."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(f"import multiprocessing, os\ndef device(name):\n    {device}\n")
    (folder / "torch/distributed.py").touch()
    (folder / "meeting").mkdir()
    argv: list[str | Path] = [
        sys.executable,
        NETPROBE / "torch_allreduce.py",
        "--folder",
        folder / "meeting",
        "--backend",
        "gloo",
    ]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [*argv, *options], env=environment, capture_output=True, text=True, check=False, timeout=patient(60)
    )


def test_a_rank_that_waits_too_long_says_where_and_shows_in_the_exit_code(tmp_path: Path) -> None:
    """The first rank is on another node, which never starts."""
    done = ranks_of_torch(tmp_path, "return name", "--task=1", "--tasks=2", "--timeout=2")
    assert done.returncode == 16, done.stderr
    (event, *_) = read_events(done.stdout)
    assert event == {"topic": "timeout", "rank": "1", "seconds": "2", "during": "meeting"}


def test_after_a_rank_that_dies_the_others_are_not_waited_for(tmp_path: Path) -> None:
    start = time.monotonic()
    dies = "if multiprocessing.current_process().name.endswith('-2'): os.kill(os.getpid(), 11)"
    done = ranks_of_torch(tmp_path, dies, "--local=2", "--task=1", "--tasks=2", "--timeout=50")
    assert done.returncode == 128 + 11, done.stderr
    assert "@probe" not in done.stdout
    assert time.monotonic() - start < patient(30)
