"""What else the job's log tells beside the verdict: ranks, communicators, versions, interfaces, GPUDirect RDMA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.nccl.causes import likelihood
from lumiimg.nccl.report import Communicator, Component, NodeGroup, RankResult, Told, Transport, Verdict
from lumiimg.nccl.sightings import first_sightings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.nccl.causes import Trouble
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


def node_groups(
    processes: Sequence[Process], findings: Sequence[Finding], troubles: Sequence[Sequence[Trouble]]
) -> tuple[NodeGroup, ...]:
    """Return the nodes by what their ranks came to, the largest group first; `mixed` where ranks of a node differ."""
    by_node: dict[str, set[tuple[Verdict, str | None, str | None, str | None]]] = {}
    for process, finding, found in zip(processes, findings, troubles, strict=True):
        if finding.verdict is Verdict.NONE or (node := node_of(process)) is None:
            continue
        cause = min((t.signature for t in found), key=likelihood).id if found else None
        by_node.setdefault(node, set()).add((finding.verdict, finding.network, finding.provider, cause))
    groups: dict[tuple[Verdict, str | None, str | None, str | None], list[str]] = {}
    for node, results in by_node.items():
        groups.setdefault(_common(results), []).append(node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0][0], min(group[1])))
    return tuple(NodeGroup(*result, tuple(sorted(nodes))) for result, nodes in ordered)


def _common(
    results: set[tuple[Verdict, str | None, str | None, str | None]],
) -> tuple[Verdict, str | None, str | None, str | None]:
    """Return what the ranks of a node agree on, field by field."""
    verdicts, *others = (set(field) for field in zip(*results, strict=True))
    network, provider, cause = (field.pop() if len(field) == 1 else None for field in others)
    return (verdicts.pop() if len(verdicts) == 1 else Verdict.MIXED, network, provider, cause)


def node_of(process: Process) -> str | None:
    """Return the host name of a process; None where its lines carry none."""
    host, colon, pid = process.name.rpartition(":")
    return host if colon and pid.isdecimal() and host and not process.shared else None


def told(processes: Sequence[Process], findings: Sequence[Finding], job: Process) -> Told:
    """Return how many ranks and nodes told their network, and how many there are by the largest communicator."""
    speaking = [p for p, f in zip(processes, findings, strict=True) if f.verdict is not Verdict.NONE]
    seen = [c for p in processes for c in p.communicators.values()]
    slurm = {s.value("name"): s.value("value") for s in job.saw("slurm")}
    of_ranks = [c.ranks for c in seen] or _numbers(slurm, "SLURM_NTASKS")
    of_nodes = [c.nodes for c in seen if c.nodes is not None] or _numbers(slurm, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    return Told(
        ranks=sum(len(_ranks(p)) for p in speaking),
        of_ranks=max(of_ranks, default=None),
        nodes=len({node_of(p) for p in speaking} - {None}),
        of_nodes=max(of_nodes, default=None),
    )


def _numbers(variables: Mapping[str, str], *names: str) -> list[int]:
    return [int(value) for name in names if (value := variables.get(name, "")).isdecimal() and len(value) < 8]


def transport(processes: Sequence[Process], job: Process) -> Transport:
    """Return how the network was used, as far as all that tell agree."""
    lists = [_INTERFACE.findall(s.value("interfaces")) for s in first_sightings(processes, "socket")]
    nics = _agreed_value(job, "nics", "count")
    pxn = _agreed_value(job, "pxn", "pxn")
    return Transport(
        gdr=gdr(processes),
        pxn=None if pxn is None else pxn != "0",
        protocol=_agreed_value(job, "protocol", "protocol"),
        nics=None if nics is None else int(nics),
        interfaces=tuple(dict.fromkeys(name for names in lists for name in names)),
        bootstrap=tuple(dict.fromkeys(s.value("interface") for s in job.saw("bootstrap"))),
    )


def _agreed_value(job: Process, event: str, name: str) -> str | None:
    values = {s.value(name) for s in job.saw(event)}
    return values.pop() if len(values) == 1 else None


def environment(job: Process) -> tuple[tuple[str, str], ...]:
    """Return the variables that the log shows, by name; of several values the first."""
    found: dict[str, str] = {}
    for sighting in job.saw("environment", "slurm", "slingshot"):
        found.setdefault(sighting.value("name"), sighting.value("value"))
    return tuple(sorted(found.items()))


def gdr(processes: Sequence[Process]) -> bool | None:
    """Return whether the network channels use GPUDirect RDMA; what a device could do counts only without channels."""
    channels = {bool(s.value("gdr")) for s in first_sightings(processes, "channel")}
    devices = {s.value("gdr") == "Enabled" for s in first_sightings(processes, "gdr-device")}
    answers = channels or devices
    return answers.pop() if len(answers) == 1 else None


def is_single_node(processes: Sequence[Process]) -> bool:
    """Return whether the log proves that nothing crosses a network.

    `nNodes` tells it from 2.21 on; before, all ranks of each communicator must have been seen, on one host.
    """
    seen = [c for p in processes for c in p.communicators.values()]
    if not seen or any("channel" in p.events for p in processes):
        return False
    if all(c.ranks == 1 or c.nodes == 1 for c in seen):
        return True
    if any(c.nodes is not None and c.nodes > 1 for c in seen):
        return False
    ranks_seen: dict[int, set[int]] = {}
    for c in seen:
        ranks_seen.setdefault(c.ranks, set()).add(c.rank)
    hosts = {node_of(p) for p in processes if p.communicators}
    return len(hosts) == 1 and None not in hosts and all(len(ranks) == size for size, ranks in ranks_seen.items())


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
