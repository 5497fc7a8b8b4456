"""The net plugin as the files have it: found under RCCL's name, loadable, of an API that RCCL takes, on cxi."""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from lumiimg.elf.facts import exported_symbols, read_elf, undefined_symbols
from lumiimg.elf.recorded import RecordedElf
from lumiimg.errors import BadInputError, one_line
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, NET_SYMBOL, PROVIDER_FILE, net_api, part_of
from lumiimg.fabric.path import Part
from lumiimg.fabric.provider import PROVIDER_PATH, cxi_provider
from lumiimg.fabric.rccl import remedy_for_old_api
from lumiimg.findings import Code, Severity
from lumiimg.host.container_view import ENGINE_LIBRARIES

if TYPE_CHECKING:
    from lumiimg.check.static.evidence import StaticResult
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.image import Image, RootFileSystem

_LEFT_OUT = re.compile(r"[^ ]+: left out, beyond a plain export: (?:(?:then|else|do|export) )*[A-Za-z_]\w*=[^;&|]*")
_OF_THE_SEARCH = ("LD_LIBRARY_PATH", "LD_PRELOAD", "NCCL_NET_PLUGIN")
_MAX_WANTED_CHARS = 64 << 20
_RULE_SOURCE = "RCCL src/net.cc, src/plugin/plugin_open.cc; glibc elf/dl-load.c"


def load_plugin(
    image: Image, process: Process, rccl: LoadedObject, files: list[str], result: StaticResult
) -> LoadOutcome | None:
    """Follow RCCL's dlopen of its plugin; where nothing is found, say why: another folder, name, or nothing at all."""
    names = result.path.plugin_files
    if not names:
        return None
    absent: list[str] = []
    for name in names:
        outcome = process.dlopen(name, rccl)
        if not outcome.finds_nothing(name):
            if outcome.root is None:
                _report_broken(name, outcome, result)
            return outcome
        absent += outcome.errors
    elsewhere = [file for file in files if part_of(file) is Part.PLUGIN]
    dangling = [file for file in elsewhere if not image.root.exists(file)]
    dangling.sort(key=lambda file: file.rpartition("/")[2] not in names)
    elsewhere = [file for file in elsewhere if file not in dangling]
    same_name = [file for file in elsewhere if file.rpartition("/")[2] in names]
    passed_over = next((why for file in same_name if (why := _passed_over(image, process, file))), None)
    is_open = _hides_a_search(image)
    severity = Severity.UNKNOWN if is_open else Severity.PROBLEM
    so_far = ", as far as the image is seen" if is_open else ""
    if dangling and not same_name:
        result.findings.add(
            Code.PLUGIN_DANGLING,
            severity,
            f"{dangling[0]} is a link to {image.root.readlink(dangling[0])}, which is not in the image{so_far}",
            where=dangling[0],
            evidence=tuple(absent[:4]),
            cause="a link into a folder of the host leads somewhere only where that folder is bound",
            remedy=("put the file itself into the image",),
            source=_RULE_SOURCE,
        )
    elif passed_over is not None:
        result.findings.add(
            Code.PLUGIN_LOADS,
            Severity.PROBLEM,
            f"{same_name[0]} is passed over by the loader: {passed_over}",
            where=same_name[0],
            evidence=tuple(absent[:4]),
            remedy=("build or copy the plugin again, for this machine, readable for everybody",),
            source=_RULE_SOURCE,
        )
    elif same_name:
        folder = same_name[0].rpartition("/")[0]
        result.findings.add(
            Code.PLUGIN_NOT_ON_PATH,
            severity,
            f"{same_name[0]} is in the image, but not where the loader looks{so_far}",
            where=same_name[0],
            evidence=tuple(absent[:4]),
            cause=f"LD_LIBRARY_PATH in the image is {process.settings.library_path}; {folder} is not in it, "
            "nor in the loader's cache",
            remedy=(f"export SINGULARITYENV_LD_LIBRARY_PATH={_prepended(folder, process.settings)}",),
            source=_RULE_SOURCE,
        )
    elif elsewhere:
        result.findings.add(
            Code.PLUGIN_OTHER_NAME,
            severity,
            f"this RCCL looks for {' or '.join(names)}; the image has {elsewhere[0]}{so_far}",
            where=elsewhere[0],
            evidence=tuple(absent[:4]),
            cause="NCCL_NET_PLUGIN asks for another name; up to RCCL 2.20 it is a part of the name only, never a path"
            if result.path.named_by
            else "the name that RCCL looks for changed with ROCm 7.1, and back after 7.2",
            remedy=(result.without_name,)
            if result.path.named_by
            else (f"ln -s {shlex.quote(elsewhere[0])} {shlex.quote(_beside(elsewhere[0], names[0]))}",),
            source=_RULE_SOURCE,
        )
    else:
        result.findings.add(
            Code.PLUGIN_ABSENT,
            severity,
            f"no net plugin: nothing called {' or '.join(names)} is in the image{so_far}",
            evidence=tuple(absent[:4]),
            chain=(rccl.path, names[0]),
            cause="without a plugin RCCL has InfiniBand verbs, which Slingshot 11 does not speak, and TCP sockets",
            remedy=("build a plugin into the image: `lumiimg list` shows the layers that do",),
            source=_RULE_SOURCE,
        )
    return None


