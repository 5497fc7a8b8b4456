"""From what the processes were seen to print to the verdict: first for each process, then for the job.

Order of proof (strongest first): channel lines, `Using network`/`Assigned NET plugin`, the transport's own start or the
provider line, plugin initialising. The provider line, not the network's name, tells cxi from tcp. A domain or
endpoint that cannot be opened overrides any of them on libfabric: the provider is selected before it is opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.nccl.report import Confidence, Verdict
from lumiimg.nccl.sightings import first_sightings
from lumiimg.nccl.vocabulary import Effect, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.nccl.causes import Trouble
    from lumiimg.nccl.sightings import Process, Sighting

OFI = frozenset({Verdict.OFI_CXI, Verdict.OFI_EFA, Verdict.OFI_OTHER})
TRANSPORTS = OFI | {Verdict.SOCKET, Verdict.IB}
FAILURES = {
    Effect.INIT_ERROR: Verdict.PLUGIN_INIT_ERROR,
    Effect.LOAD_ERROR: Verdict.PLUGIN_LOAD_ERROR,
    Effect.MISSING: Verdict.PLUGIN_MISSING,
    Effect.NO_NETWORK: Verdict.PLUGIN_INIT_ERROR,
}
"""What a process without a transport failed of; the effect nearest to success names it."""

_SLINGSHOT_HOST = re.compile(r"nid\d{6}\b|x\d{1,5}c\d{1,2}s\d{1,2}b\d{1,2}n\d{1,2}\b")
"""Host names that HPE Cray EX gives its nodes; a hint, never a proof."""
_CXI_DEVICE = re.compile(r"cxi\d")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process, or the job, came to."""

    verdict: Verdict
    confidence: Confidence
    proof: tuple[Sighting, ...] = ()
    network: str | None = None
    provider: str | None = None
    soft: bool = False
    """Only the plugin's presence was seen, so another process may say better what is used."""


NOTHING = Finding(Verdict.NONE, Confidence.UNKNOWN)


def process_finding(process: Process, troubles: Sequence[Trouble], job_provider: Sighting | None) -> Finding:
    """Return what the process used; `job_provider` is the provider if the whole job names exactly one."""
    chosen = [*process.saw("channel"), *process.saw("network")]
    sightings = chosen or _started(process)
    families = {_family(s) for s in sightings} - {None}
    if sightings and not families and (chosen or not _dead(process, troubles)):
        return Finding(Verdict.NONE, Confidence.UNKNOWN, network=sightings[0].value("network"))
    if families - {"ofi"}:
        return _built_in(sightings, families, final=bool(chosen))
    if dead := _dead(process, troubles):
        return _failure(Verdict.PLUGIN_INIT_ERROR, dead)
    if chosen or (families and not any(t.signature.effect in FAILURES for t in troubles)):
        return _libfabric(process, sightings, job_provider)
    if local := _intra_node(process):
        return local
    for effect, verdict in FAILURES.items():
        if found := _with_effect(troubles, effect):
            return _failure(verdict, found)
    return _presence(process)


def job_finding(findings: Sequence[Finding], *, dead: bool) -> Finding:
    """Return the verdict of the job; `dead`: some process could not open the endpoint it had selected."""
    transports = [f for f in findings if f.verdict in TRANSPORTS and not f.soft]
    kinds = {f.verdict for f in transports}
    failed = [f for f in findings if f.verdict in FAILURES.values()]
    if mixed := [f for f in findings if f.verdict is Verdict.MIXED]:
        return _mixed(mixed)
    not_opened = [f for f in failed if f.verdict is Verdict.PLUGIN_INIT_ERROR]
    if dead and kinds <= OFI and not_opened:
        return _strongest(not_opened)
    if len(kinds) > 1 or (failed and kinds & OFI):
        return _mixed([*transports, *failed])
    if kinds:
        return _strongest(transports)
    for verdict in FAILURES.values():
        if found := [f for f in failed if f.verdict is verdict]:
            return _strongest(found)
    rest = [f for f in findings if f.verdict is not Verdict.NONE]
    return _strongest(rest) if rest else NOTHING


def named_provider(processes: Sequence[Process]) -> Sighting | None:
    """Return the provider line of the job, where all provider lines name the same one."""
    sightings = first_sightings(processes, "provider")
    return sightings[0] if len({s.value("provider") for s in sightings}) == 1 else None


def is_dead(process: Process, troubles: Sequence[Trouble]) -> bool:
    """Whether the process could not open the endpoint that it had selected."""
    return bool(_dead(process, troubles))


def _with_effect(troubles: Sequence[Trouble], effect: Effect) -> list[Trouble]:
    return [t for t in troubles if t.signature.effect is effect]


def _dead(process: Process, troubles: Sequence[Trouble]) -> list[Trouble]:
    """Return the errors of the domain or endpoint after which nothing was connected."""
    connected = process.last_seen("connected")
    return [t for t in _with_effect(troubles, Effect.ENDPOINT_ERROR) if t.sighting.last > connected]


