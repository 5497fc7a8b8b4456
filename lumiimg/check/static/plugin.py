"""The net plugin of an RCCL: where it is found, or why not; whether it loads and is taken; which libfabric it gets."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import remedies_for
from lumiimg.check.static.load_faults import add_closed, failed_load, judge_denied, loop_of_links, searched_first
from lumiimg.core.errors import BadInputError, one_line
from lumiimg.core.findings import Remedy, Severity
from lumiimg.elf import dlsym, exported_symbols, find_undefined
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
from lumiimg.fabric.process import HSA, PROVIDER_PATH, built_for_cuda, cxi_provider, why_no_rocr
from lumiimg.fabric.rccl import PLUGIN_VARIABLE, Rccl
from lumiimg.host.root_queries import denied_files, loop_at

if TYPE_CHECKING:
    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import LoadedObject, LoadResult, Process
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
"""Reasons why a plugin cannot be loaded, by words in glibc's messages."""


@dataclass(frozen=True, slots=True)
class PluginJudgement:
    """The plugin of an RCCL in its process, and the findings about it."""

    contents: Inventory
    variables: Variables
    root: RootFileSystem
    """File system of the process: the image's files, overlaid with the binds."""
    process: Process
    path: FabricPath
    """The fabric path up to the plugin."""
    found: Findings

    def load(self, rccl: LoadedObject, library: Rccl) -> LoadResult | None:
        """Follow RCCL's dlopen of its plugin; if none is found, report why: another folder, another name, or no plugin.

        `library` is what was read from the bytes of `rccl`.
        """
        names = self.path.plugin_files
        absent: list[str] = []
        broken: dict[str, LoadResult] = {}
        for name in names:
            outcome = self.process.dlopen(name, rccl)
            if outcome.root is not None:
                return outcome
            if outcome.finds_nothing(name):
                absent += outcome.errors
            else:
                broken[name] = outcome  # RCCL continues with the next name
        if judge_denied(self.root, self.process, names, "RCCL cannot load its plugin", absent, self.found):
            return None
        if broken:
            name, outcome = next(iter(broken.items()))
            of, lines = {"name": name, "so_far": ""}, outcome.errors
            if loop := loop_of_links(self.contents, outcome):
                of["loop"] = loop
                self.found.add("plugin.dangling", Severity.PROBLEM, reason="loop", names=of, evidence=lines)
            else:
                self.found.add("plugin.loads", Severity.PROBLEM, reason="not-a-library", names=of, evidence=lines)
        elif names:
            self._judge_absence(library, absent)
        return None

    def _judge_absence(self, library: Rccl, lines: list[str]) -> None:
        """Judge why dlopen finds no file for the names that RCCL asks for; `lines` are its messages."""
        root, process, path, found = self.root, self.process, self.path, self.found
        asked = path.plugin_files
        severity, names = Severity.PROBLEM, {"names": " or ".join(asked), "so_far": ""}
        if _hides_a_search(self.variables.image):
            severity, names["so_far"] = Severity.UNKNOWN, ", in the parts of the image that were read"
        plugins = [file for file in self.contents.rccl_files if part_of(file) is Part.PLUGIN]
        dangling = [file for file in plugins if not root.exists(file)]
        dangling.sort(key=lambda file: posixpath.basename(file) not in asked)
        elsewhere = [file for file in plugins if file not in dangling]
        same_name = [file for file in elsewhere if posixpath.basename(file) in asked]
        passed_over = next(filter(None, map(process.skip_reason, same_name)), None)
        searched = str(process.config.library_path)
        # a loop of symlinks ends the search there (glibc elf/dl-load.c, open_path)
        loops = [file for file in dangling if posixpath.dirname(file) in searched.split(":") and loop_at(root, file)]
        where = next(iter(loops or same_name or dangling or elsewhere), None)
        details: FindingDetails = {"where": where, "evidence": lines}
        if where in dangling:
            loop = loop_at(root, where)
            names |= {"target": root.readlink(where), "loop": loop or ""}
            found.add("plugin.dangling", severity, reason="loop" if loop else None, names=names, **details)
        elif passed_over is not None:
            names["why"] = passed_over
            found.add("plugin.loads", Severity.PROBLEM, reason="passed-over", names=names, **details)
        elif same_name:
            folder = posixpath.dirname(same_name[0])
            names |= {"folder": folder, "searched": searched, "wanted": searched_first(folder, process.config)}
            found.add("plugin.not-on-path", severity, names=names, **details)
        elif elsewhere:
            details["remedy"] = self._remedies_for_a_name(elsewhere[0], library)
            renamed = "renamed" if posixpath.basename(elsewhere[0]) in PLUGIN_FILES else "suffixed"
            reason = "named" if path.named_by else renamed
            found.add("plugin.other-name", severity, reason=reason, names=names, **details)
        else:
            details["chain"] = (path.rccl or "", asked[0])
            found.add("plugin.absent", severity, names=names, **details)

    def _remedies_for_a_name(self, file: str, library: Rccl) -> tuple[Remedy, ...]:
        """Return what leads RCCL to a plugin of another name, tried in the model: the variable unset or set; a link."""

        def leads(names: tuple[str, ...]) -> bool:
            return any(self.process.dlopen(name).root is not None for name in names)

        own, (folder, base), path = library.names(None), posixpath.split(file), self.path
        without = (self.variables.without(PLUGIN_VARIABLE),) if path.named_by else ()
        if without and (leads(own) or base in own):  # in a folder that is not searched, which the next finding reports
            return without
        suffixed = _SUFFIXED.fullmatch(base)
        values = [value for value in (suffixed and suffixed[1], file) if value and leads(library.names(value))]
        leading = [self.variables.set_to(PLUGIN_VARIABLE, shlex.quote(value)) for value in values]
        asked = [name for name in path.plugin_files if "/" not in name]
        if leading and not asked:
            return (leading[0],)
        # of a name and its suffixed form, the second
        name = shlex.quote(posixpath.join(folder, (asked or own)[-1 if without else 0]))
        link = remedies_for("plugin.other-name", "link", file=shlex.quote(file), link=name)
        return (*leading[:1], *(() if asked else without), *link)

    def judge(self, outcome: LoadResult) -> FabricPath:
        """Judge a plugin that was found: its libraries, its API, its libfabric; return the path with them."""
        process, plugin, found = self.process, outcome.root, self.found
        assert plugin is not None  # noqa: S101 - asked by the caller
        if outcome.errors:
            self._judge_errors(plugin, outcome)
        else:
            _judge_symbols(outcome, process, plugin, found)
        taken = _judge_api(process, plugin, self.path, found)
        rccl = process.find(self.path.rccl) if self.path.rccl else None
        if rccl is not None and (why := built_for_cuda(process, self.root, plugin, rccl)) is not None:
            found.add("plugin.cuda", Severity.PROBLEM, where=plugin.path, evidence=(f"{plugin.path}: {why}",))
        libfabric, libcxi = process.find(LIBFABRIC), process.find(LIBCXI)
        if libfabric is not None:
            self._judge_provider(plugin, libfabric)
        elif not any(finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} for finding in found.found):
            found.add("provider.no-libfabric", Severity.UNKNOWN, where=plugin.path)
        return replace(
            self.path,
            plugin=plugin.path,
            plugin_api=taken,
            libfabric=libfabric.path if libfabric else None,
            libcxi=libcxi.path if libcxi else None,
        )

    def _judge_errors(self, plugin: LoadedObject, outcome: LoadResult) -> None:
        lost, failing = [missing.name for missing in outcome.missing], f"RCCL cannot load {plugin.path}"
        if judge_denied(self.root, self.process, lost, failing, outcome.errors, self.found):
            return
        load = failed_load(self.contents, self.process, outcome, plugin.path)
        details, own = load.details, load.details.get("remedy", ())
        details["chain"] = details["chain"] or (plugin.path,)
        if load.of_host:
            reason = "in-image" if load.is_in_image else "loop" if load.loop else None
            of, of_host = {"libraries": ", ".join(load.of_host)}, remedies_for("plugin.needs-host", "host")
            # the first one fixes everything
            details["remedy"] = (*own, *of_host) if load.is_in_image else (*of_host, *own)
            self.found.add("plugin.needs-host", Severity.UNKNOWN, reason=reason, names=of, **details)
        else:
            ways = [remedy for error in outcome.errors for remedy in _remedies_for(error)]
            details["remedy"] = tuple(dict.fromkeys((*own, *ways)))
            self.found.add("plugin.loads", Severity.PROBLEM, reason="not-loaded", **details)

    def _judge_provider(self, plugin: LoadedObject, libfabric: LoadedObject) -> None:
        where, named = libfabric.path, self.variables.get(PROVIDER_PATH)
        provider = cxi_provider(self.process, self.root, named)
        if provider is not None:
            reason = None if provider == where else "own-file"
            of = {"libfabric": where}
            self.found.add("provider.cxi-built-in", Severity.INFO, reason=reason, names=of, where=provider)
            _judge_gpu_memory(self.root, self.process, libfabric, self.found)
        elif LIBCXI in libfabric.facts.needed:
            return  # it has the provider, and the plugin's own finding says what is missing
        elif closed := denied_files(self.root, self.process.files.denied, (LIBCXI, PROVIDER_FILE)):
            add_closed(closed, Severity.PROBLEM, self.found, f"{where} has no cxi provider")
        else:
            reason, of, chain = "elsewhere" if named else None, {"path": named or ""}, (plugin.path, where)
            self.found.add("provider.no-cxi", Severity.UNKNOWN, reason=reason, names=of, where=where, chain=chain)


