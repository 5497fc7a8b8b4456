"""Commands in remedies: with the names of an image and a machine filled in, and chosen by how the image was built."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.sites import DEFAULT, target_site
from lumiimg.core.errors import LumiimgError
from lumiimg.core.files import free_name
from lumiimg.core.findings import Finding, Remedy, Severity, first_command
from lumiimg.core.text import shell_join, shell_quote, with_folder
from lumiimg.resolve.request import RequestOptions, request_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.check.context import ImageInContext
    from lumiimg.resolve.image_base import ForeignBase
    from lumiimg.resolve.plan import Plan

_ADAPTED = frozenset({"plugin.absent", "plugin.dangling"})
"""Findings about an image without a plugin."""
_SCAN = "lumiimg host scan -o host.json && "
ON_NODE = "on a GPU node"
_PLUGIN_LAYER = "aws-ofi-nccl"
_NO_OTHER = "no similar base in the catalogue works: `lumiimg list` shows them all"
_PLAN_CACHE: dict[tuple[RequestOptions, tuple[int, ...] | None], Plan | LumiimgError | OSError] = {}
"""Cache of planned requests, as several findings ask for the same one."""


def with_commands(context: ImageInContext, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with commands that can be pasted, if one fixes what was found."""
    return tuple(replace(finding, remedy=tuple(_remedies(context, finding))) for finding in findings)


def _remedies(context: ImageInContext, finding: Finding) -> Iterator[Remedy]:
    if finding.id == "bind.loads":
        yield Remedy(command=bind_command(context.name, context.machine))
        return
    is_wanting = finding.id in {*_ADAPTED, "plugin.api"} or _is_of_plugin(finding)
    if finding.severity is Severity.PROBLEM and is_wanting:
        yield _with_plugin(context, finding)
        if finding.id == "plugin.absent":
            return
    yield from usable_remedies(finding.remedy, context.name, site_of(context.machine), context)


def usable_remedies(
    remedies: Iterable[Remedy], image: str, site: str, context: ImageInContext | None = None
) -> tuple[Remedy, ...]:
    """Return remedies with the names of an image and a site filled in, without commands that are refused.

    `context`: the image if it is already open, so that it is not read again.
    """
    names = {"image": shell_quote(image), "base": shell_quote(with_folder(image)), "site": shell_quote(site)}
    names["check"] = shell_join(["lumiimg", "check", image, *(context.options_there if context is not None else ())])
    machine = context.machine if context is not None and context.machine else ("--site", site)
    return tuple(usable_remedy(remedy.concluded(names), image, machine, context) for remedy in remedies)


def after_scan(command: str, name: str = "host.json") -> str:
    """Return a command, to be typed on a node, that runs after the scan whose snapshot it takes by --host.

    An existing snapshot is not replaced: `drift` may need it.
    """
    return f"lumiimg host scan -o {free_name(name)} && {command.replace(f'--host {name}', f'--host {free_name(name)}')}"


def usable_remedy(remedy: Remedy, image: str, machine: Sequence[str], context: ImageInContext | None = None) -> Remedy:
    """Return a remedy that is not refused: if this one is, the nearest that is not, for everything that was found.

    `lumiimg explain --base` is about a base other than the image: if one is found, a build on it takes its place.
    """
    command = remedy.command or ""
    if command.startswith(_SCAN):
        return Remedy(remedy.text, after_scan(command.removeprefix(_SCAN)), remedy.where)
    if not command.startswith(("lumiimg adapt ", "lumiimg build ", "lumiimg explain --base ")):
        return remedy
    words = shlex.split(command)
    is_look = words[1] == "explain"
    if not is_look and not is_refused(words, context):
        return Remedy(remedy.text, _with_unused_output(words), remedy.where)
    if not is_refused(["lumiimg", "build", *_request(image, machine)], context):
        return remedy if is_look else Remedy(remedy.text, where=remedy.where)
    other = with_plugin_on_base(image, machine, context)
    if other.command is None:
        return other
    where = ", ".join(filter(None, (remedy.where, other.where)))
    return Remedy(remedy.text if is_look else "", other.command, where)  # without the text about the refused one


def _with_unused_output(words: list[str]) -> str:
    """Return a command that does not overwrite an existing file."""
    named = (free_name(word) if before == "-o" else word for before, word in pairwise(["", *words]))
    return shell_join(named)


def is_refused(words: Sequence[str], context: ImageInContext | None = None) -> bool:
    """Return whether `lumiimg adapt` or `build` with these words refuses at once, or finds nothing to do.

    False if that is not known: the image is not here, or the request includes packages of the user's own.
    """
    is_adapt = words[1] == "adapt"
    plan = _plan_or_error(["--base", with_folder(words[2]), *words[3:]] if is_adapt else words[2:], context)
    if plan is None or isinstance(plan, Exception):
        return plan is not None
    return plan.refused or (is_adapt and plan.lock is not None and not plan.lock.layers)


def _plan_or_error(words: Sequence[str], context: ImageInContext | None) -> Plan | LumiimgError | OSError | None:
    """Return the plan of a request, or its error, as if it were typed; None if that is not known."""
    options = RequestOptions.from_words(words)
    base = options.base or ""
    path = context.path if context is not None and base == context.address else Path(base)
    # no build accepts an unprintable name, but the command at least names the image
    if options.given("recipe", "requirements") or not base.isprintable() or ("/" in base and not path.exists()):
        return None
    try:
        version = _version_of(path) if "/" in base else None
        if (key := (options, version)) not in _PLAN_CACHE:
            _PLAN_CACHE[key] = _plan(options, path, version, context)
        return _PLAN_CACHE[key]
    except (LumiimgError, OSError) as error:
        return error


