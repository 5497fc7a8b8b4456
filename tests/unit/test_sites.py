"""What is written down of machines: cores, environment, limits; and what a user's own site file may not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumiimg.catalog.sites import find_site, site_names
from lumiimg.cli.main import main
from lumiimg.cluster.job.topology import ranges
from lumiimg.errors import ExitCode
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
rocm = ["rocm>=6.1,<7.1"]
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


def test_the_cores_near_a_gpu_of_lumi_are_those_of_its_published_masks() -> None:
    binding = find_site("lumi", HOME).binding
    assert binding is not None
    masks = [sum(1 << core for core in binding.cores_near(gpu)) for gpu in range(8)]
    assert masks == list(LUMI_MASKS)


def test_frontier_has_the_cores_that_olcf_prints_for_each_gpu() -> None:
    # pytorch_frontier.rst: `core affinity … 1 2 3 4 5 6 7, Suggested GPU 4`, and so on
    binding = find_site("frontier", HOME).binding
    assert binding is not None
    assert [binding.cores_near(gpu)[0] for gpu in (4, 2, 6, 7)] == [1, 17, 33, 41]
    assert all(len(binding.cores_near(gpu)) == 7 for gpu in range(8))


# ALCF running-jobs-aurora.md, and frameworks/pytorch.md: of socket 0 without core 0, of socket 1 without core 52
AURORA_LISTS = {
    False: "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100",
    True: "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79",
}


@pytest.mark.parametrize("sparing", [False, True])
def test_the_cores_near_the_tiles_of_aurora_are_alcfs_lists(sparing: bool) -> None:
    binding = find_site("aurora", HOME).binding
    assert binding is not None
    cores = [ranges(binding.cores_near(gpu, sparing=sparing)) for gpu in range(12)]
    assert ":".join(cores) == AURORA_LISTS[sparing]


@pytest.mark.parametrize(
    ("site", "partition", "nodes", "hours"),
    [
        ("frontier", "batch", 91, 2),
        ("frontier", "batch", 92, 6),
        ("frontier", "batch", 184, 12),
        ("aurora", "prod", 1024, 12),
        ("aurora", "prod", 2000, 24),
        ("alps", "debug", 1, 1.5),
        ("lumi", "dev-g", 1, 3),
    ],
)
def test_how_long_a_job_can_take_depends_on_its_nodes(site: str, partition: str, nodes: int, hours: float) -> None:
    (found,) = [part for part in find_site(site, HOME).partitions if part.name == partition]
    assert found.hours_for(nodes) == hours


def test_a_fabric_whose_c_library_nobody_documented_is_not_decided(capsys: Capture) -> None:
    assert main(["explain", "--base", "rocm-6.4.4", "--site", "frontier", "--json"]) == ExitCode.GOOD
    data = json.loads(capsys.readouterr().out)
    (gate,) = [rule for rule in data["rules"] if rule["id"] == "glibc-gate"]
    assert (data["fabric"], gate["outcome"]) == ("bundled", "unknown")
    assert "lumiimg host scan" in gate["because"]


@pytest.mark.parametrize(
    ("base", "has", "lacks"),
    [
        ("rocm-6.4.4", {"NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME"}, {"NCCL_DMABUF_ENABLE", "SLURM_NETWORK"}),
        # with its images jobs on several nodes hang with GPUDirect RDMA
        ("rocm-7.0", {"NCCL_DMABUF_ENABLE", "SLURM_NETWORK"}, {"NCCL_NET_GDR_LEVEL"}),
    ],
)
def test_the_environment_of_jobs_goes_by_what_the_image_has(
    base: str, has: set[str], lacks: set[str], capsys: Capture
) -> None:
    assert main(["explain", "--base", base, "--site", "lumi", "--json"]) == ExitCode.GOOD
    found = {variable["name"] for variable in json.loads(capsys.readouterr().out)["environment"]}
    assert has <= found
    assert not lacks & found
    # of torch, which is not asked for
    assert "MIOPEN_USER_DB_PATH" not in found


@pytest.mark.parametrize(
    ("site", "add", "value"),
    [
        ("lumi", "mpich", "pmi2"),
        ("lumi", "rccl-tests", "pmi2"),
        ("lumi", "netprobe", None),
        ("frontier", "mpich", None),
    ],
)
def test_jobs_are_told_how_srun_starts_the_mpi_of_the_image(
    site: str, add: str, value: str | None, capsys: Capture
) -> None:
    words = ["explain", "--base", "rocm-6.4.4", "--add", add, "--fabric", "bundled", "--site", site]
    assert main([*words, "--json"]) == ExitCode.GOOD
    found = {variable["name"]: variable["value"] for variable in json.loads(capsys.readouterr().out)["environment"]}
    assert found.get("SLURM_MPI_TYPE") == value
    main([*words, "--verbose"])
    assert ("    export SLURM_MPI_TYPE=pmi2\n" in capsys.readouterr().out) is (value is not None)


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


def test_a_site_file_of_the_users_is_shown(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    assert main(["show", str(tmp_path / "mine.toml")]) == ExitCode.GOOD
    told = capsys.readouterr().out
    assert "GPU 0: 9-15; GPU 1: 1-7" in told
    assert "gpu: up to 4 nodes, 1 h" in told


def test_a_wrong_site_is_one_line_with_the_key(tmp_path: Path, capsys: Capture) -> None:
    for old, new, fault in (
        ('glibc = "2.38"', 'glibc = "abc"', "key 'fabric.glibc' is 'abc', no version"),
        ('rocm = ["rocm>=6.1,<7.1"]', 'rocm = ["python>=3"]', "key 'driver.rocm' should be releases of ROCm"),
        ('rocm = ["rocm>=6.1,<7.1"]', "rocm = []", "key 'driver.rocm' should be releases of ROCm"),
        ("near = [1, 0]", "near = [1, 7]", "key 'binding.near' names a group that 16 cores in groups of 8 do not have"),
        ("near = [1, 0]", "near = [1, 1]", "key 'binding.near' names a group twice"),
        ("near = [1, 0]", 'near = ["1"]', "key 'binding.near' should be an array of whole numbers"),
        (
            "reserved = [0, 8]",
            "reserved = [16]",
            "key 'binding.reserved' names core 16, that a node with 16 does not have",
        ),
        (
            "near = [1, 0]",
            "near = [1, 1]\ngpus_of_group = 8",
            "key 'binding.reserved' leaves no core of group 1, which is near GPU 0",
        ),
        ("near = [1, 0]", "near = [1, 1, 1]\ngpus_of_group = 2", "key 'binding.near' names a group more than 2 times"),
        (
            "near = [1, 0]",
            'near = [1, 0]\nspared = "9-15"\nspared_for = "x"',
            "leaves no core of group 1, which is near GPU 0",
        ),
        ("near = [1, 0]", 'near = [1, 0]\nspared = "7-3"\nspared_for = "x"', "has '7-3', no core and no range"),
        ("near = [1, 0]", 'near = [1, 0]\nspared = "1"', "key 'binding.spared_for' is missing"),
        ("hours = 1", "hours = 1\nleast_nodes = 5", "key 'partition[0].least_nodes' is 5, above the 4 nodes"),
        ("hours = 1", "hours = 1\nstep = [{nodes = 9, hours = 1}]", "key 'partition[0].step' should go from few nodes"),
        (
            'title = "mine"',
            'title = "mine"\nstatus = "new"',
            "key 'status' is 'new'; allowed: documented, run, unproved, proved",
        ),
        (
            'title = "mine"',
            'title = "mine"\nmeasured = [{name = "A", effect = "odd"}]',
            "'odd'; allowed: inert, harmful",
        ),
        (
            'title = "mine"',
            'title = "mine"\nidentity = {variables = ["A"], source = "x"}',
            "key 'identity.variables' has 'A', no variable like",
        ),
        ('rocm = ["rocm>=6.1,<7.1"]', 'rocm = ["rocm>=6.1"]\nrank = "sure"', "key 'driver.rank' is 'sure'; allowed"),
        (
            'rocm = ["rocm>=6.1,<7.1"]',
            'rocm = ["rocm>=6.1"]\nevidence = [{rocm = "seven", text = "x", source = "x", date = 2026-11-24}]',
            "'seven', no release of ROCm",
        ),
        ('name = "A"', 'name = "A B"', "key 'environment[0].name' is 'A B', no name of a variable"),
        ('nodes = "any"', 'nodes = "two"', "key 'environment[0].nodes' is 'two'; allowed: any, one, several"),
        ("hours = 1", "hours = 0", "key 'partition[0].hours' is 0; it should be above 0"),
        ("hours = 1", "hour = 1", "key 'partition[0].hours' is missing"),
        ('title = "mine"', 'title = "mine"\ncaches = "$HOME"', "key 'caches' is '$HOME', no folder of one job"),
        ('title = "mine"', 'title = "mine"\ncaches = "/tmp/$USER"', "key 'caches' is '/tmp/$USER', no folder of one"),
        ('title = "mine"', 'title = "mine"\ncaches = "/tmp/a/../$SLURM_JOB_ID"', "no folder of one job"),
        ('title = "mine"', 'title = "mine"\ncaches = "/tmp/$(id)/$SLURM_JOB_ID"', "no folder of one job"),
    ):
        assert old in MINE
        (tmp_path / "mine.toml").write_text(MINE.replace(old, new))
        words = ["explain", "--base", "rocm-6.4.4", "--site", str(tmp_path / "mine.toml")]
        assert main(words) == ExitCode.BAD_INPUT, new
        told = capsys.readouterr().err
        assert (fault in told, told.count("\n")) == (True, 1), told
