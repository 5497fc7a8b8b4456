"""The fabric path step by step: which one holds, which is broken, which nobody could look at, and whose file each is.

RCCL → net plugin → libfabric → cxi provider → libcxi → NIC. A step holds where a finding, or a file that was seen,
says so, at the level of that evidence and not beyond; without any it is not known.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.elf.facts import read_elf
from lumiimg.elf.version_check import numbers_of
from lumiimg.errors import BadInputError
from lumiimg.findings import Finding, Level, Severity
from lumiimg.host.container_view import PRIVATE, parse_binds
from lumiimg.nccl.report import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.check.answer import FabricPath
    from lumiimg.check.static.boundary import Boundary
    from lumiimg.host.manifest import Loaded
    from lumiimg.image import Image

_BINDS = ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH")


class Part(StrEnum):
    """A step of the path, in its order."""

    RCCL = "RCCL"
    PLUGIN = "net plugin"
    LIBFABRIC = "libfabric"
    PROVIDER = "cxi provider"
    LIBCXI = "libcxi"
    NIC = "Slingshot NIC"


class State(StrEnum):
    """What is known of a step."""

    HOLDS = "holds"
    """There is evidence for it."""
    BROKEN = "broken"
    """There is evidence against it: the path ends in front of it."""
    UNKNOWN = "not known"


class Side(StrEnum):
    """Whose file it is."""

    IMAGE = "image"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one file of the path comes from."""

    side: Side
    host_path: str | None = None
    """Where it lies on the host; None where it is the image's, or not known."""
    offers: str | None = None
    """The newest version of its own interface that it defines: `FABRIC_1.7`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step."""

    part: Part
    state: State
    why: str
    level: Level | None = None
    """Of the evidence; None where there is none."""
    file: str | None = None
    """In the container; on the host where it is known to come from there."""
    side: Side | None = None
    version: str | None = None
    interface: str | None = None
    """`net API v8`, `FABRIC_1.7`."""
    remedy: tuple[str, ...] = ()
    finding: str | None = None
    """Id of the finding that says so."""
    name: str | None = None
    """Where the step is called otherwise than its part: that of another fabric."""

    @property
    def title(self) -> str:
        """What the step is called."""
        return self.name or self.part.value


_ABOUT = {
    "image.musl": Part.RCCL,
    "rccl.absent": Part.RCCL,
    "rccl.load": Part.RCCL,
    "rccl.probe": Part.RCCL,
    "rccl.no-plugin": Part.PLUGIN,
    "rccl.unknown": Part.PLUGIN,
    "network.forced": Part.PLUGIN,
    "simulated.network": Part.PLUGIN,
    "plugin.init": Part.PROVIDER,
    "plugin.devices": Part.PROVIDER,
    "plugin.properties": Part.PROVIDER,
    "plugin.listen": Part.NIC,
    "provider.no-libfabric": Part.LIBFABRIC,
    "run.bandwidth": Part.NIC,
    "run.failed": Part.NIC,
    "run.hang": Part.NIC,
}
"""What a finding is about, by its id, where the word in front of its dot does not tell."""
_BY_CHAIN = frozenset({"plugin.loads", "plugin.needs-host", "bind.refused", "library.cut-off", "library.not-for-all"})
"""What is lacking is the last library of their chain."""
_BY_VERDICT = {
    Verdict.PLUGIN_MISSING: Part.PLUGIN,
    Verdict.PLUGIN_LOAD_ERROR: Part.PLUGIN,
    Verdict.SOCKET: Part.PLUGIN,
    Verdict.IB: Part.PLUGIN,
    Verdict.PLUGIN_INIT_ERROR: Part.PROVIDER,
    Verdict.OFI_OTHER: Part.PROVIDER,
}
_UNSEEN = {
    Part.RCCL: "there is none to look at",
    Part.PLUGIN: "whether RCCL finds and takes it was not seen",
    Part.LIBFABRIC: "none was found",
    Part.PROVIDER: "whether libfabric has it, and selects it, was not seen",
    Part.LIBCXI: "none was found",
    Part.NIC: "only a probe in a job step on a node with Slingshot can open it",
}


def part_of_verdict(verdict: str | None) -> Part:
    """Return the step that a job did not get past which came to a verdict other than a fast network."""
    return _BY_VERDICT.get(Verdict(verdict), Part.NIC) if verdict else Part.NIC


