"""Evidence of the first kind: from the files of the image, nothing run.

The path that a collective's bytes take is followed file by file, as ld.so would: the RCCL that a program gets, the
plugin that this RCCL opens (by the names in its own bytes), everything that the plugin pulls in, and whether the
libfabric among it has the cxi provider. What may come from the host at run time is said to be open, not wrong.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.check.answer import FabricPath
from lumiimg.check.rccl import read_rccl
from lumiimg.elf.facts import exported_symbols
from lumiimg.elf.loader import Process
from lumiimg.elf.rules import Settings
from lumiimg.elf.system import libc_kind
from lumiimg.errors import BadInputError, one_line
from lumiimg.findings import Findings, Level, Severity
from lumiimg.resolve.rccl import Generation, generation_of, names_by_variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.elf.objects import FoundBy, LoadedObject, LoadOutcome
    from lumiimg.image import Image

# Libraries that belong to the machine's network: images for host binding leave them out on purpose.
HOST_LIBRARIES = re.compile(r"lib(fabric|cxi|nl-3|nl-route-3|json-c|curl|jansson|pmi|pmi2|pals|xpmem|atomic)\.so\b")
_WANTED = re.compile(r"(librccl\.so|lib[nr]ccl-net).*")
_NET_SYMBOL = re.compile(r"ncclNetPlugin_v(\d{1,2})")
_FIND_LIMIT = 200
# The engine puts its own folder behind whatever the image sets (99-base.sh).
ENGINE_LIBRARIES = "/.singularity.d/libs"
_RULE_SOURCE = "RCCL src/net.cc, src/plugin/plugin_open.cc; glibc elf/dl-load.c"


@dataclass(slots=True)
class StaticResult:
    """What the files say."""

    path: FabricPath = field(default_factory=FabricPath)
    generation: Generation | None = None
    loader: str | None = None
    """Path of the image's ld.so."""
    plugin_found_by: FoundBy | None = None
    findings: Findings = field(default_factory=lambda: Findings(Level.STATIC))


def check_static(image: Image, environment: Mapping[str, str]) -> StaticResult:
    """Follow the fabric path through the image's files.

    `environment` is the user's: variables of it reach the container, and some of them change what is loaded.

    Raises BadInputError only where the image itself cannot be read; a broken library in it is a finding.
    """
    result = StaticResult()
    for warning in image.warnings:
        result.findings.add("image.partly-read", Severity.UNKNOWN, warning)
    kind = libc_kind(image.root)
    if kind == "musl":
        result.findings.add(
            "image.musl",
            Severity.UNKNOWN,
            "this image has musl, whose loader follows other rules than the one that is modelled here",
            remedy=("use a base with glibc: RCCL and the host's fabric libraries are built for it",),
        )
        return result
    files = _find_files(image)
    library_path = _variable("LD_LIBRARY_PATH", image, environment)
    settings = Settings(library_path=":".join(filter(None, (library_path, ENGINE_LIBRARIES))))
    process, rccl = _load_rccl(image, settings, files, result)
    if rccl is None:
        return result
    _read_rccl_facts(image, rccl, result, named=_variable("NCCL_NET_PLUGIN", image, environment))
    result.loader = process.system.loader
    _judge_variables(image, environment, result)
    outcome = _load_plugin(image, process, rccl, files, result)
    if outcome is not None and outcome.root is not None:
        _judge_plugin(image, outcome, process, result)
    return result


def _variable(name: str, image: Image, environment: Mapping[str, str]) -> str | None:
    """Return a variable as it is in the container: what the engine is told, else the image's, else the user's own.

    The user's LD_LIBRARY_PATH is the one that does not get in (apptainer `internal/pkg/util/env/clean.go`).
    """
    for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
        if prefix + name in environment:
            return environment[prefix + name]
    return image.environment.get(name) or (environment.get(name) if name != "LD_LIBRARY_PATH" else None)


def _judge_variables(image: Image, environment: Mapping[str, str], result: StaticResult) -> None:
    """Judge what is set in the image or by the user and takes RCCL or libfabric off the fabric."""
    forced = _variable("NCCL_NET", image, environment)
    if forced and forced.lower() in {"socket", "ib"}:
        result.findings.add(
            "network.forced",
            Severity.PROBLEM,
            f"NCCL_NET={forced} makes RCCL use its own transport, whatever plugin there is",
            remedy=("unset NCCL_NET; on one node alone it may stay",),
            source="NCCL src/net.cc ncclNetInit",
        )
    providers = _variable("FI_PROVIDER", image, environment)
    if providers and not _allows_cxi(providers):
        result.findings.add(
            "provider.excluded",
            Severity.PROBLEM,
            f"FI_PROVIDER={providers} keeps libfabric from using cxi",
            remedy=("unset FI_PROVIDER, or FI_PROVIDER=cxi",),
            source="fabric(7), FI_PROVIDER",
        )


