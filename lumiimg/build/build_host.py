"""Find out by trial what this machine lets a build do: kernel flags and program names promise too much.

Each trial runs only when its result is needed, so a fully cached build tries almost nothing. Results are not stored.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lumiimg.build.proot import Proot, find_proot
from lumiimg.core.errors import FailedError, MissingHereError, one_line
from lumiimg.core.files import temporary_folder
from lumiimg.core.findings import Severity
from lumiimg.engine import engine as engines
from lumiimg.engine import namespaces
from lumiimg.engine.engine import Engine, EngineKind, available_engines, clean_environment
from lumiimg.engine.failures import explain, last_words
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from lumiimg.fetch.store import Sources

Way = Literal["overlay", "sandbox"]
STRATEGIES: tuple[Way, ...] = get_args(Way)
"""The fastest first."""
CONTAINER = "a container"
OWN_MOUNTS = "--mounts"
"""Option of the program `root`: mounts, and the programs that serve them, end with the command."""
GET_MKSQUASHFS = "install squashfs-tools, or load the site's module for it"
_UNPACKED = ("docker", "localimage")
_OWN_AGENTS = ("debootstrap", *_UNPACKED)
_TRIAL_S = 20.0
_PASSING = frozenset({"no-space"})
_EXITS = {
    processor: bytes.fromhex(
        f"7f454c4602010100 0000000000000000 0200{number}0001000000 7800400000000000 4000000000000000 0000000000000000"
        "0000000040003800 0100000000000000 0100000005000000 0000000000000000 0000400000000000 0000400000000000"
        f"8400000000000000 8400000000000000 0010000000000000 {code}"
    )
    for processor, number, code in (
        ("x86_64", "3e", "b83c000000 31ff 0f05 909090"),
        ("aarch64", "b7", "a80b80d2 000080d2 010000d4"),
    )
}
"""By processor, a program that needs no library: a header, one segment (elf(5)), and exit(0) (syscall(2))."""
_PLACES = ("bin", "dev", "proc", "sys", "tmp", "etc", "root", "var/tmp")


@dataclass(frozen=True, slots=True)
class CapabilityTrial:
    """One capability that was tried."""

    name: str
    """The capability."""
    works: bool
    """Whether it works."""
    said: str
    """A version, or why it cannot be used."""
    is_sure: bool = True
    """Whether the trial reached a verdict; false where, for example, time or disk space ran out."""
    remedy: str = ""
    """What to do if it does not work and builds require it."""

    @property
    def severity(self) -> Severity:
        """Its effect on builds, which do not need every capability."""
        if self.works:
            return Severity.OK
        return Severity.PROBLEM if self.remedy else Severity.UNKNOWN

    @property
    def may_work(self) -> bool:
        """Whether it works, or it failed for an unknown reason or one that may pass."""
        return self.works or not self.is_sure


@dataclass(frozen=True, slots=True)
class ContainerTrial:
    """How an engine starts containers here."""

    engine: Engine
    """Without `--fakeroot` where it was seen to start containers only that way."""
    trial: CapabilityTrial
    has_pid_namespace: bool = True
    """False if it was seen to start no container with its own /proc."""


class BuildHost:
    """This machine, as builds see it. Each property is found once, by a trial that takes some tenths of a second."""

    def __init__(
        self, engines: Sequence[Engine], environment: Mapping[str, str], sources: Sources | None = None
    ) -> None:
        """Store the engines that a build may choose from, the best first, and the environment for trials.

        `sources`: where to fetch proot from if it is needed; None: it is not fetched.
        """
        self.engines = tuple(engines)
        self.environment = clean_environment(environment)
        self._sources = sources
        self._containers: dict[Engine, ContainerTrial] = {}

    def program(self, name: str) -> Path | None:
        """Return the path of a program on this machine; None if there is none."""
        return program_of(name, self.environment.get("PATH"))

    def container_by(self, engine: Engine) -> ContainerTrial:
        """Return how an engine starts containers here."""
        if engine not in self._containers:
            self._containers[engine] = _try_container(engine, self.environment)
        return self._containers[engine]

    @cached_property
    def container(self) -> ContainerTrial:
        """The trial of the first engine that was seen to start a container; of the first engine if none was.

        A check needs evidence from the engine that jobs use, but a build may use any engine: the image is the same.
        """
        tried = map(self.container_by, self.engines)
        return next((one for one in tried if one.trial.works), self.container_by(self.engines[0]))

    @property
    def engine(self) -> Engine:
        """The engine that builds use."""
        return self.container.engine

    @property
    def kind(self) -> EngineKind:
        """The engine's kind as images reflect it: lumiimg writes the same bytes as Apptainer.

        No container is started if all engines are of one such kind.
        """
        kinds = {_as_seen(engine.kind) for engine in self.engines}
        return kinds.pop() if len(kinds) == 1 else _as_seen(self.engine.kind)

    @cached_property
    def ids(self) -> CapabilityTrial:
        """Whether a build can be root, which preserves file owners: as root, or in a namespace with many ids."""
        done = run([*namespaces.PROGRAM, "root", "true"], env=self.environment, timeout_s=_TRIAL_S)
        return _completed_trial("user namespace with the user's ids", done)

    @property
    def has_subids(self) -> bool:
        """Whether `ids` works."""
        return self.ids.works

    @property
    def is_root(self) -> bool:
        """Whether a build can be root here in any way, which debootstrap requires."""
        return os.geteuid() == 0 or self.has_subids

    def can_bootstrap(self, agent: str) -> bool:
        """Return whether this bootstrap agent can make a base here: debootstrap requires root."""
        return agent != "debootstrap" or self.is_root

    @cached_property
    def overlay(self) -> CapabilityTrial:
        """Whether a container starts on an overlay that the kernel mounts in that namespace, as layers are built."""
        name = "a container on an overlay in it"
        if self.has_subids and platform.machine() in _EXITS:
            try:
                return _completed_trial(name, _start_on_overlay(self.environment))
            except FailedError:
                pass
        return CapabilityTrial(name, works=False, said="it could not be tested")

    @cached_property
    def fuse(self) -> CapabilityTrial:
        """Whether programs can serve file systems here."""
        has = os.access("/dev/fuse", os.R_OK | os.W_OK)
        return CapabilityTrial("FUSE", has, "/dev/fuse" if has else "/dev/fuse cannot be opened")

    @cached_property
    def mksquashfs(self) -> Path:
        """The program that packs layers. Raises MissingHereError if there is none."""
        return mksquashfs_at(self.environment.get("PATH"))

    @cached_property
    def mksquashfs_version(self) -> str:
        """The version that mksquashfs prints; empty if there is no mksquashfs."""
        return _version(self.program("mksquashfs"), self.environment)

    @cached_property
    def proot(self) -> Proot:
        """The proot that makes a script root; sought beyond PATH only if the kernel provides no ids."""
        return find_proot(self.environment, None if self.has_subids else self._sources)

    @cached_property
    def trials(self) -> tuple[CapabilityTrial, ...]:
        """Trials of everything that builds may need."""
        packs, serves = self.mksquashfs_version, _version(self.program("squashfuse_ll"), self.environment)
        programs = [
            CapabilityTrial("mksquashfs", bool(packs), packs or "not on PATH", remedy="" if packs else GET_MKSQUASHFS),
            CapabilityTrial("squashfuse_ll", bool(serves), serves or "not on PATH"),
        ]
        debootstrap = debootstrap_at(self.environment.get("PATH"))
        programs.append(CapabilityTrial("debootstrap", debootstrap is not None, debootstrap or "not on PATH"))
        programs.append(CapabilityTrial("proot", self.proot.program is not None, self.proot.said))
        return (self.container.trial, self.ids, self.overlay, self.fuse, *programs)

    def obstacles(self, way: Way) -> list[str]:
        """Return the reasons why a way to build does not work here."""
        wanted: dict[str, object] = {
            "no container starts here": self.container.trial.may_work,
            "no mksquashfs": self.mksquashfs_version,
        }
        if way == "overlay":
            wanted |= {
                "no user namespace with the user's ids": self.has_subids,
                "no container on an overlay in a user namespace": self.overlay.works,
                "no FUSE": self.fuse.works,
                "no squashfuse_ll": self.program("squashfuse_ll"),
            }
        return [fault for fault, has in wanted.items() if not has]

    @property
    def builds(self) -> bool | None:
        """Whether images can be built; None if that is not known."""
        if all(map(self.obstacles, STRATEGIES)):
            return False
        return True if self.container.trial.works else None

    def choose_strategy(self, asked: Way | None) -> tuple[Way, str]:
        """Return how layers are built here, and why.

        Raises MissingHereError if the requested way is not available, or if no script can be run at all.
        """
        container = self.container.trial
        if not container.may_work:
            what = f"{self.engine.name} cannot start a container here: {container.said}"
            raise MissingHereError(what, hint=container.remedy or None)
        overlay_obstacles = "" if asked else ", ".join(self.obstacles("overlay"))
        way: Way = asked or ("sandbox" if overlay_obstacles else "overlay")
        if faults := ", ".join(self.obstacles(way)):
            what = f"--strategy {way}" if asked else "no image can be built here"
            raise MissingHereError(f"{what}: {faults}", hint="see `lumiimg doctor`")
        if asked is not None:
            return asked, "you asked for it"
        return way, f"overlay: {overlay_obstacles}" if overlay_obstacles else "the fastest"

    def builds_base(self, agent: str) -> bool:
        """Return whether lumiimg itself makes bases by this agent here; else the engine does.

        Without ids it unpacks images, and proot runs the script; debootstrap requires more than proot provides.
        """
        if agent in _OWN_AGENTS and (self.has_subids or (agent in _UNPACKED and self.proot.program is not None)):
            return True
        kernels = EngineKind.NAMESPACES
        return kernels in (engine.kind for engine in self.engines) and self.engine.kind is kernels

    def as_root(self, argv: Sequence[str | Path], *, mount: bool = False) -> list[str | Path]:
        """Return the command that runs `argv` as root of a user namespace if possible; `mount`: with its own mounts."""
        own = [OWN_MOUNTS] if mount and self.has_subids else []
        has_to = own or (self.has_subids and os.geteuid() != 0)
        return [*namespaces.PROGRAM, "root", *own, *argv] if has_to else list(argv)


def host_for_builds(environment: Mapping[str, str], sources: Sources | None = None) -> BuildHost:
    """Return this machine with the engines that builds choose from. Raises MissingHereError if there are none."""
    return BuildHost(tuple(available_engines(environment)), environment, sources)


def program_of(name: str, path: str | None) -> Path | None:
    found = which(name, path)
    return Path(found) if found else None


def mksquashfs_at(path: str | None, hint: str = GET_MKSQUASHFS) -> Path:
    """Return the program that packs squashfs files. Raises MissingHereError if there is none."""
    if (program := program_of("mksquashfs", path)) is None:
        raise MissingHereError("mksquashfs is not on PATH", hint=hint)
    return program


def _as_seen(kind: EngineKind) -> EngineKind:
    return EngineKind.APPTAINER if kind is EngineKind.NAMESPACES else kind


def _version(program: Path | None, environment: Mapping[str, str]) -> str:
    """Return the version that a program prints, else its path; empty if there is no program."""
    if program is None:
        return ""
    # squashfuse prints its version only in the usage message of a wrong call
    output = run([program, "-version"], env=dict(environment), timeout_s=_TRIAL_S).output
    found = re.search(r"\d+\.\d+(\.\d+)?", output.partition("\n")[0])
    return found[0] if found else f"{program}"


# -- containers --


def _try_container(engine: Engine, environment: Mapping[str, str]) -> ContainerTrial:
    def unsure(said: str) -> ContainerTrial:
        return ContainerTrial(engine, CapabilityTrial(CONTAINER, works=False, said=said, is_sure=False))

    if platform.machine() not in _EXITS:
        return unsure("cannot be tested on this processor")
    try:
        with scratch_folder(temporary_folder()) as scratch:
            done = _start_containers(engine, environment, scratch)
    except FailedError as error:
        return unsure(str(error))
    first, last = done[0], done[-1]
    if first.ok:
        return ContainerTrial(engine, CapabilityTrial(CONTAINER, works=True, said="a program ran in one"))
    known = explain(first.output)
    why = known.meaning if known else one_line(last_words(first.output))[:200]
    if not last.ok:
        return ContainerTrial(engine, _failed_trial(last))
    has_pid_namespace = "--pid" in last.argv
    if "--fakeroot" in first.argv and "--fakeroot" not in last.argv:
        is_sure = known is not None and known.id not in _PASSING  # layers that install packages use proot instead
        trial = CapabilityTrial(CONTAINER, works=is_sure, said=f"only without --fakeroot: {why}", is_sure=is_sure)
        return ContainerTrial(engine.without_fakeroot, trial, has_pid_namespace)
    said = f"processes that a script leaves running cannot be stopped: {why}"
    return ContainerTrial(engine, CapabilityTrial(CONTAINER, works=True, said=said), has_pid_namespace)


def _start_containers(engine: Engine, environment: Mapping[str, str], scratch: Path) -> list[Completed]:
    """Start a container as builds do; if that fails, without `--fakeroot`, then with this machine's /proc."""
    root = _write_root(scratch / "root")
    done: list[Completed] = []
    for own, way in product((True, False), dict.fromkeys((engine, engine.without_fakeroot))):
        # inside a container, mounting /proc again may be forbidden
        words = engines.script_words(way, root, ["/bin/sh"], has_pid_namespace=own)
        done.append(run(words, env=engines.unpacking_in(scratch, way, environment), timeout_s=_TRIAL_S))
        if done[-1].ok:
            break
    return done


