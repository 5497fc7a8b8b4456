"""Sites: the facts about a machine, and which site is used if none is named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct, structs

import lumiimg
from lumiimg.catalog.sites import find_site, site_names
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.text import ranges
from tests.shared import fabric_builder
from tests.shared.layer_builder import SITE
from tests.shared.lumi_node import LUMI_MASKS
from tests.shared.programs import unwrapped

HOME = {"HOME": "/nonexistent"}
Capture = pytest.CaptureFixture[str]


MINE = f"""\
{SITE}
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


# ALCF running-jobs-aurora.md, and frameworks/pytorch.md: socket 0 without core 0, socket 1 without core 52
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
    # with images of ROCm 7, jobs on several nodes hang with GPUDirect RDMA
    for base, has, lacks in (("rocm-6.4.4", of_6 | {"NCCL_SOCKET_IFNAME"}, of_7), ("rocm-7.0", of_7, of_6)):
        found = set(variables(base, "lumi"))
        assert has <= found
        # the last one is for torch, which is not requested
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
        output = " ".join(capsys.readouterr().out.split())
        assert find_site(name, HOME).title.split()[0] in output
        assert main(["show", name, "--json"]) == ExitCode.GOOD
        data = json.loads(capsys.readouterr().out)
        assert (data["kind"], data["name"], name in listed) == ("site", name, True)
        if name != "generic":
            assert (find_site(name, HOME).status, listed[name]["status"]) == ("documented", "documented")
            assert "never run anything on this machine" in output


