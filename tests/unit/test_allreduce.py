"""The all-reduce of the netprobe layer: its sums are what float can hold, however large the job."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import shipped_layers

if TYPE_CHECKING:
    from pathlib import Path

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
