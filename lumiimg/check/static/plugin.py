"""A net plugin that RCCL finds: whether it loads, whether RCCL takes its API, and which libfabric it gets."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.elf.facts import exported_symbols
from lumiimg.elf.files import RecordedElf
from lumiimg.elf.undefined import UndefinedSymbols, undefined_in
from lumiimg.errors import BadInputError, one_line
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, NET_SYMBOL, PROVIDER_FILE, net_api, part_of
from lumiimg.fabric.provider import HSA, cxi_provider, lack_of_rocr
from lumiimg.findings import Code, Remedy, Severity
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.check.static.result import StaticResult
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.fabric.path import FabricPath
    from lumiimg.image import RootFileSystem


def judge_plugin(
    root: RootFileSystem, outcome: LoadOutcome, process: Process, static: StaticResult, found: Findings
) -> StaticResult:
    """Judge a plugin that was found: its libraries, its API, and the libfabric that it gets.

    `root` is what the process sees: the image's files, with the binds over them.
    """
    plugin = outcome.root
    assert plugin is not None  # noqa: S101 - asked by the caller
    _judge_load(root, outcome, process, plugin, found)
    taken = _judge_api(root, plugin, static.path, found)
    libfabric, libcxi = process.find(LIBFABRIC), process.find(LIBCXI)
    if libfabric is not None:
        _judge_provider(root, process, plugin, libfabric, static.provider_path, found)
    elif not any(finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} for finding in found.found):
        what = f"{plugin.path} does not use libfabric: it is not the OFI plugin"
        what += ", and it is not known here whether it can use Slingshot"
        found.add(Code.PROVIDER_NO_LIBFABRIC, Severity.UNKNOWN, what, where=plugin.path)
    path = replace(
        static.path,
        plugin=plugin.path,
        plugin_api=taken,
        libfabric=libfabric.path if libfabric else None,
        libcxi=libcxi.path if libcxi else None,
    )
    return replace(static, path=path, plugin_found_by=plugin.found_by)


def _judge_load(
    root: RootFileSystem, outcome: LoadOutcome, process: Process, plugin: LoadedObject, found: Findings
) -> None:
    path, symbols = plugin.path, UndefinedSymbols() if outcome.errors else undefined_in(root, process, outcome.objects)
    undefined = symbols.lines[:8]
    if outcome.errors:
        _judge_errors(plugin, outcome, found)
    elif undefined and symbols.is_sure:
        what = f"{path} cannot be loaded: nothing that it sees defines {symbols.found[0].symbol.name}"
        found.add(Code.PLUGIN_LOADS, Severity.PROBLEM, what, reason="undefined", where=path, evidence=undefined)
    else:
        what, by = f"{path} and all that it needs would be loaded", f"found by: {plugin.found_by.value}"
        found.add(Code.PLUGIN_LOADS, Severity.OK, what, where=path, evidence=(by,))
    _judge_called_later(root, outcome, process, plugin, found)
    if symbols.unread:
        what = f"it is not known whether all symbols of the plugin are defined: {symbols.unread}"
        found.add(Code.PLUGIN_SYMBOLS, Severity.UNKNOWN, what, reason="unread", where=path)
    if undefined and not symbols.is_sure:
        what = "nothing of the image defines symbols of the plugin; whether the host's libraries do is not recorded"
        found.add(Code.PLUGIN_SYMBOLS, Severity.UNKNOWN, what, reason="undefined", where=path, evidence=undefined)


def _judge_called_later(
    root: RootFileSystem, outcome: LoadOutcome, process: Process, plugin: LoadedObject, found: Findings
) -> None:
    """Judge what of the fabric came with the start: there, a call is bound at its first use, and ends the process."""
    fabric = [each for each in process.scopes.list_of(plugin) if each is plugin or part_of(each.path)]
    there = [each for each in fabric if each not in outcome.objects]
    lacking = undefined_in(root, process, there) if there and not outcome.errors else UndefinedSymbols()
    if lacking.found and lacking.is_sure:
        file, name, lines = lacking.found[0].loaded.path, lacking.found[0].symbol.name, lacking.lines[:8]
        what = f"{file} came with the start, and nothing that it sees defines {name}: the process ends where that is "
        what += "called"
        found.add(Code.PLUGIN_SYMBOLS, Severity.UNKNOWN, what, reason="called-later", where=file, evidence=lines)


@cache
def _host_libraries() -> frozenset[str]:
    return frozenset(own_table(__package__, "host_libraries.toml")["names"])


def lacks_of_host(outcome: LoadOutcome) -> tuple[str, ...]:
    """Return the names that a load lacks, where a machine brings all of them and nothing else is wrong."""
    names = tuple(dict.fromkeys(missing.name for missing in outcome.missing))
    is_all = not outcome.missing_versions and _host_libraries().issuperset(name.partition(".so")[0] for name in names)
    return names if is_all else ()


def _judge_errors(plugin: LoadedObject, outcome: LoadOutcome, found: Findings) -> None:
    chain = outcome.missing[0].chain if outcome.missing else (plugin.path,)
    details: FindingDetails = {"where": plugin.path, "evidence": outcome.errors[:8], "chain": chain}
    if names := lacks_of_host(outcome):
        what = f"the plugin needs {', '.join(names)}, which the image does not have: it must come from the host"
        found.add(Code.PLUGIN_NEEDS_HOST, Severity.UNKNOWN, what, **details)
    else:
        details["remedy"] = tuple(dict.fromkeys(map(_remedy_for, outcome.errors)))
        what = f"{plugin.path} cannot be loaded"
        found.add(Code.PLUGIN_LOADS, Severity.PROBLEM, what, reason="not-loaded", **details)


def _remedy_for(error: str) -> Remedy:
    """Return what to do about one error of the loader; its words are those of glibc."""
    path = shlex.quote(error.partition(":")[0])
    if "cannot enable executable stack" in error:
        return Remedy(f"patchelf --clear-execstack {path}   (in the image's %post; glibc 2.41 refuses such a library)")
    if "static TLS block" in error:
        return Remedy(
            "what is loaded at the start is given the room that it needs", f"export SINGULARITYENV_LD_PRELOAD={path}"
        )
    if "CPU ISA level" in error:
        return Remedy(f"build {path} for the CPU of the machine: -march=znver3 on LUMI")
    return Remedy("add the libraries named above to the image, or build the plugin in it: `lumiimg list`")


def _judge_api(root: RootFileSystem, plugin: LoadedObject, path: FabricPath, found: Findings) -> int | None:
    """Return the net API of the plugin that RCCL takes, if there is one."""
    try:
        file = root.open(plugin.path)
        symbols = file.net_symbols if isinstance(file, RecordedElf) else exported_symbols(file, NET_SYMBOL)
    except BadInputError as error:
        found.add(Code.PLUGIN_API, Severity.UNKNOWN, f"its symbols cannot be read: {one_line(str(error))}")
        return None
    exported = net_api(symbols)
    taken = next((version for version in path.accepts if version in exported), None)
    shown = ", ".join(f"v{version}" for version in exported) or "none"
    if taken is not None:
        found.add(Code.PLUGIN_API, Severity.OK, f"the plugin exports net API {shown}; this RCCL takes v{taken}")
    elif path.accepts:
        accepted = ", ".join(f"v{version}" for version in path.accepts)
        what = f"the plugin exports net API {shown}; RCCL {path.rccl_version or ''} takes only {accepted}"
        reason = "only-v5" if exported == (5,) else "refused"
        found.add(Code.PLUGIN_API, Severity.PROBLEM, what, reason=reason, where=plugin.path)
    return taken


def _judge_gpu_memory(root: RootFileSystem, process: Process, libfabric: LoadedObject, found: Findings) -> None:
    if (why := lack_of_rocr(process, root)) is None:
        return
    what, where = f"{libfabric.path} does not know GPU memory: {why}", libfabric.path
    runtime = process.find(f"{HSA}.1") if HSA in why else None
    names = {"link": shlex.quote(f"{runtime.path.rpartition('/')[0]}/{HSA}")} if runtime else {}
    reason = "no-link" if runtime else None
    found.add(Code.PROVIDER_NO_GPU_MEMORY, Severity.UNKNOWN, what, reason=reason, names=names, where=where)


def _judge_provider(
    root: RootFileSystem,
    process: Process,
    plugin: LoadedObject,
    libfabric: LoadedObject,
    provider_path: str | None,
    found: Findings,
) -> None:
    provider = cxi_provider(process, root, provider_path)
    if provider is not None:
        what = f"{libfabric.path} has the cxi provider"
        if provider != libfabric.path:
            what += f" in a file of its own, {provider}, which loads"
        found.add(Code.PROVIDER_CXI_BUILT_IN, Severity.INFO, what, where=provider)
        _judge_gpu_memory(root, process, libfabric, found)
    elif LIBCXI not in libfabric.facts.needed:  # else it has the provider, and the plugin's own finding says what lacks
        what = f"{libfabric.path} has no cxi provider (it does not need {LIBCXI}, nor is there a {PROVIDER_FILE} that "
        what += "loads, where it looks for one): alone, it would use TCP"
        reason, names = "elsewhere" if provider_path else None, {"path": provider_path or ""}
        where, chain = libfabric.path, (plugin.path, libfabric.path)
        found.add(Code.PROVIDER_NO_CXI, Severity.UNKNOWN, what, reason=reason, names=names, where=where, chain=chain)