def test_a_site_file_of_the_users_is_shown_and_a_wrong_one_is_one_line_with_the_key(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    assert main(["show", str(tmp_path / "mine.toml")]) == ExitCode.GOOD
    output = capsys.readouterr().out
    assert "GPU 0: 9-15; GPU 1: 1-7" in output
    assert "gpu: up to 4 nodes, 1 h" in output
    for old, new, fault in (
        (
            'name = "a driver"',
            'name = "a driver"\nversion = "6"',
            "key 'driver.version' is '6'; a version of the driver like 6.3.60300 is needed",
        ),
        ('glibc = "2.38"', 'glibc = "abc"', "key 'fabric.glibc' is 'abc'; a version like"),
        ('rocm = "rocm>=6.0,<8"', 'rocm = "python>=3"', "key 'driver.rocm' should be releases of ROCm"),
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
        ("hours = 1", "hours = 1\nleast_nodes = 5", "key 'partition[0].least_nodes' is 5, above the limit of 4 nodes"),
        ("hours = 1", "hours = 1\nstep = [{nodes = 9, hours = 1}]", "key 'partition[0].step' should go from few nodes"),
        (
            'arch = "gfx90a"',
            'identity = {variables = ["A"], source = "x"}',
            "key 'identity.variables[0]' is 'A'; a variable with its value,",
        ),
        ('name = "A"', 'name = "A B"', "key 'environment[0].name' is 'A B'; a name of a variable"),
        ('arch = "gfx90a"', 'caches = "$HOME"', "key 'caches' is '$HOME'; a folder of one job, "),
        ('arch = "gfx90a"', 'caches = "/tmp/$(id)/$SLURM_JOB_ID"', "a folder of one job, "),
    ):
        assert old in MINE
        (tmp_path / "mine.toml").write_text(MINE.replace(old, new))
        words = ["explain", "--base", "rocm-6.4.4", "--site", str(tmp_path / "mine.toml")]
        assert main(words) == ExitCode.BAD_INPUT, new
        output = capsys.readouterr().err
        assert (fault in output, output.count("\n")) == (True, 1), output


def keys(of: Struct, table: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the keys that a file can have, and whether they are required."""
    for key in structs.fields(of):
        value = getattr(of, key.name)
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, Struct) and key.encode_name != "step":
            yield from keys(first, f"{table}{key.encode_name}.")
        else:
            yield f"{table}{key.encode_name}", key.required


def test_the_page_about_sites_shows_each_key_and_which_are_required(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/extend/site.md").read_text()
    (text,) = re.findall(r"(?ms)^```toml\n(.*?)^```$", page)
    (tmp_path / "mine.toml").write_text(text)
    shown, table = {}, ""
    for line in text.splitlines():
        if found := re.match(r"\[{1,2}([a-z.]+)\]", line):
            table = f"{found[1]}."
        elif found := re.match(r"([a-z_]+) = ", line):
            shown[table + found[1]] = "optional" not in line if table else found[1] in {"title", "source", "date"}
    there = dict(keys(find_site(str(tmp_path / "mine.toml"), HOME)))
    assert there.keys() - shown.keys() == {"name", "vendor"}  # the file's name; and what AMD's GPUs do not need
    assert shown == {key: there[key] for key in shown}


def test_of_a_fabric_no_version_needs_to_be_known(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(r"(?m)^(slingshot|libfabric|glibc) = .*\n", "", MINE))
    assert main(["show", str(path)]) == ExitCode.GOOD
    assert "Slingshot not known, libfabric not known" in unwrapped(capsys.readouterr().out)
    assert main(["explain", "--base", "rocm-6.4.4", "--add", "pytorch", "--site", str(path)]) == ExitCode.GOOD
    assert "the host's Slingshot release is not known" in unwrapped(capsys.readouterr().out)


CARD = ["--base", "rocm-6.2.4", "--add", "vllm"]
SIGNS = ("LUMIIMG_SITE", "SLURM_CLUSTER_NAME", "LUMI_STACK_NAME", "LMOD_SYSTEM_NAME", "CLUSTER_NAME")


@pytest.fixture(autouse=True)
def _nothing_names_a_machine(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del clean_home
    for name in SIGNS:
        monkeypatch.delenv(name, raising=False)


def run_and_read(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    return code, unwrapped(out), unwrapped(err)


def test_the_cards_line_plans_the_plugin_and_the_fabric_for_lumi(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_and_read(["build", *CARD, "--dry-run"], capsys)
    assert code == ExitCode.GOOD
    assert "would build rocm-6.2.4 + fabric-bundled + aws-ofi-nccl + pytorch + vllm for lumi, fabric bundled" in out
    assert err == (
        "lumiimg: newer: vllm 0.18.0 on rocm-7.0: lumiimg build --recipe lumi-vllm "
        "lumiimg: no --site given: assuming lumi"
    )
    code, out, err = run_and_read(["explain", *CARD], capsys)
    assert (code, "fabric bundled, plugin aws-ofi-nccl" in out, "assuming lumi" in err) == (ExitCode.GOOD, True, True)


def test_the_option_comes_first_then_the_settings_the_machine_and_lumi(
    clean_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = clean_home / ".config/lumiimg/config.toml"
    config.parent.mkdir(parents=True)
    nothing = "no --site given: assuming lumi"
    for variables, settings, words, site, because in (
        ({}, "", [], "lumi", nothing),
        ({"SLURM_CLUSTER_NAME": "frontier"}, "", [], "frontier", "as SLURM_CLUSTER_NAME is frontier"),
        ({"LMOD_SYSTEM_NAME": "frontier"}, "", [], "frontier", "as LMOD_SYSTEM_NAME is frontier"),
        # signs of two machines count as none
        ({"LMOD_SYSTEM_NAME": "frontier", "LUMI_STACK_NAME": "LUMI"}, "", [], "lumi", nothing),
        ({"SLURM_CLUSTER_NAME": "lumi"}, "frontier", [], "frontier", "config.toml says"),
        ({"LUMIIMG_SITE": "generic"}, "frontier", [], "generic", "as LUMIIMG_SITE says"),
        ({"LUMIIMG_SITE": "generic"}, "frontier", ["--site", "lumi"], "lumi", ""),
    ):
        config.write_text(f'site = "{settings}"\n' if settings else "")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code, out, err = run_and_read(["explain", "--base", "rocm-6.4.4", "--fabric", "auto", *words], capsys)
        assert (code, f"on {site}" in out) == (ExitCode.GOOD, True), because
        assert (because in err) if because else not err


def test_a_site_of_the_users_own_is_recognised_and_a_broken_one_hides_none(
    clean_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = clean_home / ".config/lumiimg/sites"
    folder.mkdir(parents=True)
    identity = '[identity]\nvariables = ["CENTRE=ours"]\nnodes = ["ours[0-9]*"]\nsource = "us"\n'
    (folder / "ours.toml").write_text(f'title = "Ours"\nsource = "us"\ndate = 2026-11-24\narch = "gfx90a"\n{identity}')
    (folder / "broken.toml").write_text("title = 1\n")
    monkeypatch.setenv("CENTRE", "ours")
    assert "lumiimg: site ours, as CENTRE is ours" in run_and_read(["explain", "--base", "rocm-6.4.4"], capsys)[2]


def test_what_is_there_is_judged_for_no_machine_that_nothing_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LUMI's driver must not decide the answer about an image on another machine."""
    image = fabric_builder.bundled(tmp_path / "image")
    (image / "opt/rocm/.info").mkdir(parents=True)
    (image / "opt/rocm/.info/version").write_text("5.7.0-1\n")
    words = ["check", str(image), "--level", "static"]
    code, out, err = run_and_read(words, capsys)
    assert (code, err, "image.driver" in out) == (ExitCode.GOOD, "", False)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "lumi")
    code, out, err = run_and_read(words, capsys)
    assert (code, "does not support it" in out) == (ExitCode.NO, True)
    assert err == "lumiimg: site lumi, as SLURM_CLUSTER_NAME is lumi (--site NAME for another)"
    # the snapshot is of a node other than this one
    node = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"), host="x1")
    assert "site lumi" not in run_and_read([*words, "--host", str(node)], capsys)[2]


def test_a_short_name_is_the_newest_of_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for short, base in (("rocm-7.2", "rocm-7.2.4"), ("rocm-6", "rocm-6.4.4"), ("rocm-7.0", "rocm-7.0")):
        main(["explain", "--base", short, "--json"])
        assert json.loads(capsys.readouterr().out)["base"] == base
    main(["explain", "--base", "rocm-6.4.4", "--add", "vllm=0.12.0", "--json"])  # one equals sign is two
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert ("vllm", "0.12.0") in [(layer["name"], layer["version"]) for layer in layers]


OF_A_MACHINE = r"lumiimg (?:adapt|bind|build|explain) [^`]*"


def test_every_command_that_is_proposed_is_for_the_machine_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the machine was named; a site file by a path that is valid in another folder, or as it was written."""
    file = tmp_path / "ours.toml"
    file.write_text((Path(lumiimg.__file__).parent / "catalog/sites/frontier.toml").read_text())
    old, bare = fabric_builder.image(tmp_path / "old", glibc=37), fabric_builder.image(tmp_path / "bare", plugin=False)
    then = fabric_builder.snapshot(fabric_builder.host(tmp_path / "then", glibc=36))
    host = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"))
    monkeypatch.setenv("LUMIIMG_SITE", "frontier")
    for line in (
        ["explain", "--base", "rocm-7.0", "--add", "pytorch"],
        ["explain", "--base", "rocm-7.2.4", "--add", "vllm", "--fabric", "bundled"],
        ["explain", "--add", "lightning", "--offline"],
        ["check", str(old), "--level", "static", "--host", str(host)],
        ["check", str(bare), "--level", "static"],
        ["drift", str(then), str(host), "--image", str(old), "--site", "frontier"],
    ):
        for site, words in (("frontier", []), (str(file), ["--site", str(file)])):
            out = run_and_read([*line, *words], capsys)[1]
            proposed = re.findall(OF_A_MACHINE, out)
            assert proposed, out
            for one in proposed:
                assert (f"--site {site}" in one, "IMAGE" in one) == (True, False), one


def test_settings_that_name_a_site_that_is_not_there_are_named(
    clean_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_home / ".config/lumiimg").mkdir(parents=True)
    (clean_home / ".config/lumiimg/config.toml").write_text('site = "nosuch"\n')
    code, _, err = run_and_read(["explain", "--base", "rocm-6.4.4"], capsys)
    assert (code, "config.toml: names a site 'nosuch', which does not exist; known: alps" in err) == (2, True)
