"""The run level: which collective is run for an image, and what its log and table prove, on one node and on two.

The logs imitate those of RCCL and its plugins; tests/engine/test_run.py runs the programs themselves.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from lumiimg.catalog.sites import find_site
from lumiimg.check.answer import decide, merge_levels, sentence
from lumiimg.check.context import open_for_check
from lumiimg.check.probe.container import Container, ProbePrograms
from lumiimg.check.run.collective import LOGS, MOUNTED, Collective, CollectiveProgram, choose, missing_here, prepare
from lumiimg.check.run.execution import Ranks, RunResult, judge, run_collective
from lumiimg.check.static.process import StaticResult
from lumiimg.core.findings import Answer, Finding, Level, Severity
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.process import Completed
from lumiimg.fabric.path import FabricPath
from lumiimg.host.job_process import JobProcess
from lumiimg.image import open_image
from lumiimg.inventory.components import Inventory
from lumiimg.resolve.stack import stack_of
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import rocm_image
from tests.shared.job_deaths import DEATHS, died
from tests.shared.joblog import bandwidth_table
from tests.shared.programs import sampled

NO_NIC = "this machine has no Slingshot NIC (/dev/cxi*)"
TOOLS = ProbePrograms("/opt/lumiimg-probe", (("/scratch", "/opt/lumiimg-probe"),), "compiled")
ENGINE = Engine(Path("/usr/bin/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())
RCCL = "/opt/rocm/lib/librccl.so.1"

LEFT = tomllib.loads((Path(__file__).parents[1] / "fixtures/collectives.toml").read_text())
NETWORKS: dict[str, str] = LEFT["networks"]
NAMES = {"cxi": "AWS Libfabric", "no plugin": "Socket", "no VNI": "Socket"}


def write_logs(
    folder: Path, network: str, *, nodes: int, ranks: int, version: str = "2.22.3", apart: bool = False
) -> Path:
    """Write the logs of each rank of a job; `apart`: each node is its own job, as with the wrong --mpi."""
    (folder / LOGS).mkdir()
    local = ranks // nodes
    for rank in range(ranks):
        prefix = f"nid00000{rank // local + 1}:{4000 + rank}:{4000 + rank} [{rank % local}] "
        all_ranks, all_nodes, number = (local, 1, rank % local) if apart else (ranks, nodes, rank)
        lines = f"NCCL INFO RCCL version {version}+hip6.4 HEAD:abc\n" + NETWORKS[network]
        if network in NAMES:
            lines += (
                f"NCCL INFO comm 0x55e2 rank {number} nRanks {all_ranks} nNodes {all_nodes} localRanks {local} "
                f"localRank {rank % local} MNNVL 0\n"
            )
            via = f"[send] via NET/{NAMES[network]}/0" if all_nodes > 1 else "via P2P/IPC"
            lines += (
                f"NCCL INFO Channel 00/0 : {number}[0] -> {(number + local) % ranks}[0] {via} comm 0x55e2 nRanks 16\n"
            )
            lines += "NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
        text = "".join(f"{prefix}{line}\n" for line in lines.splitlines())
        (folder / LOGS / f"nccl.nid00000{rank // local + 1}.{4000 + rank}").write_text(text)
    return folder / LOGS


def ran(
    folder: Path,
    network: str,
    *,
    nodes: int,
    gpus: int = 8,
    output: str | None = None,
    exit_code: int = 0,
    inconclusive: str | None = None,
    busbw: float = 86.0,
    program: CollectiveProgram = CollectiveProgram.OWN,
    **how: bool | str,
) -> RunResult:
    collective = Collective(program, ("x",), gpus, nodes, RCCL)
    logs = write_logs(folder, network, nodes=nodes, ranks=gpus * nodes, **how)  # type: ignore[arg-type]
    output = bandwidth_table(nodes, gpus * nodes, busbw) if output is None else output
    (logs / "output.log").write_text(output)
    ended = Completed(("x",), exit_code, output)
    collective = dataclasses.replace(collective, version="2.22.3", inconclusive=inconclusive)
    return judge(logs, ended, collective, find_site("lumi", {}))


def by_id(result: RunResult) -> dict[str, Finding]:
    assert all(finding.level is Level.RUN for finding in result.findings.found)
    return {finding.id: finding for finding in result.findings.found}


def answer(result: RunResult, *below: Finding) -> tuple[Answer, str]:
    findings = merge_levels([], below, result.findings.found)
    reported = decide(findings, FabricPath(), level=Level.RUN, level_was_asked_for=False)
    return reported, sentence(reported, findings, Level.RUN)


# ---- what a collective proves


def test_a_collective_over_slingshot_is_green_whatever_was_open_before(tmp_path: Path) -> None:
    result = ran(tmp_path, "cxi", nodes=2)
    network = by_id(result)["run.network"]
    assert network.severity is Severity.OK
    assert "16 ranks on 2 nodes: AWS Libfabric on the provider cxi carried the traffic" in network.summary
    assert any("via NET/AWS Libfabric" in line for line in network.evidence)
    assert by_id(result)["run.bandwidth"].severity is Severity.OK
    assert "86 GB/s at 256 MiB" in by_id(result)["run.bandwidth"].summary
    below = (
        Finding("plugin.init", Severity.UNKNOWN, Level.PROBE, "open"),
        Finding("plugin.absent", Severity.PROBLEM, Level.STATIC, "not in the files"),
    )
    green = (Answer.NO_OBSTACLE, "no obstacle found at level run: a real collective went over Slingshot")
    assert answer(result, *below) == green
    kept = merge_levels([], below, result.findings.found)
    assert [f.severity for f in kept if f.level is not Level.RUN] == [Severity.INFO, Severity.INFO]
    assert result.outcome.measurements[0].best_gb_s == 86.0


def test_ranks_that_left_no_log_are_missing_from_the_proof(tmp_path: Path) -> None:
    ran(tmp_path, "cxi", nodes=2)
    for file in (tmp_path / LOGS).glob("nccl.nid000002.*"):
        file.unlink()
    collective = Collective(CollectiveProgram.OWN, ("x",), 8, 2, RCCL)
    ended = Completed(("x",), 0, bandwidth_table(2, 16, 86.0))
    result = judge(tmp_path / LOGS, ended, dataclasses.replace(collective, version="2.22.3"), None)
    network = by_id(result)["run.network"]
    assert network.severity is Severity.UNKNOWN
    assert "8 of 16 ranks left a log" in network.summary
    assert answer(result)[0] is Answer.UNDECIDED


def test_a_run_has_what_a_job_on_the_site_sets_unless_it_is_set_here(tmp_path: Path) -> None:
    root = rocm_image(tmp_path / "image", "6.4.4")
    apptainer, lumi = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset()), find_site("lumi", {})
    mine = {"NCCL_NET_GDR_LEVEL": "SYS", "APPTAINERENV_FI_CXI_DISABLE_HOST_REGISTER": "1"}
    with open_image(root) as image:
        stack = stack_of(Inventory(image))
    several = missing_here(apptainer, stack, lumi, mine, nodes=2)
    one = missing_here(apptainer, stack, lumi, {}, nodes=1)
    assert missing_here(apptainer, stack, None, mine, nodes=2) == ()
    names = {variable.name for variable in several}
    assert "FI_MR_CACHE_MONITOR" in names
    assert names.isdisjoint({"NCCL_NET_GDR_LEVEL", "FI_CXI_DISABLE_HOST_REGISTER"}), "whoever has set one meant it"
    assert not any("$" in variable.value or variable.name.startswith("SLURM_") for variable in (*several, *one))
    old = {"SINGULARITYENV_FI_MR_CACHE_MONITOR": "memhooks"}
    kept = missing_here(apptainer, stack, lumi, old, nodes=2)
    ce = missing_here(dataclasses.replace(apptainer, kind=EngineKind.SINGULARITY), stack, lumi, mine, nodes=2)
    assert "FI_MR_CACHE_MONITOR" not in {variable.name for variable in kept}, "Apptainer reads the other's names, too"
    assert "FI_CXI_DISABLE_HOST_REGISTER" in {variable.name for variable in ce}, "SingularityCE passes over Apptainer's"
    started: dict[str, str] = {}

    def launch(_: object, environment: Mapping[str, str], __: object) -> Completed:
        started.update(environment)
        return Completed(("x",), 0, "")

    (shared := tmp_path / "shared").mkdir()
    static = StaticResult(FabricPath(rccl=RCCL))
    with open_for_check(root, mine, site=lumi) as context:
        container = Container(apptainer, root, mine, TOOLS)
        ranks = Ranks(launch, 2, 8, None, None)
        result = run_collective(container, context, static, shared, ranks, without="NCCL_CROSS_NIC")
    assert started["APPTAINERENV_FI_MR_CACHE_MONITOR"] == "userfaultfd"
    assert started["NCCL_NET_GDR_LEVEL"] == "SYS"
    finding = by_id(result)["run.environment"]
    assert finding.severity is Severity.INFO
    assert "FI_MR_CACHE_MONITOR=userfaultfd" in finding.summary


BAD, OPEN, GOOD = Severity.PROBLEM, Severity.UNKNOWN, Severity.OK
ANSWERS = {BAD: Answer.NO, OPEN: Answer.UNDECIDED, GOOD: Answer.NO_OBSTACLE}


@pytest.mark.parametrize("case", LEFT["case"], ids=lambda case: case["name"])
def test_what_a_collective_left_decides_no_more_than_it_shows(case: dict[str, Any], tmp_path: Path) -> None:
    how: dict[str, Any] = {"nodes": 2} | case
    name, network, identity, severity = (how.pop(key) for key in ("name", "network", "finds", "severity"))
    severity, says = Severity(severity), how.pop("says", ())
    busbw, wrong = how.pop("table", (0, 0))
    if "output" in how:
        how["output"] = how["output"].replace("{table}", bandwidth_table(2, 16, busbw, wrong=wrong))
    if "program" in how:
        how["program"] = CollectiveProgram(how["program"])
    result = ran(tmp_path, network, **how)
    finding = by_id(result)[identity]
    assert finding.severity is severity
    message = " ".join((finding.summary, finding.cause or "", *finding.remedy[:1]))
    assert [words for words in says if words not in message] == []
    decided, words = answer(result)
    assert decided is ANSWERS[severity]
    if severity is OPEN:  # what the probes saw stands
        assert answer(result, Finding("plugin.listen", BAD, Level.PROBE, "it failed"))[0] is Answer.NO
    if identity == "run.other-rccl":
        assert len(result.findings.found) == 1
        listens = Finding("provider.cxi", GOOD, Level.PROBE, "it listens")
        assert answer(result, listens)[0] is Answer.UNDECIDED
    if name == "sockets":
        assert finding.remedy
        assert words == "NO: a real collective did not go over Slingshot"
    assert name != "slow" or "slower than it should be" in words


@pytest.mark.parametrize(("death", "nodes"), sampled(product(DEATHS, (1, 2)), 24))
def test_no_run_in_which_a_rank_died_is_ok_whatever_its_launcher_says(death: str, nodes: int, tmp_path: Path) -> None:
    output = bandwidth_table(nodes, nodes, 86.0) + "\n".join(died(death, 0)) + "\n"
    result = ran(tmp_path, "cxi", nodes=nodes, gpus=1, output=output)
    assert {finding.severity for finding in result.findings.found if finding.id != "run.bandwidth"} <= {OPEN, BAD}
    assert {"run.failed", "run.hang"} & set(by_id(result))
    assert answer(result)[0] is not Answer.NO_OBSTACLE


def test_one_node_shows_what_rccl_selects_and_that_two_would_decide(tmp_path: Path) -> None:
    result = ran(tmp_path, "cxi", nodes=1, inconclusive=NO_NIC)
    assert "run.network" not in by_id(result), "nothing crossed a network"
    selected = by_id(result)["run.selected"]
    assert selected.severity is Severity.OK
    assert selected.remedy[0].startswith("two nodes would decide it")
    assert answer(result)[0] is Answer.UNDECIDED
    listens = Finding("provider.cxi", Severity.OK, Level.PROBE, "listens")
    report, words = answer(result, listens)
    assert report is Answer.NO_OBSTACLE
    assert words.startswith("no obstacle found at level probe:"), "the run adds nothing to what the probe proved"


@pytest.mark.parametrize("busbw", [0.0, 1400.0], ids=["as nccl-tests prints it", "of its memory"])
def test_one_rank_sends_nothing_and_has_no_bandwidth(tmp_path: Path, busbw: float) -> None:
    result = ran(tmp_path, "cxi", nodes=1, gpus=1, busbw=busbw)
    assert "run.bandwidth" not in by_id(result)
    (measured,) = result.outcome.measurements
    assert (measured.ranks, measured.wrong, measured.best_gb_s, measured.average_gb_s) == (1, 0, None, None)


def hangs(folder: Path, output: str, *, timed_out: bool, began: Sequence[str] = ()) -> Finding:
    (folder / LOGS).mkdir(parents=True)
    for host in began:
        (folder / LOGS / f"nccl.{host}.4000").write_text(
            f"{host}:1:1 [0] NCCL INFO Bootstrap : Using hsn0:10.1.1.1<0>\n"
        )
    (folder / LOGS / "output.log").write_text(output)
    ended = Completed(("x",), 143 if timed_out else 16, output, timed_out=timed_out)
    collective = Collective(CollectiveProgram.TORCH, ("x",), 8, 2, RCCL)
    result = judge(folder / LOGS, ended, dataclasses.replace(collective, version="2.22.3"), None)
    return by_id(result)["run.hang"]


def test_a_hang_while_no_rank_of_a_node_showed_itself_says_nothing_of_the_image(tmp_path: Path) -> None:
    waiting = "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    meeting = "@probe timeout rank=8 seconds=300 during=meeting\n"
    for number, (output, timed_out) in enumerate([(waiting, True), (meeting, False)]):
        hang = hangs(tmp_path / str(number), output, timed_out=timed_out)
        assert hang.severity is Severity.UNKNOWN
        assert "no rank appeared on 2 of 2 nodes" in hang.summary
    assert "did not return from meeting" in hang.summary
    ranks = (
        bandwidth_table(2, 16, 86).partition("#  ")[0] + "#  Rank  0 Group  0 Pid 40 on nid000001 device 0 [none] CPU\n"
    )
    assert hangs(tmp_path / "table", ranks, timed_out=True).severity is Severity.PROBLEM
    waits = "@probe timeout seconds=300 during=communicator\n"
    one = hangs(tmp_path / "one", waits, timed_out=False, began=["nid000001"])
    assert one.severity is Severity.UNKNOWN
    assert "no rank appeared on 1 of 2 nodes" in one.summary
    both = hangs(tmp_path / "both", waits, timed_out=False, began=["nid000001", "nid000002"])
    assert both.severity is Severity.PROBLEM


# ---- which collective is run for an image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a loader, and an RCCL in ROCm's folder."""
    root = tmp_path / "root"
    (root / "lib64").mkdir(parents=True)
    (root / "lib64/ld-linux-x86-64.so.2").write_bytes(Path("/lib64/ld-linux-x86-64.so.2").read_bytes())
    library(root / RCCL.lstrip("/"))
    (root / "etc").mkdir()
    return root


