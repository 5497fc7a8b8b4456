"""The net plugin of an RCCL: where it is found, or why not; whether it loads, is taken, and which libfabric it gets."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.check.registry import remedies_for
from lumiimg.check.static.process_faults import add_closed, judge_denied
from lumiimg.core.errors import BadInputError, one_line
from lumiimg.core.findings import Remedy, Severity
from lumiimg.core.toml import package_toml
from lumiimg.elf import dlsym, exported_symbols, undefined_in
from lumiimg.fabric.path import (
    LIBCXI,
    LIBFABRIC,
    NET_SYMBOL,
    PLUGIN_FILES,
    PROVIDER_FILE,
    FabricPath,
    Part,
    net_api,
    net_symbol,
    part_of,
)
from lumiimg.fabric.process import HSA, built_for_cuda, cxi_provider, lack_of_rocr
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl
from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.host.root_queries import denied_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import LoadedObject, LoaderConfig, LoadResult, Process
    from lumiimg.host.rccl_process import Variables
    from lumiimg.image import Image, RootFileSystem
    from lumiimg.inventory.components import Inventory

_SUFFIXED = re.compile(r"lib[nr]ccl-net-(.+)\.so")
_OF_THE_SEARCH = ("LD_LIBRARY_PATH", "LD_PRELOAD", PLUGIN_VARIABLE)
_BY_WORDS = {
    "cannot enable executable stack": "executable-stack",
    "static TLS block": "static-tls",
    "CPU ISA level": "cpu-level",
}
"""Why a plugin cannot be loaded, by words of glibc."""
_SHOWN = 8


def load_plugin(
    variables: Variables,
    contents: Inventory,
    process: Process,
    rccl: LoadedObject,
    path: FabricPath,
    library: Rccl,
    found: Findings,
) -> LoadResult | None:
    """Follow RCCL's dlopen of its plugin; where nothing is found, say why: another folder, name, or nothing at all.

    `library` is what the bytes of `rccl` say.
    """
    files, names = contents.rccl_files, path.plugin_files
    absent: list[str] = []
    broken: dict[str, LoadResult] = {}
    for name in names:
        outcome = process.dlopen(name, rccl)
        if outcome.root is not None:
            return outcome
        if outcome.finds_nothing(name):
            absent += outcome.errors
        else:
            broken[name] = outcome  # RCCL goes on with the next name
    if judge_denied(variables.image.root, process, names, "RCCL cannot load its plugin", absent, found):
        return None
    if broken:
        name, outcome = next(iter(broken.items()))
        of, lines = {"name": name}, tuple(outcome.errors[:4])
        if loop := loop_of_links(contents, outcome):
            of = {"loop": loop, "so_far": ""}
            found.add("plugin.dangling", Severity.PROBLEM, reason="loop", names=of, evidence=lines)
        else:
            found.add("plugin.loads", Severity.PROBLEM, reason="not-a-library", names=of, evidence=lines)
    elif names:
        _judge_absence(variables, process, files, path, library, tuple(absent[:4]), found)
    return None


def _judge_absence(
    variables: Variables,
    process: Process,
    files: list[str],
    path: FabricPath,
    library: Rccl,
    lines: tuple[str, ...],
    found: Findings,
) -> None:
    """Judge why no file is found by the names that RCCL gives to dlopen; `lines` is what that says."""
    root, asked = variables.image.root, path.plugin_files
    severity, names = Severity.PROBLEM, {"names": " or ".join(asked), "so_far": ""}
    if _hides_a_search(variables.image):
        severity, names["so_far"] = Severity.UNKNOWN, ", as far as the image is seen"
    plugins = [file for file in files if part_of(file) is Part.PLUGIN]
    dangling = [file for file in plugins if not root.exists(file)]
    dangling.sort(key=lambda file: posixpath.basename(file) not in asked)
    elsewhere = [file for file in plugins if file not in dangling]
    same_name = [file for file in elsewhere if posixpath.basename(file) in asked]
    passed_over = next(filter(None, map(process.passes_over, same_name)), None)
    searched = (process.config.library_path or "").split(":")
    # a loop ends the search there (glibc elf/dl-load.c, open_path)
    loops = [file for file in dangling if posixpath.dirname(file) in searched and root.link_loop(file)]
    if loops or (dangling and not same_name):
        loop = root.link_loop(link := (loops or dangling)[0])
        names |= {"target": root.readlink(link), "loop": _in_words(loop)}
        reason = "loop" if loop else None
        found.add("plugin.dangling", severity, reason=reason, names=names, where=link, evidence=lines)
    elif passed_over is not None:
        names["why"], where = passed_over, same_name[0]
        found.add("plugin.loads", Severity.PROBLEM, reason="passed-over", names=names, where=where, evidence=lines)
    elif same_name:
        folder, settings = posixpath.dirname(same_name[0]), process.config
        names |= {"folder": folder, "searched": str(settings.library_path), "wanted": _prepended(folder, settings)}
        found.add("plugin.not-on-path", severity, names=names, where=same_name[0], evidence=lines)
    elif elsewhere:
        ways = _remedies_for_a_name(variables, process, elsewhere[0], path, library)
        details: FindingDetails = {"where": elsewhere[0], "evidence": lines, "remedy": ways}
        renamed = "renamed" if posixpath.basename(elsewhere[0]) in PLUGIN_FILES else "suffixed"
        reason = "named" if path.named_by else renamed
        found.add("plugin.other-name", severity, reason=reason, names=names, **details)
    else:
        found.add("plugin.absent", severity, names=names, evidence=lines, chain=(path.rccl or "", asked[0]))


def _hides_a_search(image: Image) -> bool:
    """Whether what is not seen of an image may lead the loader to a plugin."""
    return bool(image.description.warnings) or any(map(image.is_in_doubt, _OF_THE_SEARCH))


def _remedies_for_a_name(
    variables: Variables, process: Process, file: str, path: FabricPath, library: Rccl
) -> tuple[Remedy, ...]:
    """Return what leads RCCL to a plugin of another name, each tried: the variable taken away, or naming it; a link."""

    def leads(names: tuple[str, ...]) -> bool:
        return any(process.dlopen(name).root is not None for name in names)

    own, (folder, base) = library.names(None), posixpath.split(file)
    without = (variables.without(PLUGIN_VARIABLE),) if path.named_by else ()
    if without and (leads(own) or base in own):  # in a folder that is not searched, which is said next
        return without
    suffixed = _SUFFIXED.fullmatch(base)
    values = (*([suffixed[1]] if suffixed else []), file)
    leading = [variables.set_to(PLUGIN_VARIABLE, shlex.quote(value)) for value in values if leads(library.names(value))]
    asked = [name for name in path.plugin_files if "/" not in name]
    if leading and not asked:
        return (leading[0],)
    # of a name and its suffixed form, the second
    name = shlex.quote(posixpath.join(folder, (asked or own)[-1 if without else 0]))
    link = remedies_for("plugin.other-name", "link", file=shlex.quote(file), link=name)
    return (*leading[:1], *(() if asked else without), *link)


def _prepended(folder: str, settings: LoaderConfig) -> str:
    """Return LD_LIBRARY_PATH with a folder in front: what the engine is given replaces what the image says."""
    rest = [part for part in (settings.library_path or "").split(":") if part and part != ENGINE_LIBRARIES]
    return ":".join([folder, *rest])


def judge_plugin(
    contents: Inventory,
    root: RootFileSystem,
    outcome: LoadResult,
    process: Process,
    path: FabricPath,
    provider_path: str | None,
    found: Findings,
) -> FabricPath:
    """Judge a plugin that was found: its libraries, its API, and the libfabric that it gets; return the path with them.

    `root` is what the process sees: the image's files, with the binds over them. `provider_path` is FI_PROVIDER_PATH.
    """
    plugin = outcome.root
    assert plugin is not None  # noqa: S101 - asked by the caller
    if outcome.errors:
        _judge_errors(contents, root, process, plugin, outcome, found)
    else:
        _judge_symbols(outcome, process, plugin, found)
    taken = _judge_api(process, plugin, path, found)
    rccl = process.find(path.rccl) if path.rccl else None
    if rccl is not None and (why := built_for_cuda(process, root, plugin, rccl)) is not None:
        found.add("plugin.cuda", Severity.PROBLEM, where=plugin.path, evidence=(f"{plugin.path}: {why}",))
    libfabric, libcxi = process.find(LIBFABRIC), process.find(LIBCXI)
    if libfabric is not None:
        _judge_provider(root, process, plugin, libfabric, provider_path, found)
    elif not any(finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} for finding in found.found):
        found.add("provider.no-libfabric", Severity.UNKNOWN, where=plugin.path)
    return replace(
        path,
        plugin=plugin.path,
        plugin_api=taken,
        libfabric=libfabric.path if libfabric else None,
        libcxi=libcxi.path if libcxi else None,
    )


def _judge_symbols(outcome: LoadResult, process: Process, plugin: LoadedObject, found: Findings) -> None:
    """Judge the symbols of a plugin whose libraries are all there."""
    path, symbols = plugin.path, undefined_in(process, outcome.objects)
    lacking = symbols.lines[:_SHOWN]
    if lacking and symbols.is_sure:
        of = {"symbol": symbols.found[0].symbol.name}
        found.add("plugin.loads", Severity.PROBLEM, reason="undefined", names=of, where=path, evidence=lacking)
    else:
        found.add("plugin.loads", Severity.OK, where=path, evidence=(f"found by: {plugin.found_by.value}",))
    _judge_called_later(outcome, process, plugin, found)
    if symbols.unread:
        of = {"why": symbols.unread}
        found.add("plugin.symbols", Severity.UNKNOWN, reason="unread", names=of, where=path)
    if lacking and not symbols.is_sure:
        found.add("plugin.symbols", Severity.UNKNOWN, reason="undefined", where=path, evidence=lacking)


def _judge_called_later(outcome: LoadResult, process: Process, plugin: LoadedObject, found: Findings) -> None:
    """Judge what of the fabric came with the start: there, a call is bound at its first use, and ends the process."""
    fabric = [each for each in process.scopes.list_of(plugin) if each is plugin or part_of(each.path)]
    there = [each for each in fabric if each not in outcome.objects]
    lacking = undefined_in(process, there)
    if lacking.found and lacking.is_sure:
        file, of = lacking.found[0].loaded.path, {"symbol": lacking.found[0].symbol.name}
        details: FindingDetails = {"where": file, "evidence": lacking.lines[:_SHOWN]}
        found.add("plugin.symbols", Severity.UNKNOWN, reason="called-later", names=of, **details)


@cache
def _host_libraries() -> frozenset[str]:
    return frozenset(package_toml(__package__, "host_libraries.toml")["names"])


def lacks_of_host(outcome: LoadResult) -> tuple[str, ...]:
    """Return the names that a load lacks, where a machine brings all of them and nothing else is wrong."""
    names = tuple(dict.fromkeys(missing.name for missing in outcome.missing))
    is_all = not outcome.missing_versions and _host_libraries().issuperset(name.partition(".so")[0] for name in names)
    return names if is_all else ()


def loop_of_links(contents: Inventory, outcome: LoadResult) -> str | None:
    """Return a sentence on the links that lead in a circle, where these end a load."""
    ends = f": {os.strerror(errno.ELOOP)}"
    names = {posixpath.basename(error.partition(":")[0]) for error in outcome.errors if error.endswith(ends)}
    loops = map(contents.image.root.link_loop, contents.libraries_called(names))
    return next((_in_words(loop) for loop in loops if loop), None)


def _in_words(loop: Sequence[str]) -> str:
    return f"{' → '.join(loop[:_SHOWN])} is a loop of links"


@dataclass(frozen=True, slots=True)
class UnsearchedFiles:
    """What an image has of the libraries that a load lacks: in folders where the loader does not look."""

    paths: Mapping[str, str]
    """By the name that is asked for; of several files the first that the loader would take."""
    settings: LoaderConfig

    @property
    def sentence(self) -> str | None:
        """What is where; None where the image has none."""
        paths = ", ".join(self.paths.values())
        return f"the loader does not look where the image has it: {paths}" if self.paths else None

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What has the loader look there."""
        folders = list(dict.fromkeys(map(posixpath.dirname, self.paths.values())))
        names = {"wanted": _prepended(":".join(folders), self.settings), "folders": shlex.join(folders)}
        return remedies_for("plugin.loads", "in-image", **names) if folders else ()


