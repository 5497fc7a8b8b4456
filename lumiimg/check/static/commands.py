"""The commands among remedies: with the names of an image and a machine, and chosen by how the image came to be."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.sites import DEFAULT, site_to_make_for
from lumiimg.core.errors import LumiimgError
from lumiimg.core.files import unused
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
"""Of an image that holds no plugin."""
_SCAN = "lumiimg host scan -o host.json && "
ON_NODE = "on a GPU node"
_PLUGIN_LAYER = "aws-ofi-nccl"
_NO_OTHER = "no similar base in the catalogue works: `lumiimg list` shows them all"
_PLANNED: dict[tuple[RequestOptions, tuple[int, ...] | None], Plan | LumiimgError | OSError] = {}
"""What came of a request: several findings ask."""


def with_commands(context: ImageInContext, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with commands that can be pasted, where one mends what was found."""
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
    yield from concluded(finding.remedy, context.name, site_of(context.machine), context)


def concluded(
    remedies: Iterable[Remedy], image: str, site: str, context: ImageInContext | None = None
) -> tuple[Remedy, ...]:
    """Return remedies with the names of an image and a site, without a command that is refused.

    `context`: the image where it is open, so that it is not read again.
    """
    names = {"image": shell_quote(image), "base": shell_quote(with_folder(image)), "site": shell_quote(site)}
    names["check"] = shell_join(["lumiimg", "check", image, *(context.options_there if context is not None else ())])
    machine = context.machine if context is not None and context.machine else ("--site", site)
    return tuple(tried(remedy.concluded(names), image, machine, context) for remedy in remedies)


def after_scan(command: str, name: str = "host.json") -> str:
    """Return a command behind the scan whose snapshot it takes by --host, to be typed on a node.

    A snapshot that is there is not replaced: `drift` may need it.
    """
    return f"lumiimg host scan -o {unused(name)} && {command.replace(f'--host {name}', f'--host {unused(name)}')}"


