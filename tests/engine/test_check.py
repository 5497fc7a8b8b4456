"""Real checks: real ld.so, real RCCL 2.13.4, a stand-in plugin on real libfabric; each break of the path turns red."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from lumiimg.engine.workspace import remove_tree
from tests.engine.conftest import Result, check, findings
from tests.shared.elf_builder import library
from tests.shared.programs import EVERYTHING, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.engine.engine import Engine


pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

PLUGIN = "/opt/aws-ofi-nccl/lib/librccl-net.so"


@pytest.mark.core
def test_an_rccl_without_a_plugin_is_a_no_and_its_own_line_proves_it(demo: Path) -> None:
    result = by_both(demo)
    assert result.code == ExitCode.NO
    assert result.data["path"]["rccl_version"] == "2.13.4"
    found = findings(result)
    assert found["rccl.no-plugin"]["severity"] == "problem"
    assert "No plugin found (librccl-net.so), using internal implementation" in found["rccl.no-plugin"]["evidence"][-1]
    remedy = "lumiimg build --base debian-13 --add netprobe --add aws-ofi-nccl"
    assert found["plugin.absent"]["remedy"][0].startswith(remedy)
    assert "would use TCP sockets" in unwrapped(result.err)


@pytest.mark.core
def test_the_plugin_layer_turns_the_loading_path_green(with_plugin: Path) -> None:
    result = by_both(with_plugin)
    found = findings(result)
    assert found["rccl.opens-plugin"]["severity"] == "ok"
    assert found["plugin.loads"]["severity"] == "ok"
    assert found["plugin.api"]["severity"] == "ok"
    path = result.data["path"]
    assert path["plugin_api"] == 6
    assert path["provider"] not in {None, "cxi"}
    assert path["libfabric"].startswith("/usr/lib/x86_64-linux-gnu/libfabric.so.1")
    assert any(line.startswith("libfabric.so.1 => /") for line in found["loader.lists"]["evidence"])
    # there is no NIC: loading is proved, the network is not
    assert result.code == ExitCode.UNDECIDED
    assert result.data["answer"] == "undecided"


def by_both(image: Path, env: dict[str, str] | None = None) -> Result:
    """Check with the container engine and with the kernel's own; compare the results and return the first."""
    results = [check(image, env={**(env or {}), **named}) for named in ({}, {"LUMIIMG_ENGINE": "namespaces"})]
    reported = []
    for result in results:
        seen = [(one["id"], one["severity"], one["level"], one["summary"]) for one in result.data["findings"]]
        assert result.data["level"] == "probe"
        reported.append((result.code, result.data["path"], [one for one in seen if one[0] != "probe.engine"]))
    assert reported[0] == reported[1]
    engines = [findings(result)["probe.engine"]["summary"] for result in results]
    assert engines[0].startswith(("probed with Apptainer ", "probed with SingularityCE "))
    assert engines[1].startswith("probed with namespaces of Linux ")
    assert "the engine of a cluster may bind more" in engines[1]
    return results[0]


def needs_what_is_not_there(path: Path) -> None:
    gone = library(path.with_name("libgone.so.7"))
    library(path, gone, source="int ncclNetPlugin_v6;")
    gone.unlink()


BREAKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no plugin symbols": (
        lambda path: library(path, source="int nothing_of_interest;"),
        "plugin.api",
        "exports net API none",
    ),
    "missing dependency": (needs_what_is_not_there, "plugin.loads", "libgone.so.7: cannot open shared object file"),
    "cut in the middle": (
        lambda path: path.write_bytes(Path("/bin/bash").read_bytes()[:20_000]),
        "plugin.crash",
        "signal 7",
    ),
}


@pytest.mark.core
@pytest.mark.parametrize(("make", "identity", "words"), BREAKS.values(), ids=BREAKS.keys())
def test_each_break_of_the_plugin_turns_red_with_the_loaders_words(
    with_plugin: Path, tmp_path: Path, make: Callable[[Path], object], identity: str, words: str
) -> None:
    """The broken file is bound over the good one, as a site may do: only a container shows it."""
    file = tmp_path / "broken.so"
    make(file)
    binds = {"APPTAINER_BIND": f"{file}:{PLUGIN}"}
    # the message is the loader's with either engine; a crash is reported through the engine
    is_by_both = EVERYTHING or identity == "plugin.crash"
    result = by_both(with_plugin, binds) if is_by_both else check(with_plugin, env=binds)
    assert result.code == ExitCode.NO
    problem = next(
        entry for entry in result.data["findings"] if entry["severity"] == "problem" and entry["id"] == identity
    )
    assert problem["level"] == "probe"
    assert any(words in line for line in [problem["summary"], *problem["evidence"]])
    assert ": NO: " in result.err


