"""What the records of a trial say of each claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumiimg.check.answer import Answer
from lumiimg.cluster.trial.claims import ALIKE, NO_CHANGE, RUNS, SLOWER, THERE
from lumiimg.cluster.trial.look import looks_in, numbers
from lumiimg.cluster.trial.values import Claim, Ending, Outcome, Record
from lumiimg.findings import Code, Severity
from lumiimg.nccl.report import FAST, TRANSPORTS
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lumiimg.cluster.trial.folder import TrialFolder
    from lumiimg.cluster.trial.values import Look, TrialPlan

_TOLERANCE = 0.1
"""Of two runs that are the same; more where the two that were made differ by more."""
_CLOCK_S = 60.0
"""By which clocks of nodes may differ: they answer one after the other."""
_NO_VALUE = "none"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured; None where nothing was, and why."""

    value: str | None
    why: str = ""
    number: float | None = None
    same: bool | None = None
    """Where more than equality decides."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that there is to judge a claim by."""

    plan: TrialPlan
    records: Mapping[str, Record]
    outputs: Mapping[str, dict[str, Any]]
    looks: tuple[Look, ...]

    @classmethod
    def of(cls, folder: TrialFolder, plan: TrialPlan) -> Case:
        """Read what there is. Raises BadInputError for a file that no trial has written."""
        records = {step.name: record for step in plan.steps if (record := folder.record(step.name)) is not None}
        outputs = {name: folder.output(name) for name in records}
        return cls(plan, records, outputs, looks_in(folder.looks))


def reading(case: Case, claim: Claim) -> Reading:
    """Return what was measured of a claim."""
    record = case.records.get(claim.step)
    if record is None:
        return Reading(None, "not done yet")
    if record.ending is not Ending.DONE:
        words = {
            Ending.SKIPPED: "left out: " + "; ".join(record.said),
            Ending.TIMED_OUT: f"ended at its limit, after {record.seconds / 60:.0f} min",
            Ending.CUT_OFF: "the job ended in it, twice",
            Ending.FAILED: "; ".join(record.said[-1:]) or f"ended with {record.code}, without a word",
        }
        return Reading(None, words[record.ending])
    if claim.id.startswith("site."):
        return _of_site(case, claim)
    return _of_image(case, claim)


def outcome(claim: Claim, read: Reading) -> Outcome:
    """Return what a claim came to."""
    if read.value is None:
        return Outcome.OPEN
    if claim.predicted is None:
        return Outcome.NEWS
    if read.same is not None:
        same = read.same
    elif claim.least is not None:
        same = read.number is not None and read.number >= claim.least
    else:
        same = read.value in {claim.predicted, *claim.also}
    return Outcome.SAME if same else Outcome.DIFFERS


# -- of the site


def _of_site(case: Case, claim: Claim) -> Reading:
    key, _, name = claim.id.removeprefix("site.").partition(":")
    if key in {"partition", "mpi"}:
        return _of_slurm(case.outputs.get(claim.step, {}), key, name)
    if not case.looks:
        return Reading(None, "no node has answered")
    if key == "path":
        return _on_nodes(case, lambda look: _word(look.paths.get(name), THERE))
    if key == "identity":
        return _on_nodes(case, lambda look: _word(any(look.variables.values()), THERE))
    if key == "near":
        return _near(case, claim)
    read = _on_nodes(case, _OF_NODE[key])
    if key == "gpus" and read.value == "0":
        return Reading(None, "the job was given no GPUs")
    if read.value is None:
        fabric = next((look.no_fabric for look in case.looks if look.no_fabric), None)
        return Reading(None, fabric if key in {"libfabric", "glibc"} and fabric else "the nodes do not show it")
    return read


def _word(there: bool | None, word: str) -> str | None:
    return None if there is None else word if there else f"not {word}"


_OF_NODE: dict[str, Callable[[Look], str | None]] = {
    "processors": lambda look: look.processors,
    "gpu": lambda look: ", ".join(sorted(set(look.gpus))) or None,
    "driver": lambda look: look.gpu_driver,
    "kernel": lambda look: look.kernel,
    "libfabric": lambda look: look.libfabric,
    "glibc": lambda look: look.glibc,
    "engine": lambda look: look.engine,
    "interfaces": lambda look: ",".join(sorted(look.interfaces)) or None,
    "gpus": lambda look: f"{len(look.gpus)}",
    "cores": lambda look: f"{look.cores}",
}