def tried(remedy: Remedy, image: str, machine: Sequence[str], context: ImageInContext | None = None) -> Remedy:
    """Return a remedy that is not refused: in the place of one that is, the nearest that works, for all that was found.

    `lumiimg explain --base` is about another base than the image: where one is found, what builds on it stands there.
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
    return Remedy(remedy.text if is_look else "", other.command, where)  # not what a command does that is refused


def _with_unused_output(words: list[str]) -> str:
    """Return a command that writes no file that is there."""
    named = (unused(word) if before == "-o" else word for before, word in pairwise(["", *words]))
    return shell_join(named)


def is_refused(words: Sequence[str], context: ImageInContext | None = None) -> bool:
    """Whether `lumiimg adapt` or `build` with these words refuses at once, or finds nothing to do.

    False where that is not known: the image is not here, or the request has packages of the user's own.
    """
    is_adapt = words[1] == "adapt"
    plan = _planned(["--base", with_folder(words[2]), *words[3:]] if is_adapt else words[2:], context)
    if plan is None or isinstance(plan, Exception):
        return plan is not None
    return plan.refused or (is_adapt and plan.lock is not None and not plan.lock.layers)


def _planned(words: Sequence[str], context: ImageInContext | None) -> Plan | LumiimgError | OSError | None:
    """Return what comes of a request, planned as it would be when it is typed; None where that is not known."""
    options = RequestOptions.from_words(words)
    base = options.base or ""
    path = context.path if context is not None and base == context.address else Path(base)
    # a name that cannot be printed no build takes: the command names the image at least
    if options.given("recipe", "requirements") or not base.isprintable() or ("/" in base and not path.exists()):
        return None
    try:
        version = _version_of(path) if "/" in base else None
        if (key := (options, version)) not in _PLANNED:
            _PLANNED[key] = _plan(options, path, version, context)
        return _PLANNED[key]
    except (LumiimgError, OSError) as error:
        return error


def _version_of(file: Path) -> tuple[int, ...]:
    """Return what changes when another file is there, or it is written again."""
    seen = file.stat()
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns


def _plan(options: RequestOptions, path: Path, version: tuple[int, ...] | None, context: ImageInContext | None) -> Plan:
    """Return the answer to a request; `path` and `version` are of the image that it starts from, if it is one."""
    from lumiimg.catalog.catalogue import open_catalogue  # all of this is for an image that lacks something
    from lumiimg.catalog.sites import find_site
    from lumiimg.host.snapshot import read_snapshot
    from lumiimg.resolve.context import PlanContext
    from lumiimg.resolve.image_base import local_base
    from lumiimg.resolve.planner import decide

    def choose() -> str:
        node = read_snapshot(options.host).host if options.host else os.uname().nodename
        return site_to_make_for(os.environ, node, elsewhere=options.host is not None).name

    catalogue = _once(open_catalogue(os.environ, list(options.layers)))
    request = request_of(options, catalogue, choose, ())
    images = {}
    if version is not None and context is not None and version == _version_of(context.path):
        site = find_site(str(request.site), os.environ)
        images[request.base] = local_base(path, context.contents_of(context.plain), site)
    elif version is not None:
        images[request.base] = _read(request.base, version, str(request.site))
    return decide(request, replace(PlanContext.from_request(request, catalogue, os.environ), images=images))


@cache
def _once(catalogue: Catalogue) -> Catalogue:
    """Return the same catalogue for the same folders: its files are read once for all images."""
    return catalogue


@cache
def _read(base: str, _version: tuple[int, ...], site: str) -> ForeignBase:
    """Return what an image has, once: to read it takes as long as to check it."""
    from lumiimg.catalog.sites import find_site
    from lumiimg.resolve.image_base import read_foreign

    return read_foreign(base, Path, find_site(site, os.environ))


def site_of(machine: Sequence[str]) -> str:
    """Return the site that options name, else the one that things are made for."""
    return next((word for option, word in pairwise(machine) if option == "--site"), DEFAULT)


def bind_command(image: str, machine: Sequence[str]) -> str:
    """Return what binds, in a shell, what an image needs of a machine."""
    return f"source <({shell_join(['lumiimg', 'bind', image, *machine])})"


def _with_plugin(context: ImageInContext, finding: Finding) -> Remedy:
    """Return the command that gives a plugin: the image is built again with it where it says how it was built.

    Else it is put on the image, in front of one that does not do; where all of that is refused, on another base.
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
    return Remedy(command=shell_join([*found, "-o", _written(image)]))


def with_plugin_on_base(image: str, machine: Sequence[str], context: ImageInContext | None = None) -> Remedy:
    """Return what builds an image with a plugin: on this image, else as near to it as works; else why nothing does."""
    request, output = _request(image, machine), ["-o", _written(image)]
    plan = _planned(request, context)
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


def _written(image: str) -> str:
    """Return a file name for the image with a plugin, different from that of the image without."""
    return unused("with-plugin.sif" if image.rpartition("/")[2] != "with-plugin.sif" else "with-newer-plugin.sif")


def _is_replaced(option: str, value: str, machine: Sequence[str]) -> bool:
    """Whether an option of a build is not repeated: the machine is another one's, the plugin's layer is the newest."""
    if option == "--add":
        return re.split("[=<>!~]", value)[0] == _PLUGIN_LAYER
    return option == "--site" and bool(machine)


def _is_of_plugin(finding: Finding) -> bool:
    """Whether a plugin is not loaded for what is wrong with its own file, by the words of the loader."""
    if finding.id != "plugin.loads" or not finding.evidence or first_command(finding.remedy):
        return False
    file = finding.where or finding.evidence[0].partition(": ")[0]
    own = (f"{file}: ", f"{file.rpartition('/')[2]}: ")
    return all(line.startswith(own) or f"(required by {file})" in line for line in finding.evidence)