def judge_plugin(root: RootFileSystem, outcome: LoadOutcome, process: Process, result: StaticResult) -> None:
    """Judge a plugin that was found: its libraries, its API, and the libfabric that it gets.

    `root` is what the process sees: the image's files, with the binds over them.
    """
    plugin = outcome.root
    assert plugin is not None  # noqa: S101 - asked by the caller
    result.path = replace(result.path, plugin=plugin.path)
    result.plugin_found_by = plugin.found_by
    undefined, sure, unread = _undefined(root, process, outcome) if not outcome.errors else ((), False, None)
    if outcome.errors:
        _report_load_errors(plugin, outcome, result)
    elif undefined and sure:
        result.findings.add(
            Code.PLUGIN_LOADS,
            Severity.PROBLEM,
            f"{plugin.path} cannot be loaded: nothing in the process defines {undefined[0].rpartition(' ')[2]}",
            where=plugin.path,
            evidence=undefined[:8],
            cause="RCCL opens its plugin with RTLD_NOW: every symbol has to be there at once",
            remedy=("build the plugin again, with all its libraries on the linker's command line",),
            source="glibc elf/dl-reloc.c; RCCL src/net.cc",
        )
    else:
        result.findings.add(
            Code.PLUGIN_LOADS,
            Severity.OK,
            f"{plugin.path} and all that it needs would be loaded",
            where=plugin.path,
            evidence=(f"found by: {plugin.found_by.value}",),
        )
    if unread:
        result.findings.add(
            Code.PLUGIN_SYMBOLS,
            Severity.UNKNOWN,
            f"whether all symbols of the plugin are defined cannot be told: {unread}",
            where=plugin.path,
            remedy=("fetch or build the image again",),
            source="glibc elf/dl-reloc.c",
        )
    if undefined and not sure:
        result.findings.add(
            Code.PLUGIN_SYMBOLS,
            Severity.UNKNOWN,
            "nothing of the image defines symbols of the plugin; whether the host's libraries do is not recorded",
            where=plugin.path,
            evidence=undefined[:8],
            remedy=("build the plugin again, with all its libraries on the linker's command line",),
            source="glibc elf/dl-reloc.c; RCCL src/net.cc",
        )
    _judge_api(root, plugin, result)
    _judge_libfabric(root, process, result)


def _hides_a_search(image: Image) -> bool:
    """Whether what is not seen of an image may lead the loader to a plugin: all but an export of another variable."""
    for warning in image.warnings:
        if not _LEFT_OUT.fullmatch(warning) or any(name in warning for name in _OF_THE_SEARCH):
            return True
    return False


