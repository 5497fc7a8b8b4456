"""What `lumiimg log` says: the verdict, the line that proves it, the cause, the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.errors import one_line
from lumiimg.nccl.report import Confidence, Verdict
from lumiimg.report.console import console

if TYPE_CHECKING:
    from lumiimg.nccl.report import Evidence, LogReport

_SENTENCES = {
    Verdict.OFI_CXI: "the traffic went over Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "the traffic went over EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "the OFI plugin was used, but not on Slingshot",
    Verdict.SOCKET: "the traffic went over TCP sockets, not over the fast network",
    Verdict.IB: "the traffic went over InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "the net plugin was not found; the log ends before a network is chosen",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin was loaded and failed to start",
    Verdict.INTRA_NODE_ONLY: "one node only: nothing crossed a network",
    Verdict.NONE: "this log does not tell which network was used",
    Verdict.MIXED: "ranks used different networks",
}
_SELECTED = {
    Verdict.OFI_CXI: "Slingshot, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_EFA: "EFA, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_OTHER: "the OFI plugin was used; the log does not name its provider: Slingshot or TCP",
}
_GOOD = {Verdict.OFI_CXI, Verdict.OFI_EFA, Verdict.IB, Verdict.INTRA_NODE_ONLY}
_CONFIDENCE = {Confidence.PROVED: "proved by the log", Confidence.LIKELY: "likely", Confidence.UNKNOWN: "not certain"}
_CAUSES_SHOWN = 3
_LINES_SHOWN = 3


def print_log(report: LogReport, *, stderr: bool = False) -> None:
    """Print the report for a person."""
    out = console(stderr=stderr)
    text, style = _SENTENCES[report.verdict], "bold red"
    if report.verdict in _GOOD and report.confidence is Confidence.PROVED:
        style = "bold green"
    elif report.verdict in _GOOD or (report.verdict is Verdict.OFI_OTHER and report.provider is None):
        text, style = _SELECTED.get(report.verdict, text), "bold yellow"
    elif report.verdict is Verdict.NONE:
        style = "bold yellow"
    out.print(f"{report.verdict.value}: {text} ({_CONFIDENCE[report.confidence]})", style=style, soft_wrap=True)
    known = [f"{part.name} {part.version}" for part in (report.library, report.plugin) if part is not None] + (
        [f"provider {report.provider}"] if report.provider else []
    )
    if known:
        out.print(one_line(f"    {', '.join(known)}"), style="dim")
    for evidence in report.proof[:_LINES_SHOWN]:
        out.print(_line(evidence), soft_wrap=True)
    if report.verdict is Verdict.NONE and not report.causes:
        out.print("    set NCCL_DEBUG=INFO in the job's environment, run it on two nodes, and read its output again")
    for cause in report.causes[:_CAUSES_SHOWN]:
        out.print(f"\nwhy: {one_line(cause.summary)}  [{cause.id}]")
        for evidence in cause.evidence[:_LINES_SHOWN]:
            out.print(_line(evidence), soft_wrap=True)
        for remedy in cause.remedy:
            out.print(f"    do:  {one_line(remedy)}", soft_wrap=True)
        out.print(f"    source: {one_line(cause.source)}", style="dim", soft_wrap=True)
    if len(report.causes) > _CAUSES_SHOWN:
        out.print(f"\n{len(report.causes) - _CAUSES_SHOWN} more causes in --json", style="dim")


def _line(evidence: Evidence) -> str:
    return one_line(f"    {evidence.file}:{evidence.line}: {evidence.text}")