def _allows_cxi(providers: str) -> bool:
    """Whether a filter of libfabric lets cxi through: names with commas, or after `^` those that are left out."""
    left_out = providers.startswith("^")
    names = {name.strip().lower() for name in providers.lstrip("^").split(",")}
    return ("cxi" in names) != left_out


def _find_files(image: Image) -> list[str]:
    return sorted(islice(image.root.find(_WANTED), _FIND_LIMIT))


def _load_rccl(
    image: Image, settings: Settings, files: list[str], result: StaticResult
) -> tuple[Process, LoadedObject | None]:
    """Start a process with the RCCL that matters: the one a torch wheel bundles, else the one on the loader's path."""
    candidates = [file for file in files if re.search(r"/librccl\.so(\.\d+)*$", file) and image.root.is_file(file)]
    process, torch, rccl = _of_torch(image, settings)
    if rccl is None:
        named = _on_loader_path(image, settings, candidates)
        chosen = named or next(iter(candidates), None)
        process = Process(image.root, settings)
        if chosen is None:
            result.findings.add(
                "rccl.absent",
                Severity.PROBLEM,
                "no librccl.so was found in the image",
                cause="the check is about RCCL: an image without it cannot use the fabric through it",
                remedy=("start from a base with ROCm: `lumiimg list`",),
            )
            return process, None
        outcome = process.start(chosen)
        if outcome.root is None or outcome.errors:
            result.findings.add(
                "rccl.load",
                Severity.PROBLEM,
                f"{chosen} cannot be loaded in this image",
                where=chosen,
                evidence=outcome.errors[:8],
                cause="what a bind of the host (--rocm) would bring is not counted",
                remedy=("add the libraries that it names to the image",),
            )
            result.path = replace(result.path, rccl=chosen)
            return process, None
        rccl = outcome.root
    others = [file for file in candidates if image.root.resolve(file) != image.root.resolve(rccl.path)]
    if others:
        why = f"it is what {torch} loads" if torch else "it is on the loader's path"
        result.findings.add(
            "rccl.several",
            Severity.INFO,
            f"the image has more than one RCCL; {rccl.path} is looked at, because {why}",
            evidence=tuple(others[:8]),
        )
    return process, rccl


def _of_torch(image: Image, settings: Settings) -> tuple[Process, str | None, LoadedObject | None]:
    """Return the process of the image's torch, the library of it that uses RCCL, and the RCCL that the loader gives it.

    A wheel brings an RCCL along, and LD_LIBRARY_PATH decides whether it is taken: so the loader is asked, not the path.
    """
    process = Process(image.root, settings)
    for library in islice(image.root.find({"libtorch_hip.so"}), 1):
        process.start(library)
        for name in ("librccl.so.1", "librccl.so"):
            if (rccl := process.find(name)) is not None:
                return process, library, rccl
    return process, None, None


def _on_loader_path(image: Image, settings: Settings, candidates: list[str]) -> str | None:
    """Return what dlopen would give a program that asks for RCCL by name."""
    for candidate in candidates:
        of_image = Process(image.root, settings)
        if of_image.start(candidate).root is None:
            continue  # no library at all
        # The loader alone is the emptiest process: nothing called librccl is in it yet.
        program = Process(image.root, settings)
        if program.start(of_image.system.loader).root is None:
            return None
        for name in ("librccl.so.1", "librccl.so"):
            outcome = program.dlopen(name)
            if outcome.root is not None:
                return outcome.root.path
        return None
    return None


def _read_rccl_facts(image: Image, rccl: LoadedObject, result: StaticResult, *, named: str | None) -> None:
    strings = read_rccl(image.root.open(rccl.path))
    generation = generation_of(strings.version) if strings.version else None
    result.generation = generation
    # All names stand in the bytes; in which order they are tried, only the table of the generations says.
    known = generation.files if generation else ()
    files = tuple(sorted(strings.plugin_files, key=lambda f: known.index(f) if f in known else len(known))) or known
    accepts = strings.accepts or (generation.accepts if generation else ())
    if named:
        files = names_by_variable(named, files, generation)
    result.path = replace(
        result.path,
        rccl=rccl.path,
        rccl_version=strings.version,
        plugin_files=files,
        accepts=accepts,
        named_by=named or None,
    )
    if not files or not accepts:
        result.findings.add(
            "rccl.unknown",
            Severity.UNKNOWN,
            f"{rccl.path} does not say which plugin it looks for (version {strings.version or 'not found in it'})",
            where=rccl.path,
            remedy=("`lumiimg check --level probe` asks the library itself",),
        )
        return
    result.findings.add(
        "rccl.found",
        Severity.INFO,
        f"RCCL {strings.version or '(version not found)'} looks for {' or '.join(files)}"
        f"{f' (NCCL_NET_PLUGIN={named})' if named else ''} and takes net API v{', v'.join(map(str, accepts))}",
        where=rccl.path,
        source=f"strings in the library; {generation.basis}" if generation else "strings in the library",
    )