def _hides_a_search(image: Image) -> bool:
    """Return whether the unread parts of an image may lead the loader to a plugin."""
    return bool(image.description.warnings) or any(map(image.is_in_doubt, _OF_THE_SEARCH))


def _judge_symbols(outcome: LoadResult, process: Process, plugin: LoadedObject, found: Findings) -> None:
    """Judge the symbols of a plugin whose libraries are all found."""
    path, symbols = plugin.path, find_undefined(process, outcome.objects)
    lacking = symbols.lines
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
    """Judge the fabric's libraries that are loaded at start: an undefined function ends the process when called."""
    fabric = [each for each in process.scopes.local_scope_of(plugin) if each is plugin or part_of(each.path)]
    there = [each for each in fabric if each not in outcome.objects]
    lacking = find_undefined(process, there)
    if lacking.found and lacking.is_sure:
        file, of = lacking.found[0].loaded.path, {"symbol": lacking.found[0].symbol.name}
        details: FindingDetails = {"where": file, "evidence": lacking.lines}
        found.add("plugin.symbols", Severity.UNKNOWN, reason="called-later", names=of, **details)


def _remedies_for(error: str) -> tuple[Remedy, ...]:
    """Return the remedies for one error of the loader."""
    reason = next((reason for words, reason in _BY_WORDS.items() if words in error), "not-loaded")
    file = error.partition(":")[0]
    return remedies_for("plugin.loads", reason, file=file, quoted=shlex.quote(file))


def _judge_api(process: Process, plugin: LoadedObject, path: FabricPath, found: Findings) -> int | None:
    """Return the net API that RCCL takes from the plugin, if any; dlsym also finds it in the plugin's dependencies."""
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


def _judge_gpu_memory(root: RootFileSystem, process: Process, libfabric: LoadedObject, found: Findings) -> None:
    if (why := why_no_rocr(process, root)) is None:
        return
    names, reason = {"why": why}, None
    if HSA in why and (runtime := process.find(f"{HSA}.1")) is not None:
        names["link"], reason = shlex.quote(f"{runtime.path.rpartition('/')[0]}/{HSA}"), "no-link"
    found.add("provider.no-gpu-memory", Severity.UNKNOWN, reason=reason, names=names, where=libfabric.path)
