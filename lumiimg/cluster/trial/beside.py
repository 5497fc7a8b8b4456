"""What is beside each GPU, by what was measured: the fastest of several ways, against the one that was predicted."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.claims import OF_ITS_NUMA_NODE
from lumiimg.cluster.trial.look import is_in
from lumiimg.cluster.trial.nearness import own_nics
from lumiimg.cluster.trial.reading import ClaimReading
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.cluster.trial.nearness import GpuFacts, NicFacts
    from lumiimg.cluster.trial.values import Claim, Look

_PLACE = re.compile(r"(?:^| )(\d{1,5}):(\d{1,5})(?= |$)", re.ASCII)
_ALIKE = 1.1
"""By how much two bandwidths may differ and show no difference, as a factor."""
_NOTHING = "nothing was printed"
_TARGET, _CORES = re.compile(r"[\w:+-]{1,80}", re.ASCII), re.compile(r"[\d,-]{1,4000}", re.ASCII)
_SAID = 200
"""Characters of what a program says."""
_WAY = 40
"""Characters of a list of cores that a row has."""
_SHOWN = 64
"""GPUs that a row names."""
_XNACK = "HSA_XNACK"
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
    targets = Counter(name for name in facts.targets if _TARGET.fullmatch(name))
    found = sorted(targets)
    if not found:
        return ClaimReading(None, (facts.no_targets or facts.why)[:_SAID] or "HSA shows no GPU in the container")
    told = "; ".join(f"{name} of {count(targets[name], 'GPU')}" for name in found[:_SHOWN])
    if _XNACK in facts.variables:
        return ClaimReading(None, f"{_XNACK}={facts.variables[_XNACK][:_SAID]} is set, and changes it: {told}")
    if len(found) > 1:
        return ClaimReading(told, "the GPUs of one node differ", same=False)
    return ClaimReading(found[0])


def fastest_cores(facts: GpuFacts | None, claim: Claim) -> ClaimReading:
    """Return from which cores' memory copies to each GPU are fastest, against the core that is predicted."""
    if facts is None:
        return ClaimReading(None, _NOTHING)
    if why := _numbered_otherwise(facts.variables):
        return ClaimReading(None, why)
    ways = _ways((copy.gpu, copy.cores, copy.gb_s) for copy in facts.copies if _CORES.fullmatch(copy.cores))
    cores, failed = first_cores(claim), facts.why[:_SAID]
    if len(ways) != len(cores):
        shown = f"copies to {count(len(ways), 'GPU')} of {len(cores)} were timed"
        return ClaimReading(None, f"{shown}: {failed}" if failed else shown)
    wanted = {gpu: {text for text in ways.get(gpu, {}) if is_in(core, text)} for gpu, core in enumerate(cores)}
    if not all(wanted.values()):
        return ClaimReading(None, f"not all of the predicted cores were tried: {failed or 'no NUMA node has them'}")
    return _of_some(_fastest(ways, wanted, "memory of the NUMA node of those cores"), ways, failed)


def fastest_nic(facts: NicFacts | None, looks: Sequence[Look]) -> ClaimReading:
    """Return over which NIC each GPU is fastest, against the one that the kernel has in the same NUMA node."""
    if facts is None:
        return ClaimReading(None, _NOTHING)
    if why := _numbered_otherwise(facts.variables):
        return ClaimReading(None, why)
    known = {nic for look in looks for nic in look.nics}
    ways = _ways((run.gpu, run.nic, run.gb_s) for run in facts.runs if run.nic in known and run.gb_s is not None)
    run = next((run for run in facts.runs if run.gb_s is None), None)
    failed = f"GPU {run.gpu} over {run.nic[:_SAID]}: {run.why[:_SAID]}" if run is not None else facts.why[:_SAID]
    if not ways:
        return ClaimReading(None, failed or "no NIC was tried")
    tried = {nic for speeds in ways.values() for nic in speeds}
    if len({(look.near, *(look.nics.get(nic) for nic in sorted(tried))) for look in looks}) > 1:
        return ClaimReading(None, "the nodes do not have their GPUs and NICs in the same places")
    wanted = {gpu: own_nics(looks[0], gpu) & speeds.keys() for gpu, speeds in ways.items()}
    return _of_some(_fastest(ways, wanted, OF_ITS_NUMA_NODE), ways, failed)


