"""What else the job's log says beside the verdict: ranks, communicators, versions, interfaces, GPUDirect RDMA."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from lumiimg.core.redact import HIDDEN, is_secret_name, redact
from lumiimg.joblog.causes import Trouble, likelihood
from lumiimg.joblog.events import ProcessState, first_sightings
from lumiimg.joblog.report import (
    FAST,
    Communicator,
    LoggedLibrary,
    RankResult,
    Told,
    Transport,
    Verdict,
    VerdictGroup,
    weakest,
)
from lumiimg.joblog.vocabulary import Ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumiimg.joblog.report import Confidence
    from lumiimg.joblog.verdict import Judgement

COMMUNICATORS_REPORTED = 256
_INTERFACE = re.compile(r"\[\d{1,4}\]([\w.-]{1,40}):")


def rank_results(processes: Sequence[ProcessState], findings: Sequence[Judgement]) -> tuple[RankResult, ...]:
    """Return what each process used; a process that showed nothing about the network is left out."""
    results = [
        RankResult(p.name, f.verdict, f.confidence, f.network, f.provider, rank)
        for p, f in zip(processes, findings, strict=True)
        if f.verdict is not Verdict.NONE or p.communicators
        for rank in _ranks(p)
    ]
    return tuple(sorted(results, key=lambda r: (r.rank is None, r.rank or 0, r.process)))


def communicators(processes: Sequence[ProcessState], findings: Sequence[Judgement]) -> tuple[Communicator, ...]:
    """Return the communicators of the job, each once; `mixed` where its ranks used different networks."""
    found: dict[str, Communicator] = {}
    for process, finding in zip(processes, findings, strict=True):
        for address, seen in process.communicators.items():
            key = seen.id or f"{process.name} {address.partition('/')[0]}"
            known = found.get(key)
            if known is None and len(found) >= COMMUNICATORS_REPORTED:
                continue
            nodes = seen.nodes if known is None or known.nodes is None else known.nodes
            crosses = seen.crosses if known is None or known.crosses_network is None else known.crosses_network
            verdict = finding.verdict if known is None else _agreed(known.verdict, finding.verdict)
            found[key] = Communicator(key, seen.ranks, nodes, crosses, verdict)
    return tuple(found.values())


def component(processes: Sequence[ProcessState], event: str, name: str | None = None) -> LoggedLibrary | None:
    """Return the library or plugin that the job names first; `name` where it gives its version only."""
    sightings = first_sightings(processes, event)
    return LoggedLibrary(name or sightings[0].value("name"), sightings[0].value("version")) if sightings else None


def node_groups(
    processes: Sequence[ProcessState], findings: Sequence[Judgement], troubles: Sequence[Sequence[Trouble]]
) -> tuple[VerdictGroup, ...]:
    """Return the nodes by what their ranks came to; `mixed` where ranks of a node differ.

    Those without a fast network come first, then the largest group.
    """
    by_node: dict[str, set[tuple[Verdict, str | None, str | None, str | None]]] = {}
    least: dict[str, Confidence] = {}
    for process, finding, found in zip(processes, findings, troubles, strict=True):
        if (finding.verdict is Verdict.NONE and not finding.network) or (node := process.node) is None:
            continue
        of_network = [t.signature for t in found if t.signature.ends is Ends.NO]
        cause = min(of_network, key=likelihood).id if of_network else None
        by_node.setdefault(node, set()).add((finding.verdict, finding.network, finding.provider, cause))
        least[node] = weakest((least.get(node, finding.confidence), finding.confidence))
    groups: dict[tuple[Verdict, str | None, str | None, str | None], list[str]] = {}
    for node, results in by_node.items():
        groups.setdefault(_common(results), []).append(node)
    ordered = sorted(
        groups.items(), key=lambda group: (group[0][0] in FAST, -len(group[1]), group[0][0], min(group[1]))
    )
    return tuple(
        VerdictGroup(*result, weakest(map(least.__getitem__, of)), tuple(sorted(of))) for result, of in ordered
    )


def _common(
    results: set[tuple[Verdict, str | None, str | None, str | None]],
) -> tuple[Verdict, str | None, str | None, str | None]:
    """Return what the ranks of a node agree on, field by field."""
    verdicts, *others = (set(field) for field in zip(*results, strict=True))
    network, provider, cause = (field.pop() if len(field) == 1 else None for field in others)
    return (verdicts.pop() if len(verdicts) == 1 else Verdict.MIXED, network, provider, cause)


def told(processes: Sequence[ProcessState], findings: Sequence[Judgement], job: ProcessState) -> Told:
    """Return how many ranks and nodes told their network, and how many there are by the largest communicator."""
    speaking = [p for p, f in zip(processes, findings, strict=True) if f.verdict is not Verdict.NONE or f.network]
    seen = [c for p in processes for c in p.communicators.values()]
    slurm = {s.value("name"): s.value("value") for s in job.saw("slurm")}
    # a rank that was started again on its node is one rank
    ranks = len({(p.node or p.name, p.name if rank is None else rank) for p in speaking for rank in _ranks(p)})
    nodes = len({p.node for p in speaking} - {None})
    of_ranks = max([c.ranks for c in seen] or _numbers(slurm, "SLURM_NTASKS"), default=None)
    sizes = [c.nodes for c in seen if c.nodes is not None]
    if max(sizes, default=1) == 1:
        # other ranks of the job may have come together elsewhere, or not at all
        sizes += _numbers(slurm, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    of_nodes = max(sizes, default=None)
    return Told(
        ranks=ranks,
        # more than the largest communicator has: then there is none of all ranks, or several runs
        of_ranks=None if of_ranks is not None and of_ranks < ranks else of_ranks,
        nodes=nodes,
        of_nodes=None if of_nodes is not None and of_nodes < nodes else of_nodes,
    )


def has_several_runs(processes: Sequence[ProcessState], same_file: Callable[[int, int], bool]) -> bool:
    """Return whether a rank was started again on its node after what it was before had ended (a requeued job)."""
    spans: dict[tuple[str | None, int | None], list[tuple[int, int]]] = {}
    for process in processes:
        times = [t for kinds in process.events.values() for s in kinds for t in (s.first, s.last)]
        for rank in _ranks(process) if process.communicators and times else ():
            spans.setdefault((process.node, rank), []).append((min(times), max(times)))
    return any(
        one[1] < other[0] and same_file(one[1], other[0])
        for found in spans.values()
        for one, other in pairwise(sorted(found))
    )


def _numbers(variables: Mapping[str, str], *names: str) -> list[int]:
    return [int(value) for name in names if (value := variables.get(name, "")).isdecimal() and len(value) < 8]


def transport(processes: Sequence[ProcessState], job: ProcessState) -> Transport:
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
        bootstrap=tuple(dict.fromkeys(s.value("interface") for s in first_sightings(processes, "bootstrap"))),
    )


def _agreed_value(job: ProcessState, event: str, name: str) -> str | None:
    values = {s.value(name) for s in job.saw(event)}
    return values.pop() if len(values) == 1 else None


def environment(job: ProcessState) -> tuple[tuple[str, str], ...]:
    """Return the variables that the log shows, by name; of several values the first, of a secret none."""
    found: dict[str, str] = {}
    for sighting in job.saw("environment", "oneccl-setting", "slurm", "slingshot"):
        name = sighting.value("name")
        found.setdefault(name, HIDDEN if is_secret_name(name) else redact(sighting.value("value")))
    return tuple(sorted(found.items()))


def gdr(processes: Sequence[ProcessState]) -> bool | None:
    """Return whether the network channels use GPUDirect RDMA; what a device could do counts only without channels."""
    channels = {bool(s.value("gdr")) for s in first_sightings(processes, "channel")}
    devices = {s.value("gdr") == "Enabled" for s in first_sightings(processes, "gdr-device")}
    answers = channels or devices
    return answers.pop() if len(answers) == 1 else None


def is_single_node(processes: Sequence[ProcessState]) -> bool:
    """Return whether the log proves that nothing crosses a network.

    `nNodes` gives it from 2.21 on; before, all ranks of each communicator must have been seen, on one host.
    """
    seen = [c for p in processes for c in p.communicators.values()]
    if not seen or any("channel" in p.events for p in processes) or not all(c.has_origin for c in seen):
        return False
    if all(c.crosses is False for c in seen):
        return True
    if any(c.crosses for c in seen):
        return False
    # Without commId those of one size cannot be distinguished: if all are complete, each rank is there as often.
    ranks_seen: dict[str | int, Counter[int]] = {}
    sizes: dict[str | int, int] = {}
    for c in seen:
        key = c.id or c.ranks
        ranks_seen.setdefault(key, Counter())[c.rank] += 1
        sizes[key] = c.ranks
    complete = all(len(ranks) == sizes[key] and len(set(ranks.values())) == 1 for key, ranks in ranks_seen.items())
    hosts = {p.node for p in processes if p.communicators}
    return len(hosts) == 1 and None not in hosts and complete


def _ranks(process: ProcessState) -> list[int | None]:
    """Ranks of the process in its largest communicator: its ranks of the job, as far as the log shows."""
    seen = process.communicators.values()
    largest = max((c.ranks for c in seen), default=0)
    ranks = sorted({c.rank for c in seen if c.ranks == largest})
    return [*ranks] or [None]


def _agreed(one: Verdict, other: Verdict) -> Verdict:
    if one is other or other is Verdict.NONE:
        return one
    return other if one is Verdict.NONE else Verdict.MIXED
