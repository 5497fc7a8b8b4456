"""What is beside each GPU, by what was measured: the fastest of several ways, against the one that was predicted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.look import is_in
from lumiimg.cluster.trial.reading import ClaimReading
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.cluster.trial.nearness import GpuFacts, NicFacts
    from lumiimg.cluster.trial.values import Claim, Look

_PLACE = re.compile(r"(?:^| )(\d{1,5}):(\d{1,5})(?= |$)", re.ASCII)
_ALIKE = 1.1
"""By how much two bandwidths may differ and show no difference, as a factor."""
_NOTHING = "nothing was printed"
_Ways = dict[int, dict[str, float]]
"""For each GPU the ways to it, with their bandwidths in GB/s."""


def first_cores(claim: Claim) -> list[int]:
    """Return the core that a claim (`0:48 1:56`) names beside each GPU, -1 where it names none."""
    first = dict(_PLACE.findall(claim.predicted or ""))
    return [int(first.get(f"{gpu}", -1)) for gpu in range(len(first))]


def target(facts: GpuFacts | None) -> ClaimReading:
    """Return what the GPUs are for HSA in the container."""
    if facts is None:
        return ClaimReading(None, _NOTHING)
    found = dict.fromkeys(facts.targets)
    if len(found) > 1:
        told = (f"{name} of {count(facts.targets.count(name), 'GPU')}" for name in sorted(found))
        return ClaimReading("; ".join(told), "the GPUs of one node differ", same=False)
    return ClaimReading(next(iter(found), None), "" if found else facts.why or "HSA shows no GPU in the container")


def fastest_cores(facts: GpuFacts | None, claim: Claim) -> ClaimReading:
    """Return from which cores' memory copies to each GPU are fastest, against the core that is predicted."""
    if facts is None:
        return ClaimReading(None, _NOTHING)
    ways: _Ways = {}
    for copy in facts.copies:
        ways.setdefault(copy.gpu, {})[copy.cores] = copy.gb_s
    cores = first_cores(claim)
    if len(ways) != len(cores):
        shown = f"copies to {count(len(ways), 'GPU')} of {len(cores)} were timed"
        return ClaimReading(None, f"{shown}: {facts.why}" if facts.why else shown)
    wanted = {gpu: {text for text in ways.get(gpu, {}) if is_in(core, text)} for gpu, core in enumerate(cores)}
    if not all(wanted.values()):
        return ClaimReading(None, f"not all of the predicted cores were tried: {facts.why or 'no NUMA node has them'}")
    return _fastest(ways, wanted, "the cores")


def fastest_nic(facts: NicFacts | None, looks: Sequence[Look]) -> ClaimReading:
    """Return over which NIC each GPU is fastest, against the one that the kernel has in the same NUMA node."""
    if facts is None:
        return ClaimReading(None, _NOTHING)
    ways: _Ways = {}
    for run in facts.runs:
        if run.gb_s is None:
            return ClaimReading(None, f"GPU {run.gpu} over {run.nic}: {run.why}")
        ways.setdefault(run.gpu, {})[run.nic] = run.gb_s
    if not ways or facts.why:
        return ClaimReading(None, facts.why or "no NIC was tried")
    near, nics = (looks[0].near, looks[0].nics) if looks else ((), {})
    wanted = {
        gpu: {nic for nic in tried if gpu < len(near) and near[gpu] and nics.get(nic) == near[gpu]}
        for gpu, tried in ways.items()
    }
    return _fastest(ways, wanted, "the NIC")


def _fastest(ways: _Ways, wanted: Mapping[int, set[str]], what: str) -> ClaimReading:
    """Compare the fastest way to each GPU with those that are predicted; ways that are alike show nothing."""
    best = {gpu: max(tried, key=lambda way: tried[way]) for gpu, tried in ways.items()}
    speeds = [speed for tried in ways.values() for speed in tried.values()]
    measured = ", ".join(f"GPU {gpu} {way} ({ways[gpu][way]:.3g} GB/s)" for gpu, way in sorted(best.items()))
    if all(len(tried) == 1 for tried in ways.values()):
        return ClaimReading(None, f"there is one way to each GPU: {measured}")
    alike = [gpu for gpu, tried in ways.items() if max(tried.values()) <= min(tried.values()) * _ALIKE]
    if len(alike) == len(ways):
        return ClaimReading(None, f"all are alike: {min(speeds):.3g} to {max(speeds):.3g} GB/s")
    if not all(wanted.values()):
        return ClaimReading(None, f"the kernel does not say which is beside which; fastest: {measured}")
    wrong = [gpu for gpu, way in best.items() if ways[gpu][way] > max(ways[gpu][one] for one in wanted[gpu]) * _ALIKE]
    if wrong:
        return ClaimReading(", ".join(f"GPU {gpu} has {best[gpu]}" for gpu in sorted(wrong)), measured, same=False)
    said = f"{what} beside each GPU"
    if alike:
        return ClaimReading(said, f"all are alike for {count(len(alike), 'GPU')}", same=True, partial=True)
    return ClaimReading(said, f"{min(speeds):.3g} to {max(speeds):.3g} GB/s", same=True)