def unsearched_files(contents: Inventory, process: Process, outcome: LoadResult) -> UnsearchedFiles:
    """Return the files that an image has for what a load lacks."""
    names, paths = {missing.name for missing in outcome.missing}, dict[str, str]()
    for path in contents.libraries_called(names):
        if process.would_take(path):
            paths.setdefault(posixpath.basename(path), path)
    return UnsearchedFiles(paths, process.config)


def _judge_errors(
    contents: Inventory,
    root: RootFileSystem,
    process: Process,
    plugin: LoadedObject,
    outcome: LoadResult,
    found: Findings,
) -> None:
    chain = outcome.missing[0].chain if outcome.missing else (plugin.path,)
    details: FindingDetails = {"where": plugin.path, "evidence": tuple(outcome.errors[:_SHOWN]), "chain": chain}
    lost = [missing.name for missing in outcome.missing]
    if judge_denied(root, process, lost, f"RCCL cannot load {plugin.path}", outcome.errors, found):
        return
    there, loop = unsearched_files(contents, process, outcome), loop_of_links(contents, outcome)
    details["cause"] = loop or there.sentence
    if names := lacks_of_host(outcome):
        is_there = there.paths.keys() >= {*names}
        reason = "in-image" if is_there else "loop" if loop else None
        of = {"libraries": ", ".join(names)}
        own, of_host = there.remedies, remedies_for("plugin.needs-host", "host")
        details["remedy"] = (*own, *of_host) if is_there else (*of_host, *own)  # the first one mends all of it
        found.add("plugin.needs-host", Severity.UNKNOWN, reason=reason, names=of, **details)
        return
    ways = [remedy for error in outcome.errors for remedy in _remedies_for(error)]
    details["remedy"] = tuple(dict.fromkeys((*there.remedies, *ways)))
    found.add("plugin.loads", Severity.PROBLEM, reason="not-loaded", **details)