def _on_nodes(case: Case, value_of: Callable[[Look], str | None]) -> Reading:
    """Return what the nodes say: one value, or each with the number of nodes that say so."""
    values = [value_of(look) for look in case.looks]
    found: dict[str, int] = {}
    for value in values:
        found[value or _NO_VALUE] = found.get(value or _NO_VALUE, 0) + 1
    if not any(values):
        return Reading(None, "the nodes do not show it")
    if len(found) == 1:
        return Reading(next(iter(found)))
    told = (f"{value} on {count(number, 'node')}" for value, number in sorted(found.items(), key=lambda one: -one[1]))
    return Reading("; ".join(told), "the nodes differ", same=False)


def _near(case: Case, claim: Claim) -> Reading:
    """Compare by the cores beside each GPU: the kernel knows NUMA nodes, the site's file groups within them."""
    near = [numbers(text) for text in case.looks[0].near]
    predicted = dict(part.split(":") for part in (claim.predicted or "").split())
    if not any(near):
        return Reading(None, "the kernel names no cores beside the GPUs")
    if len(near) != len(predicted):
        return Reading(None, f"the job has {count(len(near), 'GPU')} of {len(predicted)} on a node")
    wrong = [gpu for gpu, cores in enumerate(near) if int(predicted[f"{gpu}"]) not in cores]
    if not wrong:
        return Reading("in the NUMA node of each GPU", same=True)
    told = ", ".join(f"GPU {gpu} has {case.looks[0].near[gpu]}" for gpu in wrong)
    return Reading(told, same=False)


def _of_slurm(output: dict[str, Any], key: str, name: str) -> Reading:
    known = output.get("partitions" if key == "partition" else "mpi")
    if not known:
        return Reading(None, "Slurm does not say")
    if key == "mpi":
        return Reading(_word(name in known, THERE))
    if name not in known:
        return Reading("no such partition", same=False)
    return Reading("no limit" if known[name] is None else f"{known[name]:g}")


# -- of an image


def _of_image(case: Case, claim: Claim) -> Reading:
    key = claim.id.partition(".")[2].partition(":")[0]
    output = case.outputs.get(claim.step, {})
    if key in {"without", "with"}:
        return _changed(case, claim)
    if key in {"one-node", "one-node-vni"}:
        return _listens(output)
    if key == "alike":
        return _alike(output)
    if key == "opens":
        return _opens(output)
    if key in {"network", "socket.network", "bandwidth", "gpu-code", "driver"}:
        return _of_run(output, key)
    return _of_probe(output, key)


def _of_run(output: dict[str, Any], key: str) -> Reading:
    ran = output.get("collective")
    if not ran:
        return Reading(None, _no_collective(output))
    verdict, best = str(ran.get("verdict")), _best(output)
    if key in {"gpu-code", "driver"}:
        if best is None:
            return Reading(None, "the collective gave no result")
        return Reading(RUNS, "" if key == "driver" else f"of RCCL, in {ran.get('program')}")
    if key == "bandwidth":
        if best is None:
            return Reading(None, "the collective gave no result")
        return Reading(f"{best:.4g} GB/s", number=best)
    if verdict not in {*TRANSPORTS}:
        return Reading(None, f"its log says {verdict}")
    return Reading(verdict, f"{ran.get('confidence')}, {count(int(ran.get('ranks', 0)), 'rank')}")


def _no_collective(output: dict[str, Any]) -> str:
    levels = output.get("levels")
    run = levels.get("run") if isinstance(levels, dict) else None
    return f"{run}" if run else "no collective was run"


def _best(output: dict[str, Any]) -> float | None:
    rows = (output.get("collective") or {}).get("measurements") or []
    return max((float(row["best_gb_s"]) for row in rows if row.get("best_gb_s")), default=None)


def _of_probe(output: dict[str, Any], key: str) -> Reading:
    groups = output.get("groups") or []
    if not groups:
        return Reading(None, "no node has answered")
    silent = sum(len(entry.get("nodes", ())) for entry in output.get("silent") or [])
    why = f"{count(silent, 'node')} gave no answer" if silent else ""
    if key == "answer":
        answers = [str(group.get("answer")) for group in groups]
        if len(set(answers)) == 1 and answers[0] == Answer.UNDECIDED:
            return Reading(None, "; ".join(filter(None, (str(groups[0].get("sentence")), why))))
        return _one_of(answers, groups, why)
    values = [(group.get("path") or {}).get(key.replace("-", "_")) for group in groups]
    if not any(values):
        return Reading(None, "the probes did not come so far")
    return _one_of([str(value or _NO_VALUE) for value in values], groups, why)