def _load_plugin(
    image: Image, process: Process, rccl: LoadedObject, files: list[str], result: StaticResult
) -> LoadOutcome | None:
    names = result.path.plugin_files
    if not names:
        return None
    absent: list[str] = []
    for name in names:
        outcome = process.dlopen(name, rccl)
        if outcome.root is not None or not _is_absent(outcome, name):
            if outcome.root is None:
                _report_broken(name, outcome, result)
            return outcome
        absent += outcome.errors
    elsewhere = [file for file in files if re.search(r"/lib[nr]ccl-net[^/]*\.so[^/]*$", file)]
    dangling = [file for file in elsewhere if not image.root.exists(file)]
    elsewhere = [file for file in elsewhere if file not in dangling]
    same_name = [file for file in elsewhere if file.rpartition("/")[2] in names]
    if dangling and not same_name:
        result.findings.add(
            "plugin.dangling",
            Severity.PROBLEM,
            f"{dangling[0]} is a link to {image.root.readlink(dangling[0])}, which is not in the image",
            where=dangling[0],
            evidence=tuple(absent[:4]),
            cause="a link into a folder of the host leads somewhere only where that folder is bound",
            remedy=("put the file itself into the image",),
            source=_RULE_SOURCE,
        )
    elif same_name:
        folder = same_name[0].rpartition("/")[0]
        result.findings.add(
            "plugin.not-on-path",
            Severity.PROBLEM,
            f"{same_name[0]} is in the image, but not where the loader looks",
            where=same_name[0],
            evidence=tuple(absent[:4]),
            cause=f"LD_LIBRARY_PATH in the image is {process.settings.library_path}; {folder} is not in it, "
            "nor in the loader's cache",
            remedy=(f"export SINGULARITYENV_LD_LIBRARY_PATH={_prepended(folder, process.settings)}",),
            source=_RULE_SOURCE,
        )
    elif elsewhere:
        result.findings.add(
            "plugin.other-name",
            Severity.PROBLEM,
            f"this RCCL looks for {' or '.join(names)}; the image has {elsewhere[0]}",
            where=elsewhere[0],
            evidence=tuple(absent[:4]),
            cause="NCCL_NET_PLUGIN asks for another name; up to RCCL 2.20 it is a part of the name only, never a path"
            if result.path.named_by
            else "the name that RCCL looks for changed with ROCm 7.1, and back after 7.2",
            remedy=("unset NCCL_NET_PLUGIN",)
            if result.path.named_by
            else (
                f"ln -s {shlex.quote(elsewhere[0])} {shlex.quote(elsewhere[0].rpartition('/')[0] + '/' + names[0])}",
            ),
            source=_RULE_SOURCE,
        )
    else:
        result.findings.add(
            "plugin.absent",
            Severity.PROBLEM,
            f"no net plugin: nothing called {' or '.join(names)} is in the image",
            evidence=tuple(absent[:4]),
            chain=(rccl.path, names[0]),
            cause="without a plugin RCCL has InfiniBand verbs, which Slingshot 11 does not speak, and TCP sockets",
            source=_RULE_SOURCE,
        )
    return None


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _prepended(folder: str, settings: Settings) -> str:
    """Return LD_LIBRARY_PATH with a folder in front: what the engine is told replaces what the image says."""
    rest = [part for part in (settings.library_path or "").split(":") if part and part != ENGINE_LIBRARIES]
    return shlex.quote(":".join([folder, *rest]))


def _is_absent(outcome: LoadOutcome, name: str) -> bool:
    return all(error.startswith(f"{name}: cannot open shared object file: No such file") for error in outcome.errors)


def _report_broken(name: str, outcome: LoadOutcome, result: StaticResult) -> None:
    result.findings.add(
        "plugin.loads",
        Severity.PROBLEM,
        f"{name} is found, and is no library that can be loaded",
        evidence=outcome.errors[:4],
        remedy=("build or copy the plugin again; a text of three lines is a git-lfs pointer, not the file",),
        source=_RULE_SOURCE,
    )