def _remedies_for(error: str) -> tuple[Remedy, ...]:
    """Return what to do about one error of the loader."""
    reason = next((reason for words, reason in _BY_WORDS.items() if words in error), "not-loaded")
    file = error.partition(":")[0]
    return remedies_for("plugin.loads", reason, file=file, quoted=shlex.quote(file))


def _judge_api(process: Process, plugin: LoadedObject, path: FabricPath, found: Findings) -> int | None:
    """Return the net API that RCCL takes of the plugin, if there is one: dlsym finds it in what that needs, too."""
    symbols: set[str] = set()
    try:
        with process.open(plugin) as file:
            symbols |= exported_symbols(file, NET_SYMBOL)
        symbols |= {name for name in map(net_symbol, path.accepts) if dlsym(process, plugin, name) is not None}
    except (OSError, BadInputError) as error:
        if not symbols:
            found.add("plugin.api", Severity.UNKNOWN, reason="unread", names={"why": one_line(str(error))})
            return None
    exported = net_api(symbols)
    taken = next((version for version in path.accepts if version in exported), None)
    names = {"exported": _versions(exported) or "none", "taken": f"v{taken}", "accepted": _versions(path.accepts)}
    if taken is not None:
        found.add("plugin.api", Severity.OK, reason="taken", names=names)
    elif path.accepts:
        names["version"] = path.rccl_version or ""
        reason = "only-v5" if exported == (5,) else "refused"
        found.add("plugin.api", Severity.PROBLEM, reason=reason, names=names, where=plugin.path)
    return taken