def _one_of(values: list[str], groups: list[dict[str, Any]], why: str) -> Reading:
    if len(set(values)) == 1:
        return Reading(values[0], why)
    told = (f"{value} on {count(len(group['nodes']), 'node')}" for value, group in zip(values, groups, strict=True))
    return Reading("; ".join(dict.fromkeys(told)), "the nodes differ", same=False)


def _listens(output: dict[str, Any]) -> Reading:
    """Return whether the plugin got onto the fabric: a handshake that failed for want of a NIC shows nothing."""
    groups = output.get("groups") or []
    if not groups:
        return Reading(None, "no node has answered")
    found = {str(finding.get("id")): finding for finding in groups[0].get("findings") or []}
    if found.get(Code.PROVIDER_CXI, {}).get("severity") == Severity.OK:
        return Reading("yes")
    about = [finding for code, finding in found.items() if code.startswith(("plugin.", "provider."))]
    failed = next((finding for finding in about if finding.get("severity") == Severity.PROBLEM), None)
    if failed is not None:
        return Reading("no", str(failed.get("summary")))
    unknown = next((finding for finding in about if finding.get("severity") == Severity.UNKNOWN), None)
    return Reading(None, str(unknown.get("summary")) if unknown is not None else "the plugin did not come so far")


def _alike(output: dict[str, Any]) -> Reading:
    groups = output.get("groups") or []
    if not groups:
        return Reading(None, "no node has answered")
    differs = [str(text) for group in groups[1:] for text in group.get("differs") or []]
    return Reading(ALIKE) if not differs else Reading("; ".join(dict.fromkeys(differs))[:400])


def _opens(output: dict[str, Any]) -> Reading:
    startups = output.get("startups") or output.get("places") or []
    if not startups:
        return Reading(None, "nothing was counted")
    program = startups[0].get("program") or {}
    shared = startups[0].get("shared")
    asked = "" if shared is None else f"; {shared.get('metadata')} of them reach the file system that holds the image"
    return Reading(f"{program.get('files')} files, {program.get('metadata')} calls{asked}")


def _changed(case: Case, claim: Claim) -> Reading:
    """Compare a collective with the one that had what jobs there have; two of the same say how far two runs differ."""
    name = claim.step.partition(".")[0]
    output, base = case.outputs.get(claim.step, {}), case.outputs.get(f"{name}.run", {})
    ran, before = output.get("collective"), base.get("collective")
    if not before:
        return Reading(None, "there is no run to compare it with")
    if not ran:
        same = None if claim.predicted is None else claim.predicted == SLOWER
        return Reading("it fails", _no_collective(output), same=same)
    first, again, now = _best(base), _best(case.outputs.get(f"{name}.again", {})), _best(output)
    if ran.get("verdict") != before.get("verdict"):
        told = f"{ran.get('verdict')} instead of {before.get('verdict')}"
        return Reading(told, same=claim.predicted == SLOWER if ran.get("verdict") not in FAST else False)
    if first is None or now is None:
        return Reading(None, "the collective gave no result")
    noise = max(_TOLERANCE, abs(first - again) / first * 2 if again is not None else 0.0)
    ratio = now / first
    told = f"{now:.4g} GB/s, {ratio:.2f} of {first:.4g}"
    what = NO_CHANGE if abs(ratio - 1) <= noise else "slower" if ratio < 1 else "faster"
    same = None if claim.predicted is None else (what == "slower" if claim.predicted == SLOWER else what == NO_CHANGE)
    return Reading(f"{what}: {told}", f"two runs alike differ by up to {noise:.0%}", now, same)


def notes(case: Case) -> list[str]:
    """Return what else a reader must know: clocks apart, others on the nodes, an engine that changed."""
    found = []
    clocks = [look.clock for look in case.looks]
    if clocks and max(clocks) - min(clocks) > _CLOCK_S:
        found.append(f"the clocks of the nodes are {max(clocks) - min(clocks):.0f} s apart")
    shared = [look for look in case.looks if look.strangers]
    if shared:
        found.append(f"others had processes on {count(len(shared), 'node')}: bandwidths there prove little")
    engines = {record.engine for record in case.records.values() if record.engine}
    if len(engines) > 1:
        found.append(f"the container engine changed during the trial: {', '.join(sorted(engines))}")
    said = (line for record in case.records.values() if record.step == "nodes" for line in record.said)
    found += [line for line in said if line.startswith("no answer: ")]
    return found