def _version_of(file: Path) -> tuple[int, ...]:
    """Return a value that changes when the file is replaced or rewritten."""
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns


def _plan(options: RequestOptions, path: Path, version: tuple[int, ...] | None, context: ImageInContext | None) -> Plan:
    """Return the plan for a request; `path` and `version` are those of the image that it starts from, if it is one."""
    from lumiimg.catalog.catalogue import open_catalogue  # imported only for an image that lacks something
    from lumiimg.catalog.sites import find_site
    from lumiimg.host.snapshot import read_snapshot
    from lumiimg.resolve.context import PlanContext
    from lumiimg.resolve.image_base import local_base
    from lumiimg.resolve.planner import decide

    def choose() -> str:
        node = read_snapshot(options.host).host if options.host else os.uname().nodename
        return target_site(os.environ, node, elsewhere=options.host is not None).name

    catalogue = _cached_catalogue(open_catalogue(os.environ, list(options.layers)))
    request = request_of(options, catalogue, choose, ())
    images = {}
    if version is not None and context is not None and version == _version_of(context.path):
        site = find_site(str(request.site), os.environ)
        images[request.base] = local_base(path, context.contents_of(context.plain), site)
    elif version is not None:
        images[request.base] = _read(request.base, version, str(request.site))
    return decide(request, replace(PlanContext.from_request(request, catalogue, os.environ), images=images))


@cache
def _cached_catalogue(catalogue: Catalogue) -> Catalogue:
    """Return the same catalogue for the same folders: its files are read once for all images."""
    return catalogue


@cache
def _read(base: str, _version: tuple[int, ...], site: str) -> ForeignBase:
    """Return what an image contains; cached, because reading it takes as long as checking it."""
    from lumiimg.catalog.sites import find_site
    from lumiimg.resolve.image_base import read_foreign

    return read_foreign(base, Path, find_site(site, os.environ))


def site_of(machine: Sequence[str]) -> str:
    """Return the site that options name, else the default site."""
    return next((word for option, word in pairwise(machine) if option == "--site"), DEFAULT)


def bind_command(image: str, machine: Sequence[str]) -> str:
    """Return the shell command that binds what an image needs from a machine."""
    return f"source <({shell_join(['lumiimg', 'bind', image, *machine])})"


def _with_plugin(context: ImageInContext, finding: Finding) -> Remedy:
    """Return the command that adds a plugin: it rebuilds the image with one, if the image records how it was built.

    Else the plugin is put on the image, ahead of an unsuitable one; if all of that is refused, on another base.
    """
    image, machine = context.name, context.machine
    pairs = list(zip(context.built_with[::2], context.built_with[1::2], strict=True))
    built = dict(pairs)
    on_machine = machine or ("--site", DEFAULT)

    def ways() -> Iterator[list[str]]:
        is_for_it = not machine or "--site" not in built or built["--site"] in machine
        if "--base" in built and is_for_it:
            other_words = [word for pair in pairs if not _is_replaced(*pair, machine) for word in pair]
            yield ["lumiimg", "build", *other_words, "--add", _PLUGIN_LAYER, *machine]
        if finding.id in _ADAPTED:
            yield ["lumiimg", "adapt", image, *on_machine]

    found = next((way for way in ways() if not is_refused(way, context)), None)
    if found is None:
        return with_plugin_on_base(image, on_machine, context)
    return Remedy(command=shell_join([*found, "-o", _output_name(image)]))


def with_plugin_on_base(image: str, machine: Sequence[str], context: ImageInContext | None = None) -> Remedy:
    """Return the command that builds an image with a plugin: on this image, else on the nearest base; else why not."""
    request, output = _request(image, machine), ["-o", _output_name(image)]
    plan = _plan_or_error(request, context)
    if isinstance(plan, Exception):
        return Remedy(str(plan))
    if plan is None or not plan.refused:
        return Remedy(command=shell_join(["lumiimg", "build", *request, *output]))
    nearest = plan.nearest_by("build", f" {shell_join(output)}")
    if plan.nearest is None or nearest is None:
        return Remedy(_NO_OTHER)
    is_other = plan.nearest.asked.base != plan.asked.base
    return Remedy(command=nearest.command, where=f"{nearest.text}{', on another base' if is_other else ''}")


def _request(image: str, machine: Sequence[str]) -> list[str]:
    return ["--base", with_folder(image), "--add", _PLUGIN_LAYER, *machine]


def _output_name(image: str) -> str:
    """Return a file name for the image with a plugin, different from that of the image without."""
    return free_name("with-plugin.sif" if image.rpartition("/")[2] != "with-plugin.sif" else "with-newer-plugin.sif")


def _is_replaced(option: str, value: str, machine: Sequence[str]) -> bool:
    """Return whether a rebuild omits an option: the site is another machine's, or the plugin's layer is renewed."""
    if option == "--add":
        return re.split("[=<>!~]", value)[0] == _PLUGIN_LAYER
    return option == "--site" and bool(machine)


def _is_of_plugin(finding: Finding) -> bool:
    """Return whether, by the loader's messages, a plugin is not loaded because of a fault in its own file."""
    if finding.id != "plugin.loads" or not finding.evidence or first_command(finding.remedy):
        return False
    file = finding.where or finding.evidence[0].partition(": ")[0]
    own = (f"{file}: ", f"{file.rpartition('/')[2]}: ")
    return all(line.startswith(own) or f"(required by {file})" in line for line in finding.evidence)
