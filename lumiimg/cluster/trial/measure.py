"""What the steps of a trial say of each claim."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.claims import BUILDS, FAILS, NODES, THERE
from lumiimg.cluster.trial.image_facts import of_image
from lumiimg.cluster.trial.look import is_in
from lumiimg.cluster.trial.reading import NOT_KNOWN, ClaimReading, joined
from lumiimg.cluster.trial.values import LEFT, NOT_YET, ClaimOutcome, Ending
from lumiimg.core.text import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.cluster.trial.case import TrialCase
    from lumiimg.cluster.trial.values import Claim, Look, Record

_PLACE = re.compile(r"(?:^| )(\d{1,5}):(\d{1,5})(?= |$)", re.ASCII)
_CLOCK_S = 60.0
"""By which clocks of nodes may differ: they answer one after the other."""
NO_ANSWER = " gave no answer"
"""Ends what the record of the look at the nodes says of some."""


def reading(case: TrialCase, claim: Claim) -> ClaimReading:
    """Return what was measured of a claim."""
    record = case.records.get(claim.step)
    if record is None:
        return ClaimReading(None, NOT_YET)
    if record.ending is Ending.FAILED and claim.id.startswith("here."):
        return _failed(record)
    if record.ending is not Ending.DONE:
        return ClaimReading(None, _not_done(record))
    if claim.step in case.unread:
        return ClaimReading(None, "what the step printed cannot be read")
    if claim.id.startswith("here."):
        return ClaimReading(BUILDS) if record.code == 0 else _failed(record)
    return _of_site(case, claim) if claim.id.startswith("site.") else of_image(case, claim)


def _failed(record: Record) -> ClaimReading:
    return ClaimReading(FAILS, "; ".join(record.said[-1:]))


def _not_done(record: Record) -> str:
    last = "; ".join(record.said[-1:])
    return {
        Ending.SKIPPED: f"left out: {last}",
        Ending.WAITS: f"{LEFT}{last}",
        Ending.TIMED_OUT: f"ended at its limit, after {record.seconds / 60:.0f} min",
        Ending.CUT_OFF: "the job died in it, each time",
    }.get(record.ending, last or f"ended with {record.code}, without a word")


def outcome(claim: Claim, read: ClaimReading) -> ClaimOutcome:
    """Return what a claim came to."""
    if read.value is None:
        return ClaimOutcome.OPEN
    if claim.predicted is None:
        return ClaimOutcome.NEWS
    if read.same is not None:
        same = read.same
    elif claim.least is not None:
        same = read.number is not None and read.number >= claim.least
    else:
        same = read.value in {claim.predicted, *claim.also}
    if same and read.partial:
        return ClaimOutcome.OPEN
    return ClaimOutcome.SAME if same else ClaimOutcome.DIFFERS


def _of_site(case: TrialCase, claim: Claim) -> ClaimReading:
    key, _, name = claim.id.removeprefix("site.").partition(":")
    if key in {"partition", "mpi"}:
        return _of_slurm(case, key, name)
    if not case.looks:
        return ClaimReading(None, "no node has answered")
    if key == "near":
        reads = [_near(look, claim) for look in case.looks]
        read = min(reads, key=lambda read: (read.same is not False, read.value is not None))
        return _of_some(case, read)
    nothing = "the nodes do not show it"
    if key == "gpus" and not any(look.gpus for look in case.looks):
        nothing = "the kernel of the nodes shows no GPU of AMD's"
    if key in {"libfabric", "glibc"}:
        nothing = next((look.no_fabric for look in case.looks if look.no_fabric), nothing)
    if key not in _OF_NODE:
        return ClaimReading(None, NOT_KNOWN)
    return _of_some(case, joined(((_OF_NODE[key](look, name), 1) for look in case.looks), nothing))


def _of_some(case: TrialCase, read: ClaimReading) -> ClaimReading:
    """Return a reading that is partial where fewer nodes have answered than the trial is for."""
    missing = case.plan.nodes - len(case.looks)
    if missing <= 0 or read.value is None:
        return read
    return replace(read, partial=True, why=read.why or f"{count(missing, 'node')}{NO_ANSWER}")


def _there(is_there: bool | None) -> str | None:
    return None if is_there is None else THERE if is_there else f"not {THERE}"


_OF_NODE: dict[str, Callable[[Look, str], str | None]] = {
    "processors": lambda look, _: look.processors,
    "gpu": lambda look, _: ", ".join(sorted(set(look.gpus))),
    "driver": lambda look, _: look.gpu_driver,
    "kernel": lambda look, _: look.kernel,
    "libfabric": lambda look, _: look.libfabric,
    "glibc": lambda look, _: look.glibc,
    "engine": lambda look, _: look.engine,
    "interfaces": lambda look, _: ",".join(sorted(look.interfaces)),
    "gpus": lambda look, _: f"{len(look.gpus)}" if look.gpus else None,
    "cores": lambda look, _: f"{look.cores}" if look.cores else None,
    "path": lambda look, path: _there(look.paths.get(path)),
    "identity": lambda look, _: _there(any(look.variables.values())),
}
"""What a node shows, by the key of the claim; the second is what stands behind the key."""


def _first_cores(claim: Claim) -> list[int]:
    """Return the core that a claim (`0:48 1:56`) names beside each GPU, -1 where it names none."""
    first = dict(_PLACE.findall(claim.predicted or ""))
    return [int(first.get(f"{gpu}", -1)) for gpu in range(len(first))]


def _near(look: Look, claim: Claim) -> ClaimReading:
    """Compare by the cores beside each GPU: the kernel knows NUMA nodes, the site's file groups within them."""
    near, predicted = look.near, _first_cores(claim)
    if not any(near):
        return ClaimReading(None, "the kernel names no cores beside the GPUs")
    if len(near) != len(predicted):
        return ClaimReading(None, f"the kernel of a node shows {count(len(near), 'GPU')} of {len(predicted)}")
    if len({*near}) == 1 < len(near):
        return ClaimReading(None, f"the kernel names the same cores beside all GPUs: {near[0]}")
    wrong = [gpu for gpu, cores in enumerate(near) if not is_in(predicted[gpu], cores)]
    if not wrong:
        return ClaimReading("in the NUMA node of each GPU", same=True)
    return ClaimReading(", ".join(f"GPU {gpu} has {look.near[gpu]}" for gpu in wrong), same=False)