def chosen(root: Path, *, nodes: int = 1, job: JobProcess | None = None) -> Collective:
    static = StaticResult(FabricPath(rccl=RCCL, rccl_version="2.22.3"), job=job)
    with open_image(root) as image:
        return choose(image, static, TOOLS, gpus=8, nodes=nodes)


def test_torch_is_run_by_the_python_that_has_it(root: Path) -> None:
    job = JobProcess("/opt/venv/bin/python3", framework="torch")
    found = chosen(root, nodes=2, job=job)
    assert (found.program, found.words[0]) == (CollectiveProgram.TORCH, "/opt/venv/bin/python3")
    assert found.words[-1] == "--slurm"
    assert chosen(root, job=dataclasses.replace(job, is_program=False)).program is CollectiveProgram.OWN


def test_the_command_is_the_same_on_every_node_and_writes_into_the_shared_folder(root: Path, tmp_path: Path) -> None:
    (shared := tmp_path / "shared, folder").mkdir()
    prepare(shared)
    assert (shared / LOGS).is_dir()
    container = Container(ENGINE, Path("image.sif"), {}, TOOLS)
    argv = chosen(root, nodes=2).argv
    words = [str(word) for word in container.words(argv, writable=((shared, MOUNTED),))]
    mounts = [word for before, word in pairwise(words) if before == "--mount"]
    assert mounts == [
        "type=bind,source=/scratch,destination=/opt/lumiimg-probe,ro",
        f'type=bind,"source={shared}",destination=/opt/lumiimg-run',
    ]
    inside = words[words.index("image.sif") + 1 :]
    assert inside[:2] == ["/usr/bin/env", "NCCL_DEBUG=INFO"]
    assert "NCCL_DEBUG_FILE=/opt/lumiimg-run/logs/nccl.%h.%p" in inside
    own = ["/opt/lumiimg-probe/allreduce", "--folder", "/opt/lumiimg-run/meeting", "--local", "8", "--timeout", "300"]
    assert inside[-9:] == [*own, "--slurm", RCCL]
    alone = chosen(root).argv
    assert "--slurm" not in alone
