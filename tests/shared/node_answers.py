"""Answers of nodes to a check of many nodes, and reports made from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lumiimg.check.pipeline import LevelResults
from lumiimg.check.static.files import HostFit
from lumiimg.check.static.process import StaticResult
from lumiimg.cluster.nodes.node import Library, NodeAnswer, NodeAnswers, gather, write_answer
from lumiimg.cluster.nodes.report import NodesReport, build_report
from lumiimg.core.findings import Finding, Level, Remedy, Severity
from lumiimg.fabric.path import FabricPath
from lumiimg.host.image_manifest import CarriedManifest
from lumiimg.host.snapshot import Nic
from lumiimg.report.json_output import json_text
from tests.shared.checks import unread

RUN = "of-this-check"
CXI = Library("libcxi.so.1.5.0", "/usr/lib64/libcxi.so.1.5.0", "aa" * 20)
FABRIC = Library("libfabric.so.1.18.2", "/opt/cray/libfabric.so.1.18.2", "bb" * 20)


def found(*texts: str) -> tuple[Finding, ...]:
    """Return findings of probes, each given as `id severity`."""
    return tuple(
        Finding(text.split()[0], Severity(text.split()[1]), Level.PROBE, "as it was", remedy=(Remedy("do that"),))
        for text in texts
    )


WELL = NodeAnswer(
    RUN,
    "",
    findings=found("provider.cxi ok", "rccl.runs ok"),
    fabric=FabricPath(
        rccl="/opt/rocm/lib/librccl.so.1", rccl_version="2.20.5", plugin="/l/librccl-net.so", provider="cxi"
    ),
    libraries=(FABRIC, CXI),
    engine="SingularityCE 4.1.3",
    kernel="6.4.0-150600.23.73_15.0.14-cray_shasta_c",
    gpu_driver="6.3.60300",
    gpus=8,
    nics=tuple(Nic(f"cxi{n}", 200000, link_is_up=True, firmware="1.5.53") for n in range(4)),
)
OTHER_CXI = replace(WELL, libraries=(FABRIC, Library("libcxi.so.1.7.0", CXI.path, "cc" * 20)))


def answer(folder: Path, node: str, given: NodeAnswer = WELL, run: str = RUN) -> None:
    """Write the answer of a node."""
    write_answer(folder, replace(given, run=run, node=node))


CONTEXT = unread(Path("image.sif"))
FILES = HostFit("image.sif", None, StaticResult(), None, None, None, None, (), (), (), CarriedManifest(None))
"""The static result for an image that nothing has been read from."""


def levels(
    gathered: NodeAnswers, why: str = "skipped (not requested)", *, wanted_run: bool = False
) -> LevelResults[NodeAnswers]:
    """Return levels of which only the probes were taken."""
    return LevelResults(gathered, None, why, wanted_run=wanted_run, of_probes="done")


def summed(folder: Path, job: list[str]) -> NodesReport:
    return build_report(CONTEXT, FILES, "7", levels(gather(folder, RUN, job, started=job)), ("srun: error: x",))


def saved(folder: Path, name: str, job: list[tuple[str, NodeAnswer | None]], image: str = "image.sif") -> Path:
    """Write a report on nodes as `check --nodes --json` prints it; None stands for a node without an answer."""
    (answers := folder / f"of {name}").mkdir()
    for node, given in job:
        if given is not None:
            answer(answers, node, given)
    report = replace(summed(answers, [node for node, _ in job]), image=str(Path(image).absolute()))
    (folder / name).write_text(json_text("check-nodes", report))
    return folder / name
