"""Faults of an image that files alone show and that are not about the network: a job meets them all the same.

None of them is an obstacle to the answer of a check; each comes with what it does, and what to do.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from lumiimg.check.registry import Findings
from lumiimg.check.static.python_faults import asked_by, judge_python, offered_by
from lumiimg.elf.loader import Process
from lumiimg.errors import BadInputError
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.host.container_view import see_inside, variable_of
from lumiimg.host.root_queries import names_in, read_text
from lumiimg.image.programs import search_path
from lumiimg.image.tree import FileKind
from lumiimg.toml import own_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumiimg.check.static.evidence import StaticResult
    from lumiimg.elf.rules import LoaderSettings
    from lumiimg.host.job_process import JobProcess
    from lumiimg.image import Image, RootFileSystem

_LIBMPI = re.compile(r"libmpi\.so\.(?:12|40)")
_COPIES = re.compile(r"HIP_VISIBLE_DEVICES=[\"']?\$\{?ROCR_VISIBLE_DEVICES")
_HOME = re.compile(r"~|\$\{?HOME\b|/root(?:/|$)|/home(?:/|$)|/users(?:/|$)")
_OF_SCRIPTS = ("/", "/.singularity.d/env", "/docker", "/etc/profile.d", "/opt", "/scripts")
"""Beside those of PATH."""
_LARGEST_SCRIPT_BYTES = 64 << 10
_MOST_SCRIPTS = 3000
_MOST_WORDS = 64
_SHOWN = 8


def find_faults(image: Image, environment: Mapping[str, str], static: StaticResult) -> tuple[Finding, ...]:
    """Return what was found in an image whose path is known. Raises BadInputError where it cannot be read."""
    found = Findings(Level.STATIC)
    facts = own_table(__package__, "faults.toml")
    _judge_caches(image, environment, facts, found)
    _judge_tools(image, facts, found)
    _judge_entrypoint(image, facts, found)
    _judge_scripts(image, found)
    if static.job is not None:
        _judge_mpi(image.root, see_inside(image, environment).settings, static.job, found)
    judge_python(image, static.job, facts, found)
    return tuple(found.found)


def _judge_caches(image: Image, environment: Mapping[str, str], facts: Mapping[str, Any], found: Findings) -> None:
    """Judge the variables that the image itself sets: what a user sets is the user's to know."""
    own = {name: image.environment[name] for name in facts["caches"]["variables"] if name in image.environment}
    told = {name: value for name, value in own.items() if variable_of(name, image, environment) == value}
    homes = [f"{name}={value}" for name, value in told.items() if _HOME.match(value)]
    if homes:
        what = f"the image puts caches into a home: {homes[0]}"
        lines = tuple(homes[:_SHOWN])
        names = {"variable": homes[0].partition("=")[0]}
        found.add(Code.IMAGE_CACHES_IN_HOME, Severity.INFO, what, names=names, evidence=lines)


def _judge_tools(image: Image, facts: Mapping[str, Any], found: Findings) -> None:
    root = image.root
    for name in facts["tools"]["names"]:
        real: dict[str, str] = {}
        for folder in search_path(image):
            with contextlib.suppress(OSError, BadInputError):
                real.setdefault(root.resolve(f"{folder}/{name}"), f"{folder}/{name}")
        if len(real) > 1:
            first, *others = real.values()
            what = f"{name} is on PATH {len(real)} times: a job gets {first}"
            lines = tuple(others[:_SHOWN])
            names = {"other": others[0]}
            found.add(Code.IMAGE_SHADOWED_TOOL, Severity.INFO, what, names=names, where=first, evidence=lines)


def _of_entrypoint(image: Image) -> Iterator[tuple[str, str]]:
    """Yield the files that the words of the entrypoint name, by path or on PATH, with their texts."""
    words = " ".join(image.entrypoint).split()  # of ["/bin/sh", "-c", "/start.sh serve"], too
    for name in words[:_MOST_WORDS]:
        for path in [name] if name.startswith("/") else [f"{folder}/{name}" for folder in search_path(image)]:
            if "\0" not in path and image.root.is_file(path):
                yield path, read_text(image.root, path) or ""
                break


