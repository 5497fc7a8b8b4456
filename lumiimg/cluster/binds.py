"""The binds and variables of containers on a machine, written for shells, modules and engines, or refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.check.static.variables import as_doubts, judge_variables
from lumiimg.cluster.quoting import NOT_IN_PATHS, UNSAFE, names_in
from lumiimg.core.errors import FailedError, one_safe_line
from lumiimg.core.findings import Level, Severity
from lumiimg.engine.binds import BindSpec
from lumiimg.fabric.path import FabricPath
from lumiimg.host.manifest import Bind
from lumiimg.resolve.stack import read_by_srun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.launch import SiteVariable
    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.files import BoundImage, HostFit
    from lumiimg.host.manifest import BindManifest, Variable
    from lumiimg.host.snapshot import Snapshot

NOTHING_BOUND = "nothing has to be bound: the image has everything that its fabric path loads"
_REFUSED = {
    # a caller that sources this or puts it on a command line and ignores the exit code must not continue without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
}
_NOT_IN_LISTS = re.compile(r'[,"\\]|\]=*\]')
"""The list is separated by commas; Lmod converts Tcl to Lua and quotes nothing in a list."""
_RANK_VARIABLES = {"SLURM_LOCALID", "SLURM_PROCID", "LOCAL_RANK", "RANK"}


class SetIn(StrEnum):
    """Where a variable gets its value."""

    BATCH = "batch"
    """Outside the container: srun reads it there, whatever an image sets."""
    NODE = "node"
    """In the container, where the image's own settings cannot override it and the node's number is known."""
    RANK = "rank"
    """In each rank: its value refers to the rank's number."""


@dataclass(frozen=True, slots=True)
class JobVariable:
    """A variable for a job, and why."""

    name: str
    """Name of the variable."""
    value: str
    """The value in shell syntax."""
    why: str
    """The reason, as a sentence."""
    source: str = ""
    """Source of the value."""
    folder: str | None = None
    """A folder to create first, in shell syntax."""
    literal: bool = False

    @classmethod
    def from_site(cls, item: SiteVariable) -> JobVariable:
        """Return a variable of a site file."""
        return cls(item.name, item.value, item.because, item.source, item.folder)

    @property
    def set_in(self) -> SetIn:
        """Where the variable gets its value: batch script, container, or each rank."""
        if read_by_srun(self.name):
            return SetIn.BATCH
        return SetIn.RANK if not self.literal and self.names & _RANK_VARIABLES else SetIn.NODE

    @property
    def names(self) -> set[str]:
        """Names of the variables that its value refers to."""
        return names_in(self.value)

    @property
    def reason(self) -> str:
        """The reason, with its source."""
        return f"{self.why} ({self.source})" if self.source else self.why


def caches_of(site: Site | None, variables: Iterable[JobVariable]) -> str | None:
    """Return the site's folder for the caches of a job on its node; None if no variable has a value below it."""
    return site.caches if site is not None and any(site.is_cache(item.value) for item in variables) else None


def variables_of_engine(snapshot: Snapshot | None, site: Site | None = None) -> str:
    """Return the prefix of the engine's variables on a machine; both engines read the older one, SINGULARITY."""
    engine = snapshot.engine if snapshot is not None else None
    name = engine.name if engine is not None else site.engine if site is not None else None
    return "APPTAINER" if (name or "").startswith("Apptainer") else "SINGULARITY"


def site_binds(site: Site | None) -> tuple[Bind, ...]:
    """Return the binds that all containers on a site get."""
    if site is None:
        return ()
    return tuple(Bind(one.path, one.path, f"{one.reason} ({one.source or site.name})") for one in site.binds)


def manifest_for(
    fit: HostFit | None, snapshot: Snapshot | None, site: Site | None
) -> tuple[BindManifest | None, str | None]:
    """Return the manifest of an image, for a scanned node or else from the image itself, and a doubt about it.

    It includes the binds that the site gives all containers. None: nothing is known about the image's files or a node.
    """
    if fit is None or snapshot is not None:
        return fit.manifest if fit is not None else None, None
    carried = fit.carried.for_jobs
    return replace(carried, binds=(*carried.binds, *site_binds(site))) if carried else None, fit.carried.doubt