def origins(
    path: FabricPath,
    image: Image | None,
    environment: Mapping[str, str],
    loaded: Iterable[Loaded] = (),
    *,
    running: bool,
) -> dict[str, Origin]:
    """Return, for each file of a path, whose it is.

    `loaded`: the process as it is modelled with what is bound. `running`: the path was seen in a process; then a file
    that the image does not have, or over which the user binds something, is the host's. `image`: None for a path whose
    files are all modelled, or the image's.
    """
    modelled = {item.object.path: item for item in loaded}
    targets = list(_targets(environment)) if running else []
    found: dict[str, Origin] = {}
    for file in filter(None, (path.rccl, path.plugin, path.libfabric, path.libcxi)):
        item = modelled.get(file)
        if item is not None:
            side = Side.HOST if item.host_path else Side.IMAGE
            found[file] = Origin(side, item.host_path, _newest(file, item.object.facts.version_definitions))
        elif file.startswith(f"{PRIVATE}/") or any(f"{file}/".startswith(target) for target in targets):
            found[file] = Origin(Side.HOST)
        elif image is None:
            found[file] = Origin(Side.IMAGE)
        elif image.root.is_file(file):
            found[file] = Origin(Side.IMAGE, offers=_newest(file, _defined(image, file)))
        else:
            found[file] = Origin(Side.HOST)
    return found


def _targets(environment: Mapping[str, str]) -> Iterator[str]:
    for name in _BINDS:
        try:
            yield from (f"{bind.target.rstrip('/')}/" for bind in parse_binds(environment.get(name, "")))
        except BadInputError:
            continue  # the engine refuses it, and says so


def _defined(image: Image, file: str) -> tuple[str, ...]:
    try:
        with contextlib.closing(image.root.open(file)) as opened:
            return tuple(read_elf(opened).version_definitions)
    except (OSError, BadInputError):
        return ()


def _newest(file: str, versions: Iterable[str]) -> str | None:
    """Return the newest version of a library's own interface, as it names it."""
    stem = {"libfabric": "FABRIC_", "libcxi": "LIBCXI_"}.get(file.rpartition("/")[2].partition(".")[0])
    own = [version for version in versions if stem and version.startswith(stem)]
    return max(own, key=lambda version: numbers_of(version.rpartition("_")[2]), default=None)


def boundary_steps(boundary: Boundary) -> tuple[Step, ...]:
    """Return the path of an image beside a host, as far as files tell."""
    path = boundary.static.path
    known = origins(path, None, {}, boundary.loaded, running=False)
    return fabric_steps(path, boundary.static.findings.found, known)


def fabric_steps(
    path: FabricPath,
    findings: Sequence[Finding],
    known: Mapping[str, Origin],
    *,
    plugin_version: str | None = None,
    verdict: str | None = None,
) -> tuple[Step, ...]:
    """Return the path as findings and files tell it; `verdict` is that of the collective, where there was one."""
    against: dict[Part, Finding] = {}
    for severity in (Severity.PROBLEM, Severity.UNKNOWN):
        for finding in findings:
            part = _part_of(finding, verdict)
            if finding.severity is severity and part is not None:
                against.setdefault(part, finding)
    first_broken = next((p for p in Part if p in against and against[p].severity is Severity.PROBLEM), None)
    made: list[Step] = []
    for part in Part:
        file = _file_of(part, path, findings)
        origin = known.get(file) if file else None
        about = _About(
            file=origin.host_path if origin and origin.host_path else file,
            side=Side.HOST if part is Part.NIC else origin.side if origin else None,
            version={Part.RCCL: path.rccl_version, Part.PLUGIN: plugin_version if path.plugin else None}.get(part),
            interface=f"net API v{path.plugin_api}"
            if part is Part.PLUGIN and path.plugin_api
            else origin.offers
            if origin and part in {Part.LIBFABRIC, Part.LIBCXI}
            else None,
        )
        made.append(_step(part, about, path, findings, against.get(part), first_broken))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _About:
    file: str | None
    side: Side | None
    version: str | None
    interface: str | None


def _step(
    part: Part,
    about: _About,
    path: FabricPath,
    findings: Sequence[Finding],
    against: Finding | None,
    first_broken: Part | None,
) -> Step:
    evidence = _evidence(part, path, findings)
    step = Step(part, State.UNKNOWN, _UNSEEN[part], None, about.file, about.side, about.version, about.interface)
    is_outdone = evidence is not None and against is not None and _rank(evidence[0]) > _rank(against.level)
    if against is not None and (against.severity is Severity.PROBLEM or not is_outdone):
        state = State.BROKEN if against.severity is Severity.PROBLEM else State.UNKNOWN
        told = against.summary
        return replace(step, state=state, why=told, level=against.level, remedy=against.remedy, finding=against.id)
    if evidence is not None:
        return replace(step, state=State.HOLDS, level=evidence[0], why=evidence[1])
    if first_broken is not None and list(Part).index(part) > list(Part).index(first_broken):
        return replace(step, why="not reached: the path ends before it")
    return step


