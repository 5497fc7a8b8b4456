"""What the probes of one image need, as a value: created where the image is read, used here or on other nodes.

Their programs come from the image, from a compiler in the image, or from a compiler of this machine.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.check.probe.container import ALL_REDUCE, IN_IMAGE, PROGRAMS, SIMULATION, Container, ProbePrograms
from lumiimg.check.probe.judgement import ProbeResult, judge_simulation, probe
from lumiimg.check.probe.process import command_of
from lumiimg.check.static.process import StaticResult  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.core.access import BytesInMemory
from lumiimg.core.errors import MissingHereError
from lumiimg.core.files import read_beginning
from lumiimg.core.findings import Severity
from lumiimg.elf import Process, read_elf
from lumiimg.engine.engine import Engine, EngineKind, exec_words
from lumiimg.engine.process import run, which
from lumiimg.fabric.path import Part
from lumiimg.resolve.venv import BIN, MOUNT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.files import HostFit
    from lumiimg.image import Image

_DEVICES = Path("/dev")
_MOUNTED = "/opt/lumiimg-probe"
"""Where a folder of this machine is mounted in the container, if the programs are not in the image."""
_COMPILERS = ("cc", "gcc", "clang")
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/venv/bin")
_SHARED_SOURCE = "probe.h"
_COMPILE_TIMEOUT_S = 120.0
_GLIBC_FROM = "libc.so.6"
_MAX_BYTES = 64 << 20
"""Size limit of a probe program that is compiled here."""


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """The probes of one image; its files were already read, once for all nodes."""

    image: str
    static: StaticResult
    tools: ProbePrograms
    binds: tuple[tuple[str, str], ...] = ()
    """Pairs of a path on the machine and its place in the container."""
    variables: tuple[tuple[str, str], ...] = ()
    simulate: bool = False
    """Whether RCCL is also run on a stand-in for HIP (`judgement.py`)."""

    def container(
        self, engine: Engine, environment: Mapping[str, str], programs: ProbePrograms | None = None
    ) -> Container:
        """Return the container of the probes, or of other programs, with the task's binds and variables."""
        programs = programs or self.tools
        with_binds = replace(programs, binds=(*programs.binds, *self.binds))
        return Container(engine, Path(self.image), {**environment, **engine.setting(self.variables)}, with_binds)


def make_task(
    engine: Engine, context: ImageInContext, files: HostFit, scratch: Path, *, simulate: bool = False
) -> ProbeTask:
    """Return the task of an image, with what its manifest binds and sets; compiled programs go to `scratch`.

    Without probe programs the process of a job is still started. Raises MissingHereError if that is not known
    either, or if the simulation needs the programs.
    """
    venv, manifest = context.venv, files.manifest
    if venv is not None and venv.is_file and engine.kind is EngineKind.NAMESPACES:
        hint = "create it as a folder instead: lumiimg venv IMAGE … -o env/"
        raise MissingHereError(f"{engine.family} cannot bind a squashfs file, and {venv.path.name} is one", hint=hint)
    try:
        programs = (*PROGRAMS, SIMULATION) if simulate else PROGRAMS
        tools = find_or_compile(engine, context, context.environment, scratch, programs)
    except MissingHereError as error:
        if simulate or command_of(files.static) is None:
            raise
        tools = ProbePrograms("", (), error.what)
    return ProbeTask(
        image=str(context.path),
        static=files.static,
        tools=tools,
        binds=(
            *((bind.source, bind.target) for bind in (manifest.binds if manifest else ())),
            *([(str(venv.path), MOUNT)] if venv else []),
        ),
        variables=(
            *((item.name, item.value) for item in (manifest.variables if manifest else ())),
            *([("PREPEND_PATH", BIN)] if venv else []),
        ),
        simulate=simulate,
    )


def find_all_reduce(engine: Engine, context: ImageInContext, task: ProbeTask, folder: Path) -> ProbePrograms:
    """Return this project's all-reduce, which also counts GPUs; it is in `folder` if the image does not have it.

    Raises MissingHereError if it is not available.
    """
    (programs := folder / "programs").mkdir()
    environment = task.container(engine, context.environment).environment
    return find_or_compile(engine, context, environment, programs, [ALL_REDUCE])


def carry_out(task: ProbeTask, engine: Engine, environment: Mapping[str, str]) -> ProbeResult:
    """Run the probes on this machine.

    Raises MissingHereError if a library that is to be bound is not on this machine, or no container starts.
    """
    gone = next((source for source, _ in task.binds if not os.path.exists(source)), None)  # noqa: PTH110 - as given
    if gone is not None:
        raise MissingHereError(f"{gone} must be bound, but does not exist on this machine")
    container = task.container(engine, environment)
    inconclusive = inconclusive_reason(container.environment)
    result = probe(container, task.static, inconclusive=inconclusive)
    if task.simulate and task.static.path.rccl is not None:
        plugin = next((found for run in reversed(result.runs) if (found := run.mapped(Part.PLUGIN))), None)
        simulated = container.ask(SIMULATION, task.static.path.rccl)
        result.runs.append(simulated)
        judged = judge_simulation(simulated, result.path.rccl_version, plugin, inconclusive=inconclusive)
        result.findings.found += judged.found
    by = f"probed with {engine.name}{', programs' if task.tools.folder else ';'} {task.tools.origin}"
    if engine.kind is EngineKind.NAMESPACES:
        by += "; the engine of a cluster may bind more and set other variables"
    result.findings.add("probe.engine", Severity.INFO, by)
    return result


