"""What containers get on a machine: binds and variables, as shells, modules and engines take them, or refused."""

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
    # whoever sources it, or puts it on a command line, without a look at the exit code, must not go on without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
}
_NOT_IN_LISTS = re.compile(r'[,"\\]|\]=*\]')
"""The list has commas; Lmod makes Lua of Tcl, and quotes nothing in a list."""
_OF_RANK = {"SLURM_LOCALID", "SLURM_PROCID", "LOCAL_RANK", "RANK"}


class SetIn(StrEnum):
    """Where a variable gets its value."""

    BATCH = "batch"
    """Outside of the container: srun reads it there, whatever an image sets."""
    NODE = "node"
    """In the container, so that nothing that the image sets itself comes over it; the node's number is known there."""
    RANK = "rank"
    """In each rank: it names the rank's number."""


@dataclass(frozen=True, slots=True)
class JobVariable:
    """A variable for a job, and why."""

    name: str
    """Of it."""
    value: str
    """As a shell reads it."""
    why: str
    """A sentence."""
    source: str = ""
    """Where that is from."""
    folder: str | None = None
    """To be made first, as a shell reads it."""
    literal: bool = False

    @classmethod
    def from_site(cls, item: SiteVariable) -> JobVariable:
        """Return one of a site's file."""
        return cls(item.name, item.value, item.because, item.source, item.folder)

    @property
    def set_in(self) -> SetIn:
        """Where it gets its value: batch script, container, or each rank."""
        if read_by_srun(self.name):
            return SetIn.BATCH
        return SetIn.RANK if not self.literal and self.names & _OF_RANK else SetIn.NODE

    @property
    def names(self) -> set[str]:
        """Names of the variables that its value names."""
        return names_in(self.value)

    @property
    def reason(self) -> str:
        """Why, with the source."""
        return f"{self.why} ({self.source})" if self.source else self.why


def caches_of(site: Site | None, variables: Iterable[JobVariable]) -> str | None:
    """Return the site's folder for caches of a job, on its node; None where no variable is below it."""
    return site.caches if site is not None and any(site.is_cache(item.value) for item in variables) else None


def variables_of_engine(snapshot: Snapshot | None, site: Site | None = None) -> str:
    """Return what the variables of a machine's engine begin with; both read the older name."""
    engine = snapshot.engine if snapshot is not None else None
    name = engine.name if engine is not None else site.engine if site is not None else None
    return "APPTAINER" if (name or "").startswith("Apptainer") else "SINGULARITY"


def site_binds(site: Site | None) -> tuple[Bind, ...]:
    """Return what all containers on a site get."""
    if site is None:
        return ()
    return tuple(Bind(one.path, one.path, f"{one.reason} ({one.source or site.name})") for one in site.binds)


def manifest_for(
    fit: HostFit | None, snapshot: Snapshot | None, site: Site | None
) -> tuple[BindManifest | None, str | None]:
    """Return what is bound for an image: for a node that was looked at, else what the image carries; and a doubt.

    What the site has for all is in it. None: nothing of an image or a node is known.
    """
    if fit is None or snapshot is not None:
        return fit.manifest if fit is not None else None, None
    carried = fit.carried.for_jobs
    return replace(carried, binds=(*carried.binds, *site_binds(site))) if carried else None, fit.carried.doubt


def forced_off(context: ImageInContext) -> Iterator[str]:
    """Yield what an image sets that keeps RCCL off the fabric, whatever is bound; for one that is not checked."""
    found = Findings(Level.STATIC)
    judge_variables(context.variables, FabricPath(), found)
    for finding in as_doubts(found.found, context.variables):
        if finding.severity is Severity.PROBLEM and (context.site is None or context.site.vendor is None):
            yield f"{finding.summary} (`lumiimg check` says what to do)"


def spec(bind: Bind) -> str:
    """Return a bind as `--bind` takes it."""
    text = str(BindSpec(bind.source, bind.target))
    options = [*(["image-src=/"] if bind.of_image else []), *(["ro"] if bind.read_only else [])]
    if not options:
        return text
    return ":".join([text, *([text] if bind.source == bind.target else []), ",".join(options)])


def refuse_unsafe(binds: Iterable[Bind], variables: Iterable[Variable], style: str) -> None:
    """Raise FailedError for what comes out of an image or a snapshot and cannot be written so that it stays text.

    `style` is a format of `lumiimg bind`, `module` or `job`.
    """
    for bind in binds:
        paths = bind.source + bind.target
        if NOT_IN_PATHS.search(paths):
            raise FailedError("a path with such characters cannot be bound", where=bind.source)
        if style == "module" and (found := _NOT_IN_LISTS.search(paths)) is not None:
            raise FailedError(f"a path with {found[0]} cannot be in the list that a module adds to", where=bind.source)
    for item in variables if style != "json" else ():
        if UNSAFE.search(item.value) or (style == "singularity" and "," in item.value):
            raise FailedError(
                "holds a character that engines or shells evaluate",
                where=f"{item.name}={item.value}",
                hint="the image's own value is part of it: fix its environment, or use --format json",
            )


def exports(engine: str, binds: Iterable[Bind], variables: Iterable[Variable]) -> list[str]:
    """Return lines for a POSIX shell; read twice they bind once, and what the user binds stays."""
    lines: list[str] = []
    if specs := ",".join(map(spec, binds)):
        name = f"{engine}_BIND"
        # Apptainer passes over SINGULARITY_BIND where it has a variable of its own
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
    """Return a manifest for a `shell`, or for the command line of `singularity`.

    Raises FailedError for a path that no engine takes.
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
    """Yield each bind and variable with its reason."""
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
