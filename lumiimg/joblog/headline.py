"""The answer about a log in one line: what ended the job, else which network it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.core.findings import Severity
from lumiimg.joblog.report import Confidence, Verdict, severity_of

if TYPE_CHECKING:
    from lumiimg.joblog.report import LogReport

_SENTENCES = {
    Verdict.OFI_CXI: "the traffic went over Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "the traffic went over EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "libfabric was used, but not on Slingshot",
    Verdict.SOCKET: "the traffic went over TCP sockets, not over the fast network",
    Verdict.IB: "the traffic went over InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "the net plugin was not found; the log ends before a network is chosen",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin, or the provider under it, was loaded and failed to start",
    Verdict.INTRA_NODE_ONLY: "nothing crossed a network: each communicator stays on one node",
    Verdict.NONE: "this log does not say which network was used",
    Verdict.MIXED: "ranks used different networks",
}
_SELECTED = {
    Verdict.OFI_CXI: "Slingshot, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_EFA: "EFA, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_OTHER: "libfabric was used; the log does not name its provider: Slingshot or TCP",
    Verdict.IB: "InfiniBand or RoCE verbs, it seems: this log does not prove that traffic went over them",
}
_CHOSEN = {
    _SENTENCES[Verdict.SOCKET]: "TCP sockets were chosen, not the fast network",
    _SELECTED[Verdict.IB]: "InfiniBand or RoCE verbs were chosen",
    _SENTENCES[Verdict.OFI_OTHER]: "libfabric was chosen, but not on Slingshot",
    _SELECTED[Verdict.OFI_OTHER]: "libfabric was chosen; the log does not name its provider: Slingshot or TCP",
    _SENTENCES[Verdict.MIXED]: "ranks chose different networks",
}
"""What is said in place of a sentence where no line shows that any rank was connected."""
_CONFIDENCE = {Confidence.PROVED: "proved by the log", Confidence.LIKELY: "likely", Confidence.UNKNOWN: "not certain"}
_RUNS = 5
"""Earlier ones of a log that are named."""


def headline(report: LogReport) -> str:
    """Return the answer in one line: what ended the job, where something did, else the network."""
    if report.ended is not None:
        return f"{report.ended.id}: {report.ended.sentence}"
    if report.verdict is Verdict.NONE and report.progress and report.stall:
        return f"stalled: {report.stall.who} {report.stall.reason}"
    return network_line(report)


def network_line(report: LogReport) -> str:
    """Return which network the job used, in one line."""
    failed = "; then a transfer or a collective failed" if report.failed_running and report.ended is None else ""
    if report.nothing_crossed:
        unsure = "; what other nodes did it does not show" if report.other_nodes_silent else ""
        return f"{report.verdict.value}: {_SENTENCES[Verdict.INTRA_NODE_ONLY]}{failed}{unsure}"
    sentence = _SENTENCES[report.verdict]
    if severity_of(report.verdict, report.provider, report.confidence) is Severity.UNKNOWN:
        sentence = _SELECTED.get(report.verdict, sentence)
    if not _shows_traffic(report) and (chosen := _CHOSEN.get(sentence)):
        sentence = f"{chosen}; no line shows traffic"
    return f"{report.verdict.value}: {sentence}{failed} ({_CONFIDENCE[report.confidence]}{_of_which(report)})"


def runs_line(report: LogReport) -> str:
    """Return which of the runs in a log the answer is about, and what the others came to."""
    before = report.runs_before
    runs = (
        f"from line {run.first_line} on {run.verdict.value}{f', ended by {run.ended.id}' if run.ended else ''}"
        for run in before[-_RUNS:]
    )
    more = "the last of them " if len(before) > _RUNS else ""
    about = f"this is about the last one, from line {report.first_line} on"
    return f"the log holds {len(before) + 1} runs; {about}. Before it: {more}{'; '.join(runs)}"


def _shows_traffic(report: LogReport) -> bool:
    """Whether anything shows that ranks were connected, as what proves libfabric does."""
    proved = report.verdict is Verdict.OFI_OTHER and report.confidence is Confidence.PROVED
    measured = any(one.best_gb_s is not None for one in report.measurements)
    return proved or measured or report.connected or report.failed_running


def _of_which(report: LogReport) -> str:
    """Return by whose lines it is proved, where some ranks did not report."""
    seen = report.coverage
    if report.confidence is not Confidence.PROVED or seen.ranks >= (seen.of_ranks or 0):
        return ""
    return f" of {seen.of_all_ranks}"