def inconclusive_reason(environment: Mapping[str, str], devices: Path = _DEVICES) -> str | None:
    """Return why a plugin that does not reach the fabric here says nothing about the image; None if it does.

    Without a NIC there is nothing to open; without the job step's credentials the cxi provider refuses it
    (libfabric prov/cxi/src/cxip_nic.c: -FI_ENOSYS where SLINGSHOT_VNIS is not set and no default service may be used).
    """
    if not any(devices.glob("cxi[0-9]*")):
        return "this machine has no Slingshot NIC (/dev/cxi*)"
    if not environment.get("SLINGSHOT_VNIS"):
        return "this is not a job step with access to the fabric (SLINGSHOT_VNIS is not set; start it with srun)"
    return None


# -- where the programs come from --


def find_or_compile(
    engine: Engine, context: ImageInContext, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]
) -> ProbePrograms:
    """Return the programs, all of the same origin: an image with an older netprobe layer does not have all of them.

    Compiled programs go to `scratch`. `environment` is the engine's. Raises MissingHereError if there are none that
    can be relied on: a probe that cannot start because of its C library would look like a plugin that cannot.
    """
    root, binds = context.image.root, ((str(scratch), _MOUNTED),)
    if all(root.is_file(f"{IN_IMAGE}/{program}") for program in programs):
        return ProbePrograms(IN_IMAGE, (), "from the image's netprobe layer")
    sources = shipped_layers() / "netprobe"
    for name in (_SHARED_SOURCE, *(f"{program}.c" for program in programs)):
        shutil.copyfile(sources / name, scratch / name)
    for compiler in filter(root.is_file, (f"{folder}/{name}" for folder in _FOLDERS for name in _COMPILERS)):
        argv = ["/bin/sh", "-c", _compile_script(compiler, _MOUNTED, programs)]
        words = exec_words(engine, context.path, argv, writable=((scratch, _MOUNTED),))
        if run(words, env=environment, timeout_s=_COMPILE_TIMEOUT_S).ok:
            return ProbePrograms(_MOUNTED, binds, "compiled by the image's own compiler")
    _compile_here(context.image, environment, scratch, programs)
    return ProbePrograms(_MOUNTED, binds, "compiled on this machine; the image's C library has everything they need")


def _compile_here(image: Image, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]) -> None:
    compiler = next((found for name in _COMPILERS if (found := which(name, environment.get("PATH")))), None)
    if compiler is None:
        raise MissingHereError(
            "no probe programs: the image has no netprobe layer, and neither it nor this machine has a C compiler",
            hint="add the layer (`lumiimg build … --add netprobe`), or install gcc here",
        )
    argv = ["/bin/sh", "-c", _compile_script(compiler, ".", programs)]
    done = run(argv, env=environment, cwd=scratch, timeout_s=_COMPILE_TIMEOUT_S)
    if not done.ok:
        raise MissingHereError(f"the compiler of this machine failed on the probes: {done.last_line}")
    missing = _missing_versions(image, [scratch / program for program in programs])
    if missing:
        raise MissingHereError(
            f"the probes that this machine compiles need {missing[-1]}, which the image's C library does not have",
            hint="add the netprobe layer to the image: `lumiimg build … --add netprobe`",
        )


def _compile_script(compiler: str, folder: str, programs: Sequence[str]) -> str:
    # All names are our own, without spaces; -ldl for glibc before 2.34; -rdynamic as the stand-in in rcclsim needs it.
    return " && ".join(
        f"'{compiler}' -std=c11 -O1 -rdynamic -o {folder}/{program} {folder}/{program}.c -ldl" for program in programs
    )


def _missing_versions(image: Image, programs: list[Path]) -> list[str]:
    """Return the versions of the C library that the programs need and the image does not define."""
    needed: set[str] = set()
    defined: set[str] = set()
    for program in programs:
        facts = read_elf(BytesInMemory(read_beginning(program, _MAX_BYTES)))
        needed.update(need.name for need in facts.version_needs if need.file == _GLIBC_FROM)
        if facts.interpreter and not defined:
            process = Process(image.root)
            process.start(facts.interpreter)
            libc = process.dlopen(_GLIBC_FROM).root if process.objects else None
            defined.update(libc.facts.version_definitions if libc else ())
    return sorted(needed - defined)