def _passed_over(image: Image, process: Process, file: str) -> str | None:
    """Return why the loader goes past a file as if it were not there; None where it would take it."""
    try:
        with contextlib.closing(image.root.open(file)) as opened:
            facts = read_elf(opened)
    except OSError as error:
        return error.strerror if error.errno == errno.EACCES else None
    except BadInputError:
        return None
    own = process.objects[0].facts
    if (facts.machine, facts.elf_class) != (own.machine, own.elf_class):
        return "it is for another kind of machine"
    return None


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _prepended(folder: str, settings: LoaderSettings) -> str:
    """Return LD_LIBRARY_PATH with a folder in front: what the engine is told replaces what the image says."""
    rest = [part for part in (settings.library_path or "").split(":") if part and part != ENGINE_LIBRARIES]
    return shlex.quote(":".join([folder, *rest]))


def _report_broken(name: str, outcome: LoadOutcome, result: StaticResult) -> None:
    result.findings.add(
        Code.PLUGIN_LOADS,
        Severity.PROBLEM,
        f"{name} is found, and is no library that can be loaded",
        evidence=outcome.errors[:4],
        remedy=("build or copy the plugin again; a text of three lines is a git-lfs pointer, not the file",),
        source=_RULE_SOURCE,
    )


@cache
def _host_libraries() -> frozenset[str]:
    data = tomllib.loads(resources.files(__package__).joinpath("host_libraries.toml").read_text("utf-8"))
    return frozenset(data["names"])


def _report_load_errors(plugin: LoadedObject, outcome: LoadOutcome, result: StaticResult) -> None:
    host = _host_libraries()
    from_host = [missing for missing in outcome.missing if missing.name.partition(".so")[0] in host]
    only_from_host = from_host and len(from_host) == len(outcome.missing) and not outcome.missing_versions
    chain = outcome.missing[0].chain if outcome.missing else (plugin.path,)
    if only_from_host:
        names = ", ".join(dict.fromkeys(missing.name for missing in from_host))
        result.findings.add(
            Code.PLUGIN_NEEDS_HOST,
            Severity.UNKNOWN,
            f"the plugin needs {names}, which the image does not have: it must come from the host",
            where=plugin.path,
            evidence=outcome.errors[:8],
            chain=chain,
            remedy=("run the check on the machine, with the binds of your jobs: `lumiimg check --level probe`",),
            source="glibc elf/dl-load.c",
        )
        return
    result.findings.add(
        Code.PLUGIN_LOADS,
        Severity.PROBLEM,
        f"{plugin.path} cannot be loaded",
        where=plugin.path,
        evidence=outcome.errors[:8],
        chain=chain,
        cause="RCCL takes a plugin that cannot be loaded for one that is not there, and goes on over TCP",
        remedy=tuple(dict.fromkeys(_remedy_for(error) for error in outcome.errors)),
        source="glibc elf/dl-load.c, elf/dl-version.c",
    )


def _remedy_for(error: str) -> str:
    """Return what to do about one error of the loader; its words are those of glibc."""
    path = shlex.quote(error.partition(":")[0])
    if "cannot enable executable stack" in error:
        return f"patchelf --clear-execstack {path}   (in the image's %post; glibc 2.41 and newer refuse such a library)"
    if "static TLS block" in error:
        return (
            f"export SINGULARITYENV_LD_PRELOAD={path}   (what is loaded at the start is given the room that it needs)"
        )
    if "CPU ISA level" in error:
        return f"build {path} for the CPU of the machine: -march=znver3 on LUMI"
    return "add the libraries named above to the image, or build the plugin in it: `lumiimg list`"


def _undefined(
    root: RootFileSystem, process: Process, outcome: LoadOutcome
) -> tuple[tuple[str, ...], bool, str | None]:
    """Return (what the loader would say of symbols that nothing defines, whether sure, why they cannot be read).

    Of the plugin and the libraries that come with it.
    The symbols of libraries out of a snapshot are not recorded: then it is about those that ask for no version, which
    a library that was linked with its libraries does not have; and one of those might still define them.
    """
    wanted: list[tuple[str, str, bool]] = []
    undefined: set[str] = set()
    size_chars = 0
    recorded = False
    # of one library after the other: no more is kept than what the new ones want
    try:
        for loaded in outcome.objects:
            file = root.open(process.settings.absolute(loaded.path))
            if not isinstance(file, RecordedElf):
                with contextlib.closing(file):
                    names = undefined_symbols(file)
                size_chars += sum(map(len, names))
                if size_chars > _MAX_WANTED_CHARS:
                    return (), False, "they are more than are read"
                wanted += [(loaded.path, *each) for each in sorted(names.items())]
                undefined |= names.keys()
        for loaded in process.objects:
            file = root.open(process.settings.absolute(loaded.path))
            if isinstance(file, RecordedElf):
                recorded = True
                continue
            with contextlib.closing(file):
                undefined -= exported_symbols(file)
    except (OSError, BadInputError) as error:
        return (), False, one_line(str(error))
    lines = tuple(
        f"{path}: undefined symbol: {name}"
        for path, name, versioned in wanted
        if name in undefined and not (recorded and versioned)
    )
    return lines, not recorded, None