def _judge_entrypoint(image: Image, facts: Mapping[str, Any], found: Findings) -> None:
    """Judge what `singularity exec` skips: the entrypoint of the OCI image, or that this one was made of."""
    scripts = ((path, text) for path, text in _of_entrypoint(image) if text.startswith("#!"))
    path, text = next(scripts, ("", ""))
    names = "|".join(facts["entrypoint"]["variables"])
    sets = list(dict.fromkeys(re.findall(rf"\b({names})=", text)))
    if sets:
        what = f"the OCI entrypoint {path} sets {', '.join(sets)}, and `exec` does not run it"
        found.add(Code.IMAGE_ENTRYPOINT, Severity.INFO, what, names={"variable": sets[0], "path": path}, where=path)


def _judge_scripts(image: Image, found: Findings) -> None:
    """Judge the scripts: one list of GPUs, given to two filters, leaves none where a job has a part of a node."""
    copying = [path for path in _scripts(image) if _COPIES.search(read_text(image.root, path) or "")]
    if copying:
        what = f"{copying[0]} copies ROCR_VISIBLE_DEVICES into HIP_VISIBLE_DEVICES"
        found.add(Code.IMAGE_HIP_DEVICES, Severity.INFO, what, where=copying[0], evidence=tuple(copying[1:_SHOWN]))


def _scripts(image: Image) -> Iterator[str]:
    """Yield small files that are, or may be, scripts of a shell that jobs run or source."""
    root = image.root
    folders = dict.fromkeys((*search_path(image), *_OF_SCRIPTS))
    left = _MOST_SCRIPTS
    for folder in folders:
        for name in names_in(root, folder or "/"):
            path = f"{folder.rstrip('/')}/{name}"
            with contextlib.suppress(OSError, BadInputError):
                stat = root.stat(path)
                is_small = stat.kind is FileKind.FILE and stat.size_bytes <= _LARGEST_SCRIPT_BYTES
                if is_small and left and (name.endswith(".sh") or _is_script(root, path)):
                    left -= 1
                    yield path


def _is_script(root: RootFileSystem, path: str) -> bool:
    with contextlib.closing(root.open(path)) as file:
        return file.read_at(0, 2) == b"#!"


def _judge_mpi(root: RootFileSystem, settings: LoaderSettings, job: JobProcess, found: Findings) -> None:
    """Judge whether mpi4py and the framework load in either order: of two files of one soname the first one stays."""
    packages = job.package.rpartition("/")[0] if job.package else None
    module = next((f"{packages}/mpi4py/{n}" for n in names_in(root, f"{packages}/mpi4py") if _is_mpi(n)), None)
    if packages is None or module is None or not job.opens:
        return
    orders = {"mpi4py": (module, *job.opens), str(job.framework): (*job.opens, module)}
    processes: dict[str, Process] = {}
    errors: dict[str, list[str]] = {}
    for first, paths in orders.items():
        process = processes[first] = Process(root, settings)
        errors[first] = list(process.start(job.program).errors)
        for path in paths:
            errors[first] += process.dlopen(path).errors
    libraries = {
        first: [item.path for item in process.objects if _LIBMPI.fullmatch(item.path.rpartition("/")[2])]
        for first, process in processes.items()
    }
    if any(len(paths) != 1 for paths in libraries.values()):
        return
    offered = {paths[0]: offered_by(root, paths[0]) for paths in libraries.values()}
    every = frozenset[str]().union(*offered.values())
    for first, process in processes.items():
        lacking = every - offered[libraries[first][0]]
        for item in process.objects if lacking else ():
            if any(map(_LIBMPI.fullmatch, item.facts.needed)) and (names := lacking & asked_by(root, item.path)):
                errors[first].append(f"{item.path}: undefined symbol: {min(names)}")
    got = offered.keys()
    dying = [first for first, told in errors.items() if told]
    if len(got) > 1 and dying:
        dies = f": with {dying[0]} imported first, it ends" if len(dying) == 1 else ""
        found.add(
            Code.IMAGE_TWO_MPI,
            Severity.INFO,
            f"mpi4py and {job.framework} bring two libraries of one name: {' and '.join(sorted(got))}{dies}",
            names={"framework": str(job.framework)},
            where=module,
            evidence=tuple(line for first in dying for line in errors[first])[:_SHOWN],
        )


def _is_mpi(name: str) -> bool:
    return name.startswith("MPI.") and name.endswith(".so")