def _judge_plugin(image: Image, outcome: LoadOutcome, process: Process, result: StaticResult) -> None:
    plugin = outcome.root
    assert plugin is not None  # noqa: S101 - asked by the caller
    result.path = replace(result.path, plugin=plugin.path)
    result.plugin_found_by = plugin.found_by
    if outcome.errors:
        _report_load_errors(plugin, outcome, result)
    else:
        result.findings.add(
            "plugin.loads",
            Severity.OK,
            f"{plugin.path} and all that it needs would be loaded",
            where=plugin.path,
            evidence=(f"found by: {plugin.found_by.value}",),
        )
    _judge_api(image, plugin, result)
    _judge_libfabric(image, process, result)


def _report_load_errors(plugin: LoadedObject, outcome: LoadOutcome, result: StaticResult) -> None:
    from_host = [missing for missing in outcome.missing if HOST_LIBRARIES.match(missing.name)]
    only_from_host = from_host and len(from_host) == len(outcome.missing) and not outcome.missing_versions
    chain = outcome.missing[0].chain if outcome.missing else (plugin.path,)
    if only_from_host:
        names = ", ".join(dict.fromkeys(missing.name for missing in from_host))
        result.findings.add(
            "plugin.needs-host",
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
        "plugin.loads",
        Severity.PROBLEM,
        f"{plugin.path} cannot be loaded",
        where=plugin.path,
        evidence=outcome.errors[:8],
        chain=chain,
        cause="RCCL takes a plugin that cannot be loaded for one that is not there, and goes on over TCP",
        remedy=("add the libraries named above to the image, or build the plugin in it: `lumiimg list`",),
        source="glibc elf/dl-load.c, elf/dl-version.c",
    )


def _judge_api(image: Image, plugin: LoadedObject, result: StaticResult) -> None:
    try:
        symbols = exported_symbols(image.root.open(plugin.path), "ncclNetPlugin_v")
    except BadInputError as error:
        result.findings.add("plugin.api", Severity.UNKNOWN, f"its symbols cannot be read: {one_line(str(error))}")
        return
    exported = sorted({int(m[1]) for s in symbols if (m := _NET_SYMBOL.fullmatch(s))}, reverse=True)
    accepts = result.path.accepts
    taken = next((version for version in accepts if version in exported), None)
    shown = ", ".join(f"v{version}" for version in exported) or "none"
    if taken is not None:
        result.path = replace(result.path, plugin_api=taken)
        result.findings.add("plugin.api", Severity.OK, f"the plugin exports net API {shown}; this RCCL takes v{taken}")
    elif accepts:
        result.findings.add(
            "plugin.api",
            Severity.PROBLEM,
            f"the plugin exports net API {shown}; RCCL {result.path.rccl_version or ''} takes only "
            f"v{', v'.join(map(str, accepts))}",
            where=plugin.path,
            cause="aws-ofi-rccl exports v5 only, which RCCL gave up with 2.26 (ROCm 7.0)" if exported == [5] else None,
            remedy=("use aws-ofi-nccl 1.18 or newer (1.20 at best): `lumiimg build … --add aws-ofi-nccl`",),
            source=_RULE_SOURCE,
        )


def _judge_libfabric(image: Image, process: Process, result: StaticResult) -> None:
    told = any(finding.severity in {Severity.PROBLEM, Severity.UNKNOWN} for finding in result.findings.found)
    libfabric = process.find("libfabric.so.1")
    libcxi = process.find("libcxi.so.1")
    result.path = replace(
        result.path, libfabric=libfabric.path if libfabric else None, libcxi=libcxi.path if libcxi else None
    )
    if libfabric is None:
        if not told:
            result.findings.add(
                "provider.no-libfabric",
                Severity.UNKNOWN,
                f"{result.path.plugin} does not use libfabric: it is not the OFI plugin, and whether it can use "
                "Slingshot is not known here",
                where=result.path.plugin,
            )
        return
    if "libcxi.so.1" in libfabric.facts.needed or _provider_beside(libfabric, image):
        result.findings.add(
            "provider.cxi-built-in", Severity.INFO, f"{libfabric.path} has the cxi provider", where=libfabric.path
        )
        return
    result.findings.add(
        "provider.no-cxi",
        Severity.UNKNOWN,
        f"{libfabric.path} of the image has no cxi provider (it does not need libcxi.so.1): alone, it would use TCP",
        where=libfabric.path,
        chain=(result.path.plugin or "the plugin", libfabric.path),
        remedy=(
            "bind the host's libfabric in front of it (LUMI: /opt/cray and libcxi.so.1), where the glibc is new enough",
            "or build libcxi and libfabric with cxi in the image",
        ),
        source="libfabric prov/cxi/configure.m4: the built-in provider links libcxi",
    )


def _provider_beside(libfabric: LoadedObject, image: Image) -> bool:
    """Whether a cxi provider lies where this libfabric looks for providers in files of their own: lib/libfabric/."""
    folder = libfabric.path.rpartition("/")[0]
    return image.root.is_file(f"{folder}/libfabric/libcxi-fi.so")
