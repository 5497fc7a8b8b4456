"""A net plugin that RCCL finds: whether it loads, whether RCCL takes its API, and which libfabric it gets."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.check.static.plugin_search import RULE_SOURCE
from lumiimg.elf.facts import exported_symbols
from lumiimg.elf.files import RecordedElf
from lumiimg.elf.undefined import UndefinedSymbols, undefined_in
from lumiimg.errors import BadInputError, one_line
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, NET_SYMBOL, PROVIDER_FILE, net_api, part_of
from lumiimg.fabric.provider import HSA, PROVIDER_PATH, cxi_provider, lack_of_rocr
from lumiimg.fabric.rccl import remedy_for_old_api
from lumiimg.findings import Code, Findings, Remedy, Severity
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from lumiimg.check.static.evidence import StaticResult
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
        found.add(
            Code.PROVIDER_NO_LIBFABRIC,
            Severity.UNKNOWN,
            f"{what}, and it is not known here whether it can use Slingshot",
            where=plugin.path,
        )
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
    symbols = UndefinedSymbols() if outcome.errors else undefined_in(root, process, outcome.objects)
    undefined = symbols.lines
    if outcome.errors:
        _judge_errors(plugin, outcome, found)
    elif undefined and symbols.is_sure:
        found.add(
            Code.PLUGIN_LOADS,
            Severity.PROBLEM,
            f"{plugin.path} cannot be loaded: nothing that it sees defines {symbols.found[0].symbol.name}",
            where=plugin.path,
            evidence=undefined[:8],
            cause="RCCL opens its plugin with RTLD_NOW: every symbol must be defined at once",
            remedy=(Remedy("build the plugin again, with all its libraries on the linker's command line"),),
            source="glibc elf/dl-reloc.c; RCCL src/net.cc",
        )
    else:
        found.add(
            Code.PLUGIN_LOADS,
            Severity.OK,
            f"{plugin.path} and all that it needs would be loaded",
            where=plugin.path,
            evidence=(f"found by: {plugin.found_by.value}",),
        )
    _judge_called_later(root, outcome, process, plugin, found)
    if symbols.unread:
        found.add(
            Code.PLUGIN_SYMBOLS,
            Severity.UNKNOWN,
            f"it is not known whether all symbols of the plugin are defined: {symbols.unread}",
            where=plugin.path,
            remedy=(Remedy("fetch or build the image again"),),
            source="glibc elf/dl-reloc.c",
        )
    if undefined and not symbols.is_sure:
        found.add(
            Code.PLUGIN_SYMBOLS,
            Severity.UNKNOWN,
            "nothing of the image defines symbols of the plugin; whether the host's libraries do is not recorded",
            where=plugin.path,
            evidence=undefined[:8],
            remedy=(Remedy("build the plugin again, with all its libraries on the linker's command line"),),
            source="glibc elf/dl-reloc.c; RCCL src/net.cc",
        )


def _judge_called_later(
    root: RootFileSystem, outcome: LoadOutcome, process: Process, plugin: LoadedObject, found: Findings
) -> None:
    """Judge what of the fabric came with the start: there, a call is bound at its first use, and ends the process."""
    fabric = [each for each in process.scopes.list_of(plugin) if each is plugin or part_of(each.path)]
    there = [each for each in fabric if each not in outcome.objects]
    lacking = undefined_in(root, process, there) if there and not outcome.errors else UndefinedSymbols()
    if lacking.found and lacking.is_sure:
        first = lacking.found[0]
        found.add(
            Code.PLUGIN_SYMBOLS,
            Severity.UNKNOWN,
            f"{first.loaded.path} came with the start, and nothing that it sees defines {first.symbol.name}: "
            "the process ends where that is called",
            where=first.loaded.path,
            evidence=lacking.lines[:8],
            remedy=(
                Remedy(
                    "take the plugin and its libraries off LD_PRELOAD: RCCL opens them, and reports what is missing"
                ),
            ),
            source="glibc elf/dl-runtime.c",
        )


@cache
def _host_libraries() -> frozenset[str]:
    return frozenset(own_table(__package__, "host_libraries.toml")["names"])


def lacks_of_host(outcome: LoadOutcome) -> tuple[str, ...]:
    """Return the names that a load lacks, where a machine brings all of them and nothing else is wrong."""
    names = tuple(dict.fromkeys(missing.name for missing in outcome.missing))
    is_all = not outcome.missing_versions and _host_libraries().issuperset(name.partition(".so")[0] for name in names)
    return names if is_all else ()


def _judge_errors(plugin: LoadedObject, outcome: LoadOutcome, found: Findings) -> None:
    from_host = lacks_of_host(outcome)
    chain = outcome.missing[0].chain if outcome.missing else (plugin.path,)
    if from_host:
        found.add(
            Code.PLUGIN_NEEDS_HOST,
            Severity.UNKNOWN,
            f"the plugin needs {', '.join(from_host)}, which the image does not have: it must come from the host",
            where=plugin.path,
            evidence=outcome.errors[:8],
            chain=chain,
            remedy=(
                Remedy(
                    "run the check on the machine, with the binds of your jobs", "lumiimg check {image} --level probe"
                ),
            ),
            source="glibc elf/dl-load.c",
        )
    else:
        found.add(
            Code.PLUGIN_LOADS,
            Severity.PROBLEM,
            f"{plugin.path} cannot be loaded",
            where=plugin.path,
            evidence=outcome.errors[:8],
            chain=chain,
            cause="RCCL treats a plugin that cannot be loaded as missing, and goes on over TCP",
            remedy=tuple(dict.fromkeys(_remedy_for(error) for error in outcome.errors)),
            source="glibc elf/dl-load.c, elf/dl-version.c",
        )


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
        found.add(
            Code.PLUGIN_API,
            Severity.PROBLEM,
            f"the plugin exports net API {shown}; RCCL {path.rccl_version or ''} takes only "
            f"v{', v'.join(map(str, path.accepts))}",
            where=plugin.path,
            cause="aws-ofi-rccl exports v5 only, which RCCL dropped in 2.26 (ROCm 7.0)" if exported == (5,) else None,
            remedy=(Remedy(remedy_for_old_api()),),
            source=RULE_SOURCE,
        )
    return taken


def _judge_gpu_memory(root: RootFileSystem, process: Process, libfabric: LoadedObject, found: Findings) -> None:
    if (why := lack_of_rocr(process, root)) is None:
        return
    remedy = Remedy("build libfabric with --with-rocr=/opt/rocm: the layer fabric-bundled does")
    if HSA in why and (runtime := process.find(f"{HSA}.1")) is not None:
        remedy = Remedy(f"ln -s {HSA}.1 {shlex.quote(runtime.path.rpartition('/')[0])}/{HSA}   (in the image's %post)")
    found.add(
        Code.PROVIDER_NO_GPU_MEMORY,
        Severity.UNKNOWN,
        f"{libfabric.path} does not know GPU memory: {why}",
        where=libfabric.path,
        cause="RCCL's traffic goes through host memory, if the plugin accepts this libfabric at all",
        remedy=(remedy,),
        source="libfabric configure.ac, src/hmem_rocr.c",
    )


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
        found.add(
            Code.PROVIDER_NO_CXI,
            Severity.UNKNOWN,
            f"{libfabric.path} has no cxi provider (it does not need {LIBCXI}, nor is there a {PROVIDER_FILE} that "
            "loads, where it looks for one): alone, it would use TCP",
            where=libfabric.path,
            chain=(plugin.path, libfabric.path),
            cause=f"{PROVIDER_PATH}={provider_path}: it looks there, and not in its own folder"
            if provider_path
            else None,
            remedy=(
                Remedy(
                    "use the host's libfabric",
                    "lumiimg host scan -o host.json && lumiimg explain {image} --host host.json",
                ),
                Remedy("or build libcxi and libfabric with cxi in the image"),
            ),
            source="libfabric prov/cxi/configure.m4: the built-in provider links libcxi; src/fabric.c ofi_load_dl_prov",
        )