def _start_on_overlay(environment: Mapping[str, str]) -> Completed:
    """Start a container through the kernel, as layers are built on overlays. Raises FailedError."""
    with scratch_folder(temporary_folder()) as scratch:
        _write_root(scratch / "root")
        script = (
            f"cd {shlex.quote(str(scratch))} && mkdir upper work merged && "
            "mount -t overlay overlay -o userxattr,lowerdir=root,upperdir=upper,workdir=work merged && "
            'cd / && exec "$@"'
        )
        engine = engines.kernel_engine()
        words = engines.script_words(engine, scratch / "merged", ["/bin/sh"], writable=True)
        words = [*namespaces.PROGRAM, "root", OWN_MOUNTS, "/bin/sh", "-c", script, "sh", *words]
        return run(words, env=engines.unpacking_in(scratch, engine, environment), timeout_s=_TRIAL_S)


def _write_root(root: Path) -> Path:
    """Write an image with one program, and return its folder: exit status 0 proves that the program ran."""
    for name in _PLACES:
        (root / name).mkdir(parents=True)
    program = root / "bin" / "sh"  # engines run scripts of their own before the program, and fakeroot(1) is one
    program.write_bytes(_EXITS[platform.machine()])
    program.chmod(0o755)
    return root


def _failed_trial(done: Completed) -> CapabilityTrial:
    known = explain(done.output)
    if known is not None and known.id not in _PASSING:
        return CapabilityTrial(CONTAINER, works=False, said=known.meaning, remedy=known.remedy)
    why = known.meaning if known else one_line(last_words(done.output))[:200] or f"exit status {done.exit_code}"
    return CapabilityTrial(CONTAINER, works=False, said="it timed out" if done.timed_out else why, is_sure=False)


def _completed_trial(name: str, done: Completed) -> CapabilityTrial:
    why = "" if done.ok else one_line(done.last_line)[:200]
    return CapabilityTrial(name, done.ok, why, is_sure=not done.timed_out)