def _of_slurm(case: TrialCase, key: str, name: str) -> ClaimReading:
    known = case.slurm
    if known is None or not (known.mpi if key == "mpi" else known.partitions):
        return ClaimReading(None, "Slurm does not say")
    if key == "mpi":
        return ClaimReading(_there(name in known.mpi))
    if name not in known.partitions:
        return ClaimReading("no such partition", same=False)
    hours = known.partitions[name]
    return ClaimReading("no limit" if hours is None else f"{hours:g}")


def notes(case: TrialCase) -> list[str]:
    """Return what else a reader must know: clocks apart, others on the nodes, an engine that changed."""
    found = []
    clocks = [look.clock for look in case.looks]
    if clocks and max(clocks) - min(clocks) > _CLOCK_S:
        found.append(f"the clocks of the nodes are {max(clocks) - min(clocks):.0f} s apart")
    if (identity := next((c for c in case.plan.claims if c.id == "site.identity"), None)) is not None:
        read = reading(case, identity)
        if read.value is not None and outcome(identity, read) is not ClaimOutcome.SAME:
            found.append(f"nothing shows that this is {case.plan.site}: its claims may be of another machine")
    shared = [look for look in case.looks if look.strangers]
    if shared:
        found.append(f"others had processes on {count(len(shared), 'node')}: bandwidths there prove little")
    names = sorted({name for look in case.looks for name in look.set_already})
    if names:
        found.append(f"the job had {', '.join(names)} from elsewhere: what is said of the network is with that")
    engines = {record.engine for record in case.records.values() if record.engine}
    if len(engines) > 1:
        found.append(f"the container engine changed during the trial: {', '.join(sorted(engines))}")
    nodes = case.records.get(NODES)
    return found + [line for line in (nodes.said if nodes is not None else ()) if line.endswith(NO_ANSWER)]
