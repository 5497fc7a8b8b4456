"""What else the job's log tells beside the verdict: ranks, communicators, versions, interfaces, GPUDirect RDMA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.nccl.report import Communicator, Component, RankResult, Verdict
from lumiimg.nccl.sightings import first_sightings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.nccl.sightings import Process
    from lumiimg.nccl.verdict import Finding

COMMUNICATORS_REPORTED = 256
_INTERFACE = re.compile(r"\[\d{1,4}\]([\w.-]{1,40}):")


def rank_results(processes: Sequence[Process], findings: Sequence[Finding]) -> tuple[RankResult, ...]:
    """Return what each process used; a process that showed nothing about the network is left out."""
    results = [
        RankResult(p.name, rank, f.verdict, f.confidence, f.network, f.provider)
        for p, f in zip(processes, findings, strict=True)
        if f.verdict is not Verdict.NONE or p.communicators
        for rank in _ranks(p)
    ]
    return tuple(sorted(results, key=lambda r: (r.rank is None, r.rank or 0, r.process)))


def communicators(processes: Sequence[Process], findings: Sequence[Finding]) -> tuple[Communicator, ...]:
    """Return the communicators of the job, each once; `mixed` where its ranks used different networks."""
    found: dict[str, Communicator] = {}
    for process, finding in zip(processes, findings, strict=True):
        for address, seen in process.communicators.items():
            key = seen.id or f"{process.name} {address.partition('/')[0]}"
            known = found.get(key)
            if known is None and len(found) >= COMMUNICATORS_REPORTED:
                continue
            nodes = seen.nodes if known is None or known.nodes is None else known.nodes
            verdict = finding.verdict if known is None else _agreed(known.verdict, finding.verdict)
            found[key] = Communicator(key, seen.ranks, nodes, verdict)
    return tuple(found.values())


def component(processes: Sequence[Process], event: str) -> Component | None:
    """Return the library or plugin that the job names first."""
    sightings = first_sightings(processes, event)
    return Component(sightings[0].value("name"), sightings[0].value("version")) if sightings else None


def interfaces(processes: Sequence[Process]) -> tuple[str, ...]:
    """Return the interfaces of NET/Socket, each once."""
    lists = [_INTERFACE.findall(s.value("interfaces")) for s in first_sightings(processes, "socket")]
    return tuple(dict.fromkeys(name for names in lists for name in names))


def gdr(processes: Sequence[Process]) -> bool | None:
    """Return whether the network channels use GPUDirect RDMA; what a device could do counts only without channels."""
    channels = {bool(s.value("gdr")) for s in first_sightings(processes, "channel")}
    devices = {s.value("gdr") == "Enabled" for s in first_sightings(processes, "gdr-device")}
    answers = channels or devices
    return answers.pop() if len(answers) == 1 else None


def is_single_node(processes: Sequence[Process]) -> bool:
    """Return whether the log proves that nothing crosses a network."""
    seen = [c for p in processes for c in p.communicators.values()]
    if any("channel" in p.events for p in processes):
        return False
    return bool(seen) and all(c.ranks == 1 or c.nodes == 1 for c in seen)


def _ranks(process: Process) -> list[int | None]:
    """Ranks of the process in its largest communicator: its ranks of the job, as far as the log tells."""
    seen = process.communicators.values()
    largest = max((c.ranks for c in seen), default=0)
    ranks = sorted({c.rank for c in seen if c.ranks == largest})
    return [*ranks] or [None]


def _agreed(one: Verdict, other: Verdict) -> Verdict:
    if one is other or other is Verdict.NONE:
        return one
    return other if one is Verdict.NONE else Verdict.MIXED