def _started(process: Process) -> list[Sighting]:
    """Return the transport that started last, for want of a line that names the chosen one.

    IB and Socket start after the plugin has failed. The other order is not one process but several whose lines carry
    no prefix: then all are returned.
    """
    started = sorted(process.saw("socket", "ib", "initialized", "provider"), key=lambda s: s.last)
    return started if started and _family(started[-1]) == "ofi" else started[-1:]


def _family(sighting: Sighting) -> str | None:
    if sighting.event in {"socket", "ib"}:
        return sighting.event
    return "ofi" if sighting.event == "provider" else vocabulary().family(sighting.value("network"))


def _built_in(sightings: list[Sighting], families: set[str | None], *, final: bool) -> Finding:
    network = sightings[0].value("network") or None
    proof = tuple(sightings[:2])
    if len(families) > 1:
        return Finding(Verdict.MIXED, Confidence.LIKELY, proof, network)
    verdict = Verdict.SOCKET if "socket" in families else Verdict.IB
    return Finding(verdict, Confidence.PROVED if final else Confidence.LIKELY, proof, network)


def _libfabric(process: Process, sightings: list[Sighting], job_provider: Sighting | None) -> Finding:
    own = list(process.saw("provider"))
    if len({_of_provider(s) for s in own}) > 1:
        return Finding(Verdict.MIXED, Confidence.LIKELY, tuple(own[:2]))
    named = own[-1] if own else job_provider
    network = next((s.value("network") for s in sightings if s.value("network")), None)
    lines = sightings[:2]
    if named is None:
        hint = _cxi_hint(process)
        verdict = Verdict.OFI_CXI if hint else Verdict.OFI_OTHER
        return Finding(verdict, Confidence.LIKELY, (*lines, *([hint] if hint else [])), network)
    provider = named.value("provider")
    if named not in lines:
        lines.append(named)
    confidence = Confidence.PROVED if own and _crossed(process) else Confidence.LIKELY
    return Finding(_of_provider(named), confidence, tuple(lines), network, provider)


def _of_provider(sighting: Sighting) -> Verdict:
    return vocabulary().providers.get(sighting.value("provider"), Verdict.OFI_OTHER)


def _crossed(process: Process) -> bool:
    """Whether the process had connections over the network that it chose."""
    if any(True for _ in process.saw("channel")):
        return True
    spans_nodes = any(c.nodes is not None and c.nodes > 1 for c in process.communicators.values())
    return spans_nodes and process.last_seen("connected") >= 0 and process.last_seen("network") >= 0


def _cxi_hint(process: Process) -> Sighting | None:
    """Return what speaks for Slingshot where no provider is named: a cxi device, or RDMA on a Slingshot host."""
    for sighting in process.saw("gdr-device"):
        if _CXI_DEVICE.match(sighting.value("device")):
            return sighting
    if _SLINGSHOT_HOST.match(process.name):
        return next((s for s in process.saw("channel") if s.value("gdr")), None)
    return None


def _intra_node(process: Process) -> Finding | None:
    local = next(process.saw("local-channel"), None)
    sizes = list(process.communicators.values())
    if any(c.nodes is not None and c.nodes > 1 for c in sizes):
        return None
    if local is not None:
        return Finding(Verdict.INTRA_NODE_ONLY, Confidence.LIKELY, (local,))
    if sizes and all(c.nodes == 1 for c in sizes):
        proof = next(process.saw("communicator"), None)
        return Finding(Verdict.INTRA_NODE_ONLY, Confidence.LIKELY, (proof,) if proof else ())
    return None


def _presence(process: Process) -> Finding:
    """Return what a plugin that began to start, and no more, is worth; one that was only loaded is worth nothing."""
    starting = list(process.saw("plugin"))[:1]
    return Finding(Verdict.OFI_OTHER, Confidence.LIKELY, tuple(starting), soft=True) if starting else NOTHING


def _failure(verdict: Verdict, troubles: Sequence[Trouble]) -> Finding:
    sure = any(t.signature.sure for t in troubles)
    proof = tuple(t.sighting for t in troubles[:3])
    return Finding(verdict, Confidence.PROVED if sure else Confidence.LIKELY, proof)


def _strongest(findings: Sequence[Finding]) -> Finding:
    """Return the finding that is best proved, a channel's line before others, the first of equals."""
    order = list(Confidence)
    return min(findings, key=lambda f: (order.index(f.confidence), all(s.event != "channel" for s in f.proof)))


def _mixed(findings: Sequence[Finding]) -> Finding:
    """One line of proof for each verdict; as sure as the least sure of them."""
    order = list(Confidence)
    verdicts = dict.fromkeys(f.verdict for f in findings)
    best = [_strongest([f for f in findings if f.verdict is verdict]) for verdict in verdicts]
    confidence = max((f.confidence for f in best), key=order.index)
    return Finding(Verdict.MIXED, confidence, tuple(f.proof[0] for f in best if f.proof))