VARIABLES: dict[str, dict[str, str]] = {
    "a provider that is not there": {"FI_PROVIDER": "cxi"},
    "a plugin by its path": {"NCCL_NET_PLUGIN": PLUGIN},
    "no folder of the plugin": {"APPTAINERENV_LD_LIBRARY_PATH": "/nowhere"},
    "traps that silence RCCL": {
        "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_FILE": "/nowhere/nccl.%h",
        "NCCL_DEBUG_SUBSYS": "COLL",
        "NCCL_COMM_ID": "127.0.0.1:1",
    },
}


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=VARIABLES.keys())
def test_what_variables_do_to_the_plugin_is_found_by_both_engines(with_plugin: Path, variables: dict[str, str]) -> None:
    result = by_both(with_plugin, variables)
    if "NCCL_DEBUG_FILE" in variables:
        assert findings(result)["rccl.opens-plugin"]["severity"] == "ok"


def test_a_folder_gets_the_same_answer_as_its_image_and_newer_probes_where_its_own_are_older(
    engine: Engine, demo: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sand box"
    fakeroot = ["--fakeroot"] if os.geteuid() else []
    subprocess.run([engine.path, "build", *fakeroot, "--sandbox", folder, demo], capture_output=True, check=True)
    result = check(folder)
    assert result.code == ExitCode.NO
    assert set(findings(result)) == set(findings(check(demo)))
    # like an image that was built before the netprobe layer contained the simulation
    (folder / "opt/lumiimg/netprobe/bin/rcclsim").unlink()
    found = findings(check(folder, "--simulate-gpu"))
    assert found["simulated.network"]["severity"] == "problem"
    assert "compiled" in found["probe.engine"]["summary"]
    remove_tree(folder)


def test_probes_are_carried_in_where_the_image_has_none(bare: Path) -> None:
    result = check(bare)
    assert result.code == ExitCode.NO
    assert result.data["level"] == "probe"
    assert "compiled on this machine" in findings(result)["probe.engine"]["summary"]
    assert findings(result)["rccl.no-plugin"]["severity"] == "problem"


def test_a_bind_of_what_is_not_there_is_reported_and_the_files_are_checked_all_the_same(demo: Path) -> None:
    bind = {"SINGULARITY_BIND": "/var/spool/slurmd"}
    result = check(demo, env=bind)
    assert result.code == ExitCode.NO
    assert "/var/spool/slurmd) does not exist on this machine" in result.data["levels"]["probe"]
    asked = check(demo, "--level", "probe", env=bind)
    assert asked.code == ExitCode.MISSING_HERE
    assert asked.out == ""


@pytest.mark.core
def test_without_an_engine_the_files_are_checked_and_probe_is_missing_here(demo: Path, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "LUMIIMG_ENGINE": "no-such-engine"}
    result = check(demo, env=nothing)
    assert result.code == ExitCode.NO
    assert result.data["level"] == "static"
    assert "no working container engine" in result.data["levels"]["probe"]
    assert check(demo, "--level", "probe", env=nothing).code == ExitCode.MISSING_HERE


@pytest.mark.core
def test_an_old_plugin_is_taken_by_an_old_rccl_and_by_no_new_one(engine: Engine, with_old_plugin: Path) -> None:
    result = by_both(with_old_plugin)
    assert findings(result)["plugin.api"]["severity"] == "ok"
    assert findings(result)["rccl.opens-plugin"]["severity"] == "ok"
    assert result.data["path"]["plugin_api"] == 6
    program = "/opt/lumiimg/netprobe/bin/handshake"
    done = subprocess.run(
        [engine.path, "exec", with_old_plugin, program, "--accept", "10,9,8,7", "librccl-net.so"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 11
    assert "@probe none exported=" in done.stdout


@pytest.mark.core
def test_a_simulation_shows_what_rccl_would_choose_and_is_called_one(demo: Path, with_plugin: Path) -> None:
    """RCCL 2.13.4 reports it without a simulation, too, so the two can be compared."""
    without = check(demo, "--simulate-gpu")
    assert without.code == ExitCode.NO
    assert findings(without)["simulated.network"]["severity"] == "problem"
    assert findings(without)["simulated.network"]["evidence"][-1].endswith("Using network Socket")
    assert "see the findings marked `simulated`" in without.data["levels"]["probe"]
    with_it = check(with_plugin, "--simulate-gpu", "--verbose")
    assert with_it.code == ExitCode.UNDECIDED
    finding = findings(with_it)["simulated.network"]
    assert (finding["severity"], finding["level"]) == ("ok", "probe")
    assert "RCCL 2.13.4 takes" in finding["summary"]
    assert finding["evidence"][-1].endswith("Using network lumiimg stand-in")
    assert with_it.err.count("SIMULATION") == 1
    assert [run["name"] for run in with_it.data["probes"] if run["simulation"]] == ["rcclsim"]