def _versions(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"v{number}" for number in numbers)


def _judge_provider(
    root: RootFileSystem,
    process: Process,
    plugin: LoadedObject,
    libfabric: LoadedObject,
    provider_path: str | None,
    found: Findings,
) -> None:
    where, provider = libfabric.path, cxi_provider(process, root, provider_path)
    if provider is not None:
        reason = None if provider == where else "own-file"
        found.add("provider.cxi-built-in", Severity.INFO, reason=reason, names={"libfabric": where}, where=provider)
        _judge_gpu_memory(root, process, libfabric, found)
    elif closed := denied_files(root, process.files.denied, (LIBCXI, PROVIDER_FILE)):
        add_closed(closed, Severity.PROBLEM, found, f"{where} has no cxi provider")
    elif LIBCXI not in libfabric.facts.needed:  # else it has the provider, and the plugin's own finding says what lacks
        reason, of = "elsewhere" if provider_path else None, {"path": provider_path or ""}
        chain = (plugin.path, where)
        found.add("provider.no-cxi", Severity.UNKNOWN, reason=reason, names=of, where=where, chain=chain)


def _judge_gpu_memory(root: RootFileSystem, process: Process, libfabric: LoadedObject, found: Findings) -> None:
    if (why := lack_of_rocr(process, root)) is None:
        return
    names, reason = {"why": why}, None
    if HSA in why and (runtime := process.find(f"{HSA}.1")) is not None:
        names["link"], reason = shlex.quote(f"{runtime.path.rpartition('/')[0]}/{HSA}"), "no-link"
    found.add("provider.no-gpu-memory", Severity.UNKNOWN, reason=reason, names=names, where=libfabric.path)