def blocking_settings(context: ImageInContext) -> Iterator[str]:
    """Yield settings of an unchecked image that keep RCCL off the fabric, whatever is bound."""
    found = Findings(Level.STATIC)
    judge_variables(context.variables, FabricPath(), found)
    for finding in as_doubts(found.found, context.variables):
        if finding.severity is Severity.PROBLEM and (context.site is None or context.site.vendor is None):
            yield f"{finding.summary} (`lumiimg check` says what to do)"


def spec(bind: Bind) -> str:
    """Return a bind in the syntax of `--bind`."""
    text = str(BindSpec(bind.source, bind.target))
    options = [*(["image-src=/"] if bind.of_image else []), *(["ro"] if bind.read_only else [])]
    if not options:
        return text
    return ":".join([text, *([text] if bind.source == bind.target else []), ",".join(options)])


def refuse_unsafe(binds: Iterable[Bind], variables: Iterable[Variable], style: str) -> None:
    """Raise FailedError for text from an image or a snapshot that cannot be written without being evaluated.

    `style` is a format of `lumiimg bind`, `module` or `job`.
    """
    for bind in binds:
        paths = bind.source + bind.target
        if NOT_IN_PATHS.search(paths):
            raise FailedError("a path with such characters cannot be bound", where=bind.source)
        if style == "module" and (found := _NOT_IN_LISTS.search(paths)) is not None:
            raise FailedError(f"a path with {found[0]} cannot be added to a module's list of binds", where=bind.source)
    for item in variables if style != "json" else ():
        if UNSAFE.search(item.value) or (style == "singularity" and "," in item.value):
            raise FailedError(
                "contains a character that engines or shells evaluate",
                where=f"{item.name}={item.value}",
                hint="the image's own value is part of it: fix its environment, or use --format json",
            )


def exports(engine: str, binds: Iterable[Bind], variables: Iterable[Variable]) -> list[str]:
    """Return lines for a POSIX shell; sourced twice, they bind once, and the user's own binds stay."""
    lines: list[str] = []
    if specs := ",".join(map(spec, binds)):
        name = f"{engine}_BIND"
        # Apptainer ignores SINGULARITY_BIND if its own variable is set
        old = f"${{{name}:-${{SINGULARITY_BIND:-}}}}" if engine == "APPTAINER" else f"${{{name}:-}}"
        lines = [
            f"lumiimg_binds={shlex.quote(specs)}",
            f'lumiimg_before="{old}"',
            'case ",$lumiimg_before," in',
            f'*",$lumiimg_binds,"*) export {name}="$lumiimg_before" ;;',
            f'*) export {name}="${{lumiimg_before:+$lumiimg_before,}}$lumiimg_binds" ;;',
            "esac",
            "unset lumiimg_binds lumiimg_before",
        ]
    return lines + [f"export {engine}ENV_{item.name}={shlex.quote(item.value)}" for item in variables]


def manifest_text(bound: BoundImage, snapshot: Snapshot, style: str) -> str:
    """Return a manifest as text for a `shell`, or for the command line of `singularity`.

    Raises FailedError for a path that no engine accepts.
    """
    if bound.is_refused:
        return _REFUSED[style]
    manifest = bound.manifest
    refuse_unsafe(manifest.binds, manifest.variables, style)
    if style == "shell":
        comments = [f"# {one_safe_line(line)}" for line in _comments(bound)]
        of_shell = exports(variables_of_engine(snapshot), manifest.binds, manifest.variables)
        return "".join(f"{line}\n" for line in (*comments, *of_shell))
    words = [word for bind in manifest.binds for word in ("--bind", spec(bind))]
    words += [word for item in manifest.variables for word in ("--env", f"{item.name}={item.value}")]
    return f"{shlex.join(words)}\n"


def _comments(bound: BoundImage) -> Iterator[str]:
    """Yield comments that list each bind and variable with its reason."""
    manifest = bound.manifest
    yield f"lumiimg bind {bound.of.image} for {bound.of.host}: fabric {manifest.fabric.value}"
    if not manifest.binds:
        yield NOTHING_BOUND
    for bind in manifest.binds:
        yield f"{bind.source}: {bind.reason}"
        if len(bind.chain) > 1:
            yield f"    {' -> '.join(bind.chain)}"
    yield from (f"{item.name}: {item.reason}" for item in manifest.variables)
    yield from (f"note: {note}" for note in manifest.notes)
    yield from (f"doubt: {doubt}" for doubt in bound.doubts)