def _rank(level: Level) -> int:
    return list(Level).index(level)


def _part_of(finding: Finding, verdict: str | None) -> Part | None:
    """Return the step that a finding is about; None for what is about none of them alone."""
    if finding.id == "run.network":
        return part_of_verdict(verdict)
    if finding.id in _BY_CHAIN:
        is_of_file = finding.id.startswith("library.")
        names = (*finding.chain, finding.where or "") if is_of_file else finding.chain
        for name in reversed(names):
            base = name.rpartition("/")[2]
            for stem, part in (("libfabric.so", Part.LIBFABRIC), ("libcxi.so", Part.LIBCXI), ("librccl.so", Part.RCCL)):
                if base.startswith(stem) and (part is not Part.RCCL or is_of_file):
                    return part
        return Part.PLUGIN
    room = {"plugin": Part.PLUGIN, "provider": Part.PROVIDER}
    return _ABOUT.get(finding.id) or room.get(finding.id.partition(".")[0])


def _file_of(part: Part, path: FabricPath, findings: Sequence[Finding]) -> str | None:
    if part is Part.PROVIDER:
        return next((finding.where for finding in findings if finding.id == "provider.cxi-built-in"), None)
    files = {Part.RCCL: path.rccl, Part.PLUGIN: path.plugin, Part.LIBFABRIC: path.libfabric, Part.LIBCXI: path.libcxi}
    return files.get(part)


def _evidence(part: Part, path: FabricPath, findings: Sequence[Finding]) -> tuple[Level, str] | None:
    """Return what speaks for a step: the highest level that saw it, and what was seen."""
    held = {(finding.id, finding.level): finding for finding in findings if finding.severity is Severity.OK}
    told = {finding.id: finding for finding in findings if finding.severity in {Severity.OK, Severity.INFO}}
    carried = held.get(("run.network", Level.RUN))
    if carried is not None:
        return Level.RUN, carried.summary
    selected = held.get(("run.selected", Level.RUN))
    if selected is not None and part is not Part.NIC:
        return Level.RUN, selected.summary
    loads = held.get(("plugin.loads", Level.PROBE)) or held.get(("plugin.loads", Level.STATIC))
    match part:
        case Part.RCCL if path.rccl is not None:
            finding = held.get(("rccl.runs", Level.PROBE)) or told.get("rccl.found")
            return (finding.level, finding.summary) if finding else (Level.STATIC, "it is what a program would get")
        case Part.PLUGIN if loads is not None:
            opened = held.get(("rccl.opens-plugin", Level.PROBE))
            return loads.level, (opened or loads).summary
        case Part.PLUGIN if path.plugin is not None:
            return Level.STATIC, f"{path.plugin} is found by a name that RCCL asks for"
        case Part.LIBFABRIC | Part.LIBCXI:
            file = path.libfabric if part is Part.LIBFABRIC else path.libcxi
            if file is not None and loads is not None and loads.level is Level.PROBE:
                return Level.PROBE, f"{file} was mapped in the process of the plugin"
            if file is not None:
                return Level.STATIC, f"{file} is what the loader gives the plugin"
        case Part.PROVIDER | Part.NIC:
            finding = held.get(("provider.cxi", Level.PROBE))
            if finding is None and part is Part.PROVIDER:
                finding = told.get("provider.cxi-built-in")
            return (finding.level, finding.summary) if finding else None
    return None


def _place(steps: Sequence[Step], step: Step) -> str:
    return f"step {list(steps).index(step) + 1} of {len(steps)}"


def in_one_sentence(steps: Sequence[Step]) -> str:
    """Return what the picture of a path shows."""
    broken = [step for step in steps if step.state is State.BROKEN]
    unknown = [step.title for step in steps if step.state is State.UNKNOWN]
    if broken:
        return f"The path is broken at {broken[0].title}, {_place(steps, broken[0])}."
    if unknown:
        return f"No step is known to be broken; not known: {', '.join(unknown)}."
    level = min((step.level for step in steps if step.level), key=_rank, default=Level.STATIC)
    return f"Every step holds, each with evidence of level {level.value} at least."
