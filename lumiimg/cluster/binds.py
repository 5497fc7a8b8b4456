"""Binds and variables of a manifest as shells, modules and engines take them; what none can take is refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, one_safe_line
from lumiimg.engine.binds import BindSpec
from lumiimg.host.manifest import Bind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumiimg.catalog.sites import Site
    from lumiimg.check.static.files import BoundImage, HostFit
    from lumiimg.host.manifest import BindManifest, Variable
    from lumiimg.host.snapshot import Snapshot

# engines evaluate the values of variables as a shell does; none of these is in a path that somebody means
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f$`\"'\\]")
NOTHING_BOUND = "nothing has to be bound: the image has all that its fabric path loads"
_REFUSED = {
    # whoever sources it, or puts it on a command line, without a look at the exit code, must not go on without binds
    "shell": "echo 'lumiimg bind: refused, nothing is bound' >&2; false\n",
    "singularity": "--lumiimg-bind-refused\n",
}
_NOT_IN_LISTS = re.compile(r'[,"\\]|\]=*\]')
"""The list has commas; Lmod makes Lua of Tcl, and quotes nothing in a list."""
_NOT_FOR_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def variables_of_engine(snapshot: Snapshot | None, site: Site | None = None) -> str:
    """Return what the variables of a machine's engine begin with; both read the older name."""
    if snapshot is not None and snapshot.engine is not None:
        name = snapshot.engine.name
    else:
        name = (site.engine if site is not None else None) or ""
    return "APPTAINER" if name.startswith("Apptainer") else "SINGULARITY"


def site_binds(site: Site) -> tuple[Bind, ...]:
    """Return what all containers on a site get."""
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
    of_site = site_binds(site) if site is not None else ()
    return replace(carried, binds=(*carried.binds, *of_site)) if carried else None, fit.carried.doubt


def spec(bind: Bind) -> str:
    """Return a bind as `--bind` takes it."""
    text = str(BindSpec(bind.source, bind.target))
    options = [*(["image-src=/"] if bind.of_image else []), *(["ro"] if bind.read_only else [])]
    if not options:
        return text
    return ":".join([text, *([text] if bind.source == bind.target else []), ",".join(options)])


def is_path(text: str) -> bool:
    """Tell whether a path can be written into a script or a module: no control characters, and encodable."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return not _NOT_FOR_PATHS.search(text)


def refuse_unsafe(binds: Iterable[Bind], variables: Iterable[Variable], style: str) -> None:
    """Raise FailedError for what comes out of an image or a snapshot and cannot be written so that it stays text.

    `style` is a format of `lumiimg bind`, `module` or `job`.
    """
    for bind in binds:
        if not is_path(bind.source + bind.target):
            raise FailedError("a path with such characters cannot be bound", where=bind.source)
        if style == "module" and (found := _NOT_IN_LISTS.search(bind.source + bind.target)) is not None:
            raise FailedError(f"a path with {found[0]} cannot be in the list that a module adds to", where=bind.source)
    for item in variables:
        if style == "json":
            continue
        if UNSAFE.search(item.value) or not is_path(item.value) or (style == "singularity" and "," in item.value):
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
        lines.append(f"lumiimg_binds={shlex.quote(specs)}")
        lines.append(f'lumiimg_before="{old}"')
        lines.append('case ",$lumiimg_before," in')
        lines.append(f'*",$lumiimg_binds,"*) export {name}="$lumiimg_before" ;;')
        lines.append(f'*) export {name}="${{lumiimg_before:+$lumiimg_before,}}$lumiimg_binds" ;;')
        lines.append("esac")
        lines.append("unset lumiimg_binds lumiimg_before")
    lines += [f"export {engine}ENV_{item.name}={shlex.quote(item.value)}" for item in variables]
    return lines


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