def _judge_api(root: RootFileSystem, plugin: LoadedObject, result: StaticResult) -> None:
    try:
        file = root.open(plugin.path)
        symbols = file.net_symbols if isinstance(file, RecordedElf) else exported_symbols(file, NET_SYMBOL)
    except BadInputError as error:
        result.findings.add(Code.PLUGIN_API, Severity.UNKNOWN, f"its symbols cannot be read: {one_line(str(error))}")
        return
    exported = net_api(symbols)
    accepts = result.path.accepts
    taken = next((version for version in accepts if version in exported), None)
    shown = ", ".join(f"v{version}" for version in exported) or "none"
    if taken is not None:
        result.path = replace(result.path, plugin_api=taken)
        result.findings.add(
            Code.PLUGIN_API, Severity.OK, f"the plugin exports net API {shown}; this RCCL takes v{taken}"
        )
    elif accepts:
        result.findings.add(
            Code.PLUGIN_API,
            Severity.PROBLEM,
            f"the plugin exports net API {shown}; RCCL {result.path.rccl_version or ''} takes only "
            f"v{', v'.join(map(str, accepts))}",
            where=plugin.path,
            cause="aws-ofi-rccl exports v5 only, which RCCL gave up with 2.26 (ROCm 7.0)" if exported == (5,) else None,
            remedy=(remedy_for_old_api(),),
            source=_RULE_SOURCE,
        )


def _judge_libfabric(root: RootFileSystem, process: Process, result: StaticResult) -> None:
    told = any(finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} for finding in result.findings.found)
    provider = cxi_provider(process, root, result.provider_path)
    libfabric, libcxi = process.find(LIBFABRIC), process.find(LIBCXI)
    result.path = replace(
        result.path, libfabric=libfabric.path if libfabric else None, libcxi=libcxi.path if libcxi else None
    )
    if libfabric is None:
        if not told:
            result.findings.add(
                Code.PROVIDER_NO_LIBFABRIC,
                Severity.UNKNOWN,
                f"{result.path.plugin} does not use libfabric: it is not the OFI plugin, and whether it can use "
                "Slingshot is not known here",
                where=result.path.plugin,
            )
        return
    if provider is not None:
        what = f"{libfabric.path} has the cxi provider"
        if provider != libfabric.path:
            what += f" in a file of its own, {provider}, which loads"
        result.findings.add(Code.PROVIDER_CXI_BUILT_IN, Severity.INFO, what, where=provider)
        return
    if LIBCXI in libfabric.facts.needed:
        return  # it has the provider, and does not load: the plugin's own finding says what is missing
    result.findings.add(
        Code.PROVIDER_NO_CXI,
        Severity.UNKNOWN,
        f"{libfabric.path} has no cxi provider (it does not need {LIBCXI}, nor is there a {PROVIDER_FILE} that loads, "
        "where it looks for one): alone, it would use TCP",
        where=libfabric.path,
        chain=(result.path.plugin or "the plugin", libfabric.path),
        cause=f"{PROVIDER_PATH}={result.provider_path}: it looks there, and not in its own folder"
        if result.provider_path
        else None,
        remedy=(
            "take the host's libfabric, where its versions fit: `lumiimg host scan` there, then `lumiimg bind`",
            "or build libcxi and libfabric with cxi in the image",
        ),
        source="libfabric prov/cxi/configure.m4: the built-in provider links libcxi; src/fabric.c ofi_load_dl_prov",
    )