def _numbered_otherwise(variables: Mapping[str, str]) -> str:
    """Return which variable gives GPUs other numbers than the kernel's: 0, 1, … leave them as they are."""
    for name, value in variables.items():
        if name != _XNACK and value != ",".join(map(str, range(value.count(",") + 1))):
            return f"{name[:_SAID]}={value[:_SAID]} gives the GPUs other numbers"
    return ""


def _ways(found: Iterable[tuple[int, str, float]]) -> _Ways:
    """Return what was measured: of what was tried twice the best, as what disturbs it only makes it slower."""
    ways: _Ways = {}
    for gpu, way, gb_s in found:
        if 0 < gb_s < math.inf:
            tried = ways.setdefault(gpu, {})
            tried[way] = max(gb_s, tried.get(way, 0.0))
    return ways


def _short(way: str) -> str:
    """Return a way as a row has it: cores that are numbered in turns make a long list."""
    return way if len(way) <= _WAY else f"{way[: way.rindex(',', 0, _WAY) + 1] if ',' in way[:_WAY] else way[:_WAY]}…"


def _of_some(read: ClaimReading, ways: _Ways, failed: str) -> ClaimReading:
    """Return a reading that is partial where not all ways were tried: one that was not may be the fastest."""
    of_any = {way for tried in ways.values() for way in tried}
    if read.value is None or not (failed or any(tried.keys() != of_any for tried in ways.values())):
        return read
    missing = f"not all were tried{f': {failed}' if failed else ''}"
    if not read.decides:
        return ClaimReading(None, f"{read.value}; {missing}")
    return replace(read, partial=True, why="; ".join(filter(None, (read.why, missing))))


def _fastest(ways: _Ways, wanted: Mapping[int, set[str]], said: str) -> ClaimReading:
    """Compare the fastest way to each GPU with those that are predicted; ways that are alike show nothing."""
    best = {gpu: max(tried, key=lambda way: tried[way]) for gpu, tried in ways.items()}
    speeds = [speed for tried in ways.values() for speed in tried.values()]
    measured = ", ".join(
        f"GPU {gpu}: {_short(way)} ({ways[gpu][way]:.3g} GB/s)" for gpu, way in sorted(best.items())[:_SHOWN]
    )
    if all(len(tried) == 1 for tried in ways.values()):
        return ClaimReading(None, f"there is one way to each GPU: {measured}")
    alike = [gpu for gpu, tried in ways.items() if max(tried.values()) <= min(tried.values()) * _ALIKE]
    if len(alike) == len(ways):
        return ClaimReading(f"all are alike: {min(speeds):.3g} to {max(speeds):.3g} GB/s", decides=False)
    # where all of them are in one NUMA node, whichever is the fastest is in it
    judged = [gpu for gpu, tried in ways.items() if wanted[gpu] and wanted[gpu] < tried.keys()]
    if not judged:
        return ClaimReading(None, f"the kernel does not say which is beside which; fastest: {measured}")
    wrong = [gpu for gpu in judged if max(ways[gpu].values()) > max(ways[gpu][one] for one in wanted[gpu]) * _ALIKE]
    if wrong:
        own = {gpu: max(ways[gpu][one] for one in wanted[gpu]) for gpu in wrong}
        told = (
            f"GPU {gpu}: {_short(best[gpu])} ({ways[gpu][best[gpu]]:.3g} GB/s; the predicted one {own[gpu]:.3g})"
            for gpu in sorted(wrong)[:_SHOWN]
        )
        return ClaimReading(", ".join(told), same=False)
    value = f"{said}, for {count(len(judged), 'GPU')}"
    if alike:
        return ClaimReading(value, f"all are alike for {count(len(alike), 'GPU')}", same=True, partial=True)
    why = f"{min(speeds):.3g} to {max(speeds):.3g} GB/s"
    if len(judged) < len(ways):
        others = ", ".join(f"GPU {gpu}" for gpu in sorted(ways.keys() - set(judged))[:_SHOWN])
        return ClaimReading(value, f"{why}; which of them is beside {others} is not known", same=True, partial=True)
    return ClaimReading(value, why, same=True)
