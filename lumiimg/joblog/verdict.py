"""Which network a job used, or why its plugin provided none: names, confidence, and wording."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from lumiimg.core.findings import Severity


class Verdict(StrEnum):
    """Which network was used, or why the plugin provided none."""

    OFI_CXI = "ofi-cxi"
    """libfabric on Slingshot."""
    OFI_EFA = "ofi-efa"
    """libfabric on AWS EFA."""
    OFI_OTHER = "ofi-other"
    """libfabric with another provider (tcp, sockets, verbs), or with one that the log does not name."""
    SOCKET = "socket"
    """The library's own TCP transport."""
    IB = "ib"
    """Verbs: built in, or an InfiniBand/RoCE plugin."""
    PLUGIN_MISSING = "plugin-missing"
    PLUGIN_LOAD_ERROR = "plugin-load-error"
    PLUGIN_INIT_ERROR = "plugin-init-error"
    INTRA_NODE_ONLY = "intra-node-only"
    """Shared memory and peer-to-peer only: nothing crosses a network."""
    NONE = "none"
    """Nothing in the log shows which network was used."""
    MIXED = "mixed"
    """Processes of the job used different networks."""


FAST = frozenset({Verdict.OFI_CXI, Verdict.OFI_EFA})
TRANSPORTS = FAST | {Verdict.OFI_OTHER, Verdict.SOCKET, Verdict.IB}
"""Verdicts that name a network."""


class Confidence(StrEnum):
    """How well the log supports the verdict."""

    PROVED = "proved"
    LIKELY = "likely"
    UNKNOWN = "unknown"


def weakest(confidences: Iterable[Confidence]) -> Confidence:
    """Return the lowest of several confidences."""
    return max(confidences, key=list(Confidence).index)


def severity_of(verdict: Verdict, provider: str | None, confidence: Confidence) -> Severity:
    """Return ok for a proved fast network, problem for a slow path or a failure, otherwise unknown."""
    match verdict:
        case Verdict.NONE:
            return Severity.UNKNOWN
        case Verdict.OFI_OTHER if provider is None:
            return Severity.UNKNOWN  # cxi and tcp look the same if the provider is not named
        case Verdict.OFI_CXI | Verdict.OFI_EFA | Verdict.IB | Verdict.INTRA_NODE_ONLY:
            # selecting a network does not show that it carried traffic
            return Severity.OK if confidence is Confidence.PROVED else Severity.UNKNOWN
        case _:
            return Severity.PROBLEM


# -- in words

SENTENCES = {
    Verdict.OFI_CXI: "the traffic went over Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "the traffic went over EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "libfabric was used, but not on Slingshot",
    Verdict.SOCKET: "the traffic went over TCP sockets, not over the fast network",
    Verdict.IB: "the traffic went over InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "the net plugin was not found; the log ends before a network is chosen",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin, or the provider under it, was loaded but failed to start",
    Verdict.INTRA_NODE_ONLY: "nothing crossed a network: each communicator stays on one node",
    Verdict.NONE: "the log does not show the network",
    Verdict.MIXED: "ranks used different networks",
}
SELECTED = {
    Verdict.OFI_CXI: "Slingshot, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_EFA: "EFA, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_OTHER: "libfabric was used; the log does not name its provider",
    Verdict.IB: "InfiniBand or RoCE verbs, it seems: this log does not prove that traffic went over them",
}
CHOSEN = {
    SENTENCES[Verdict.SOCKET]: "TCP sockets were chosen, not the fast network",
    SELECTED[Verdict.IB]: "InfiniBand or RoCE verbs were chosen",
    SENTENCES[Verdict.OFI_OTHER]: "libfabric was chosen, but not on Slingshot",
    SELECTED[Verdict.OFI_OTHER]: "libfabric was chosen; the log does not name its provider",
    SENTENCES[Verdict.MIXED]: "ranks chose different networks",
}
"""Replacements for sentences if no line shows that any rank was connected."""
SHORT = {
    Verdict.OFI_CXI: "Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "libfabric, not on a fast provider",
    Verdict.SOCKET: "TCP sockets",
    Verdict.IB: "InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "no net plugin was found",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin failed to start",
    Verdict.INTRA_NODE_ONLY: "none was needed, each communicator stays on one node",
    Verdict.NONE: "not in this log",
    Verdict.MIXED: "ranks used different ones",
}
"""Short forms for the line below the one about what ended the job."""
CONFIDENCE_WORDS = {
    Confidence.PROVED: "proved by the log",
    Confidence.LIKELY: "likely",
    Confidence.UNKNOWN: "not certain",
}
