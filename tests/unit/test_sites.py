"""What is written down of machines: cores, environment, limits; and what a user's own site file may not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumiimg.catalog.sites import find_site, site_names
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.text import ranges
from tests.shared.lumi_node import LUMI_MASKS

HOME = {"HOME": "/nonexistent"}
Capture = pytest.CaptureFixture[str]


MINE = """\
title = "mine"
source = "the tests"
date = 2026-11-21
arch = "gfx90a"

[driver]
name = "amdgpu 6.3"
rocm = "rocm>=6.1,<7.1"
source = "the tests"
date = 2026-11-21

[fabric]
slingshot = "12.0"
libfabric = "1.22.0"
glibc = "2.38"
source = "the tests"
date = 2026-11-21

[binding]
cores = 16
group = 8
reserved = [0, 8]
near = [1, 0]
source = "the tests"

[[partition]]
name = "gpu"
nodes = 4
hours = 1
source = "the tests"

[[environment]]
name = "A"
value = "1"
nodes = "any"
because = "it is needed"
source = "the tests"
"""


# ALCF running-jobs-aurora.md, and frameworks/pytorch.md: of socket 0 without core 0, of socket 1 without core 52
AURORA_LISTS = {
    False: "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100",
    True: "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79",
}


def test_the_cores_near_a_gpu_are_those_that_each_site_publishes() -> None:
    lumi, frontier, aurora = (find_site(name, HOME).binding for name in ("lumi", "frontier", "aurora"))
    assert lumi is not None
    assert frontier is not None
    assert aurora is not None
    masks = [sum(1 << core for core in lumi.cores_near(gpu)) for gpu in range(8)]
    assert masks == list(LUMI_MASKS)
    # pytorch_frontier.rst: `core affinity … 1 2 3 4 5 6 7, Suggested GPU 4`, and so on
    assert [frontier.cores_near(gpu)[0] for gpu in (4, 2, 6, 7)] == [1, 17, 33, 41]
    assert all(len(frontier.cores_near(gpu)) == 7 for gpu in range(8))
    for sparing, lists in AURORA_LISTS.items():
        assert ":".join(ranges(aurora.cores_near(gpu, sparing=sparing)) for gpu in range(12)) == lists


def test_how_long_a_job_can_take_depends_on_its_nodes() -> None:
    for site, partition, nodes, hours in (
        ("frontier", "batch", 91, 2),
        ("frontier", "batch", 184, 12),
        ("aurora", "prod", 2000, 24),
        ("alps", "debug", 1, 1.5),
        ("lumi", "dev-g", 1, 3),
    ):
        (found,) = [part for part in find_site(site, HOME).partitions if part.name == partition]
        assert found.hours_for(nodes) == hours, (site, nodes)


def test_the_environment_of_jobs_goes_by_what_the_image_has(capsys: Capture) -> None:
    def variables(base: str, site: str, *more: str) -> dict[str, str]:
        assert main(["explain", "--base", base, "--site", site, *more, "--json"]) == ExitCode.GOOD
        return {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["environment"]}

    of_6, of_7 = {"NCCL_NET_GDR_LEVEL"}, {"NCCL_DMABUF_ENABLE", "SLURM_NETWORK"}
    # with images of ROCm 7 jobs on several nodes hang with GPUDirect RDMA
    for base, has, lacks in (("rocm-6.4.4", of_6 | {"NCCL_SOCKET_IFNAME"}, of_7), ("rocm-7.0", of_7, of_6)):
        found = set(variables(base, "lumi"))
        assert has <= found
        # the last is of torch, which is not asked for
        assert not (lacks | {"MIOPEN_USER_DB_PATH"}) & found
    for site, add, value in (
        ("lumi", "mpich", "pmi2"),
        ("lumi", "rccl-tests", "pmi2"),
        ("lumi", "netprobe", None),
        ("frontier", "mpich", None),
    ):
        words = ("--add", add, "--fabric", "bundled")
        assert variables("rocm-6.4.4", site, *words).get("SLURM_MPI_TYPE") == value, (site, add)


def test_each_site_is_shown_and_one_that_the_project_never_ran_on_is_marked(capsys: Capture) -> None:
    assert main(["list", "--json"]) == ExitCode.GOOD
    listed = {e["name"]: e for e in json.loads(capsys.readouterr().out)["entries"] if e["kind"] == "site"}
    for name in site_names(HOME):
        assert main(["show", name]) == ExitCode.GOOD
        told = " ".join(capsys.readouterr().out.split())
        assert find_site(name, HOME).title.split()[0] in told
        assert main(["show", name, "--json"]) == ExitCode.GOOD
        data = json.loads(capsys.readouterr().out)
        assert (data["kind"], data["name"], name in listed) == ("site", name, True)
        if name != "generic":
            assert (find_site(name, HOME).status, listed[name]["status"]) == ("documented", "documented")
            assert "never run anything on this machine" in told


def test_a_site_file_of_the_users_is_shown_and_a_wrong_one_is_one_line_with_the_key(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    assert main(["show", str(tmp_path / "mine.toml")]) == ExitCode.GOOD
    told = capsys.readouterr().out
    assert "GPU 0: 9-15; GPU 1: 1-7" in told
    assert "gpu: up to 4 nodes, 1 h" in told
    for old, new, fault in (
        (
            'name = "amdgpu 6.3"',
            'name = "amdgpu 6.3"\nversion = "6"',
            "key 'driver.version' is '6'; a version of the driver like 6.3.60300 is needed",
        ),
        ('glibc = "2.38"', 'glibc = "abc"', "key 'fabric.glibc' is 'abc'; a version like"),
        ('rocm = "rocm>=6.1,<7.1"', 'rocm = "python>=3"', "key 'driver.rocm' should be releases of ROCm"),
        ("near = [1, 0]", "near = [1, 7]", "key 'binding.near' names a group that 16 cores in groups of 8 do not have"),
        ("near = [1, 0]", "near = [1, 1]", "key 'binding.near' names a group more than 1 time: "),
        (
            "reserved = [0, 8]",
            "reserved = [16]",
            "key 'binding.reserved' names a core that a node with 16 does not have",
        ),
        (
            "near = [1, 0]",
            "near = [1, 1]\ngpus_of_group = 8",
            "key 'binding.reserved' leaves no core of group 1, which is near GPU 0",
        ),
        (
            "near = [1, 0]",
            'near = [1, 0]\nspared = "7-3"\nspared_for = "x"',
            "has '7-3', which is not a core or a range",
        ),
        ("near = [1, 0]", 'near = [1, 0]\nspared = "1"', "key 'binding.spared_for' is missing"),
        ("hours = 1", "hours = 1\nleast_nodes = 5", "key 'partition[0].least_nodes' is 5, above the 4 nodes"),
        ("hours = 1", "hours = 1\nstep = [{nodes = 9, hours = 1}]", "key 'partition[0].step' should go from few nodes"),
        (
            'title = "mine"',
            'title = "mine"\nidentity = {variables = ["A"], source = "x"}',
            "key 'identity.variables[0]' is 'A'; a variable with its value,",
        ),
        ('name = "A"', 'name = "A B"', "key 'environment[0].name' is 'A B'; a name of a variable"),
        ('title = "mine"', 'title = "mine"\ncaches = "$HOME"', "key 'caches' is '$HOME'; a folder of one job, "),
        ('title = "mine"', 'title = "mine"\ncaches = "/tmp/$(id)/$SLURM_JOB_ID"', "a folder of one job, "),
    ):
        assert old in MINE
        (tmp_path / "mine.toml").write_text(MINE.replace(old, new))
        words = ["explain", "--base", "rocm-6.4.4", "--site", str(tmp_path / "mine.toml")]
        assert main(words) == ExitCode.BAD_INPUT, new
        told = capsys.readouterr().err
        assert (fault in told, told.count("\n")) == (True, 1), told
