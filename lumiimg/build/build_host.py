"""What this machine lets a build do, found by trying it: flags of the kernel and names of programs promise too much.

Each trial takes some tenths of a second, and a build makes those that it needs: nothing of them is kept.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import struct
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lumiimg.build.debootstrap import IN_CONTAINER, archive_command
from lumiimg.definition.definition import DEBOOTSTRAP, Header
from lumiimg.engine import engine as engines
from lumiimg.engine import namespaces
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, MissingHereError, one_line
from lumiimg.files import temporary_folder
from lumiimg.findings import Severity
from lumiimg.resolve.bootstrap import debootstrap_at

PROGRAMS = ("mksquashfs", "unsquashfs", "squashfuse_ll", "proot")
CONTAINER = "a container"
BASES_BY_DEBOOTSTRAP = "bases by debootstrap"
OWN_MOUNTS = "--mounts"
"""Of the program `root`: mounts, and programs that serve them, end with the command."""
PROOT_SLOWLY = {"PROOT_NO_SECCOMP": "1"}
"""Without its filter of system calls proot stops programs at every one. Source: proot(1), and kernels where the filter
lets all of them pass unseen (seen with 5.4.0 on Linux 6.18), so that a script would have this machine's files."""
_OWN_AGENTS = ("docker", "oras", "localimage")
_TRIAL_S = 20.0
_PASSING = frozenset({"no-space"})
_OF_ARCHIVE = Header(DEBOOTSTRAP, "stable", "file:///lumiimg-no-such-mirror")
_ASKED = "lumiimg-no-such-mirror/dists/stable/Release"
_BEHIND = "/lumiimg-trial"
# statx(2) is what ls, stat and install ask today; before 5.2.0 proot lets it pass unseen (its CHANGELOG.rst)
_SEES = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
known = not hasattr(libc, "statx") or libc.statx(-100, b"{_BEHIND}", 0, 0x7FF, ctypes.create_string_buffer(256)) == 0
sys.exit(0 if known and os.stat("{_BEHIND}").st_uid == 0 else 1)
"""
_AT = 0x400000
# exit(0): number of the machine (elf(5), e_machine), and instructions. Source: syscall(2), of what each takes its calls
_MACHINES = {
    "x86_64": (62, bytes.fromhex("b83c000000 31ff 0f05")),
    "aarch64": (183, bytes.fromhex("a80b80d2 000080d2 010000d4")),
}
_PLACES = ("dev", "proc", "sys", "tmp", "etc", "root", "var/tmp")


@dataclass(frozen=True, slots=True)
class CapabilityTrial:
    """One thing that was tried."""

    name: str
    """What."""
    works: bool
    """Whether it works."""
    said: str
    """A version, or what stands against it."""
    is_sure: bool = True
    """Whether it was tried to the end: not where time or room ran out."""
    remedy: str = ""
    """What to do where it does not work and builds want it."""

    @property
    def severity(self) -> Severity:
        """How it bears on builds, which can do without some."""
        if self.works:
            return Severity.OK
        return Severity.PROBLEM if self.remedy else Severity.UNKNOWN


@dataclass(frozen=True, slots=True)
class BuildHost:
    """What was found; a program is None where there is none."""

    engine: Engine
    """What was tried; without `--fakeroot` where it was seen to start containers only so."""
    maps_ids: bool
    """Whether a build can be root, so that files keep their owners: as root, or in a user namespace with many ids."""
    mounts: bool
    """Whether an overlay can be mounted in it, and a container started there."""
    fuse: bool
    mksquashfs: Path | None
    unsquashfs: Path | None
    squashfuse_ll: Path | None
    """Not `squashfuse`, which shows each name of a file as a file of its own."""
    proot: Path | None
    """Only where it does what it is for."""
    trials: tuple[CapabilityTrial, ...]
    proot_is_slow: bool = False
    """Whether it takes `PROOT_SLOWLY`."""
    starts: bool = True
    """False where the engine was seen to start no container."""
    own_processes: bool = True
    """False where it was seen to start none that has a /proc of its own."""
    debootstraps: bool = True
    """False where debootstrap was seen to make no base."""
    bootstraps: bool = False
    """Whether debootstrap was seen to begin for lumiimg itself; else the engine has it make bases."""

    @property
    def mksquashfs_version(self) -> str:
        """As it says itself; nothing where there is none."""
        return next((trial.said for trial in self.trials if trial.name == "mksquashfs" and trial.works), "")

    def has(self, name: str) -> bool:
        """Whether what was tried under a name works."""
        return any(trial.works for trial in self.trials if trial.name == name)

    def makes_base(self, agent: str) -> bool:
        """Whether lumiimg itself makes bases by such an agent here; else the engine does."""
        if self.engine.kind is EngineKind.NAMESPACES:
            return True
        return self.bootstraps if agent == DEBOOTSTRAP else self.maps_ids and agent in _OWN_AGENTS

    def as_root(self, argv: Sequence[str | Path], *, mount: bool = False) -> list[str | Path]:
        """Return `argv` to be run as root of a user namespace, where there is one; `mount`: with mounts of its own."""
        own = [OWN_MOUNTS] if mount and self.maps_ids else []
        has_to = own or (self.maps_ids and os.geteuid() != 0)
        return [*namespaces.PROGRAM, "root", *own, *argv] if has_to else list(argv)

    def require_container(self) -> None:
        """Raise MissingHereError where no script of a layer can be run."""
        if not self.starts:
            raise self._lacking(CONTAINER, f"{self.engine.name} starts no container here")

    def require_bootstrap(self, base: str, header: Header) -> None:
        """Raise MissingHereError where a base with such a header cannot be built here."""
        if not self.debootstraps and header.agent == DEBOOTSTRAP:
            raise self._lacking(BASES_BY_DEBOOTSTRAP, f"{base} cannot be built here")

    def _lacking(self, name: str, what: str) -> MissingHereError:
        trial = next((trial for trial in self.trials if trial.name == name), None)
        if trial is None:
            return MissingHereError(what, hint="see `lumiimg doctor`")
        return MissingHereError(f"{what}: {trial.said}", hint=trial.remedy or None)


_STARTS = CapabilityTrial(CONTAINER, works=True, said="a program was run in one")


def program_of(name: str, path: str | None) -> Path | None:
    found = which(name, path)
    return Path(found) if found else None


def look(engine: Engine, environment: Mapping[str, str], agent: str | None = None) -> BuildHost:
    """Try what a build may need with an engine, all at once; `agent`: only what one on a base of that kind needs."""
    path, env = environment.get("PATH"), dict(environment)
    found = {name: program_of(name, path) for name in PROGRAMS}
    with ThreadPoolExecutor() as pool:
        versions = {name: pool.submit(_version, program, env) for name, program in found.items() if program}
        tried = None if engine.kind is EngineKind.NAMESPACES else pool.submit(_try_container, engine, environment)
        overlay = _start_on_overlay(environment)
        mounts = overlay is not None and overlay.ok
        ids = overlay if overlay and mounts else run([*namespaces.PROGRAM, "root", "true"], env=env, timeout_s=_TRIAL_S)
        wants_proot = agent is None or not ids.ok
        asked_proot = pool.submit(_try_proot, found["proot"] if wants_proot else None, env)
        if tried is not None:
            engine, starts, own_processes, container = tried.result()
        elif mounts:
            starts, own_processes, container = True, True, _STARTS
        else:
            engine, starts, own_processes, container = _try_container(engine, environment)
        proot, is_slow, said = asked_proot.result()
        debootstraps, bootstraps, base = True, False, None
        if agent in {None, DEBOOTSTRAP}:
            debootstraps, bootstraps, base = _try_bootstrap(engine, environment, maps_ids=ids.ok, starts=starts)
    fuse = os.access("/dev/fuse", os.R_OK | os.W_OK)
    trials = [
        container,
        *([base] if base else []),
        _of_run("user namespace with the user's ids", ids, ""),
        _of_run("a container on an overlay in it", overlay if ids.ok else None, "it could not be tried"),
        CapabilityTrial("FUSE", fuse, "/dev/fuse" if fuse else "/dev/fuse cannot be opened"),
    ]
    for name, program in found.items():
        if name != "proot" or program is None:
            says = versions[name].result() if program else "not on PATH"
            trials.append(CapabilityTrial(name, program is not None, says))
        elif wants_proot:
            trials.append(CapabilityTrial(name, proot is not None, said))
    return BuildHost(
        engine=engine,
        maps_ids=ids.ok,
        mounts=mounts,
        fuse=fuse,
        trials=tuple(trials),
        proot_is_slow=is_slow,
        starts=starts,
        own_processes=own_processes,
        debootstraps=debootstraps,
        bootstraps=bootstraps,
        **(found | {"proot": proot}),
    )


def _try_container(engine: Engine, environment: Mapping[str, str]) -> tuple[Engine, bool, bool, CapabilityTrial]:
    """Return the engine as it starts containers, whether it does, and with processes of their own; the trial.

    All as far as it is known.
    """
    try:
        with scratch_folder(temporary_folder()) as scratch:
            done = _start_containers(engine, environment, scratch)
    except FailedError as error:
        return engine, True, True, CapabilityTrial(CONTAINER, works=False, said=str(error), is_sure=False)
    if not done:
        said = "cannot be tried on this processor"
        return engine, True, True, CapabilityTrial(CONTAINER, works=False, said=said, is_sure=False)
    if done[0].ok:
        return engine, True, True, _STARTS
    last, known = done[-1], explain(done[0].output)
    own_processes = "--pid" in last.argv
    why = known.meaning if known else one_line(telling_line(done[0].output))[:200]
    if last.ok and "--fakeroot" in done[0].argv and "--fakeroot" not in last.argv:
        is_sure = known is not None and known.id not in _PASSING  # layers that install packages do without, by proot
        trial = CapabilityTrial(CONTAINER, works=is_sure, said=f"only without --fakeroot: {why}", is_sure=is_sure)
        return engine.without_fakeroot, True, own_processes, trial
    if last.ok:
        said = f"processes that a script leaves running are not stopped: {why}"
        return engine, True, own_processes, CapabilityTrial(CONTAINER, works=True, said=said)
    starts, trial = _of_failure(CONTAINER, last)
    return engine, starts, True, trial


def _start_containers(engine: Engine, environment: Mapping[str, str], scratch: Path) -> list[Completed]:
    """Start a container as builds do, and where that fails, without `--fakeroot`, then with this machine's /proc.

    On processors for which there is no program nothing is returned.
    """
    if platform.machine() not in _MACHINES:
        return []
    root = scratch / "root"
    _write_root(root)
    engine_alone = engine.without_fakeroot
    ways = [engine] if engine == engine_alone else [engine, engine_alone]
    done: list[Completed] = []
    for own, way in product((True, False), ways):  # in a container, /proc may not be mounted again
        done.append(
            engines.run_script(
                way,
                root,
                ["/bin/sh"],
                environment=environment,
                scratch=scratch,
                own_processes=own,
                timeout_s=_TRIAL_S,
            )
        )
        if done[-1].ok:
            break
    return done


def _start_on_overlay(environment: Mapping[str, str]) -> Completed | None:
    """Start a container as layers are built on overlays, by the kernel; None where that cannot be tried."""
    if platform.machine() not in _MACHINES:
        return None
    try:
        with scratch_folder(temporary_folder()) as scratch:
            _write_root(scratch / "root")
            script = (
                f"cd {shlex.quote(str(scratch))} && mkdir upper work merged && "
                "mount -t overlay overlay -o userxattr,lowerdir=root,upperdir=upper,workdir=work merged && "
                'cd / && exec "$@"'
            )
            return engines.run_script(
                engines.of_kernel(),
                scratch / "merged",
                ["/bin/sh"],
                environment=environment,
                scratch=scratch,
                writable=True,
                within=lambda argv: [*namespaces.PROGRAM, "root", OWN_MOUNTS, "/bin/sh", "-c", script, "sh", *argv],
                timeout_s=_TRIAL_S,
            )
    except FailedError:
        return None


def _write_root(root: Path) -> None:
    """Write an image of one program that needs no library: who ended with 0 has run it."""
    for name in ("bin", *_PLACES):
        (root / name).mkdir(parents=True)
    program = root / "bin" / "sh"  # engines run scripts of theirs before the program, and fakeroot(1) is one
    program.write_bytes(_program(*_MACHINES[platform.machine()]))
    program.chmod(0o755)


def _program(machine: int, code: bytes) -> bytes:
    """Return an executable of one segment. Source: elf(5)."""
    header, segment = 64, 56
    size = header + segment + len(code)
    ident = b"\x7fELF\x02\x01\x01"  # 64 bits, little end first
    executable, loaded, readable_and_run = 2, 1, 5
    numbers = (executable, machine, 1, _AT + header + segment, header, 0, 0, header, segment, 1, 0, 0, 0)
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers)
    return head + struct.pack("<IIQQQQQQ", loaded, readable_and_run, 0, _AT, _AT, size, size, 0x1000) + code


def _try_bootstrap(
    engine: Engine, environment: Mapping[str, str], *, maps_ids: bool, starts: bool
) -> tuple[bool, bool, CapabilityTrial]:
    """Return whether bases of Debian's archive can be made here, as far as that is known, by lumiimg itself, the trial.

    A debootstrap that comes as far as to ask for the release, at an address that does not exist, has made what it
    needs. Where it does not do so for lumiimg itself, the engine is tried.
    """

    def trial(said: str, *, works: bool = False, is_sure: bool = True) -> CapabilityTrial:
        return CapabilityTrial(BASES_BY_DEBOOTSTRAP, works, said, is_sure)

    if debootstrap_at(environment.get("PATH")) is None:
        return True, False, trial("debootstrap is not on PATH")
    if not starts:
        return True, False, trial("there is no container to try it in")
    is_kernels = engine.kind is EngineKind.NAMESPACES
    done = None
    try:
        if maps_ids or is_kernels:
            done = _begin_bootstrap(environment)
            if _ASKED in done.output:
                return True, True, trial("debootstrap starts", works=True)
        if not is_kernels:
            done = _begin_by_engine(engine, {**environment, "LC_ALL": "C"})
            if _ASKED in done.output:
                return True, False, trial(f"debootstrap starts, by {engine.family}", works=True)
    except FailedError as error:
        return True, False, trial(str(error), is_sure=False)
    if done is None:
        return False, False, trial("debootstrap needs a user namespace with the user's ids")
    debootstraps, failed = _of_failure(BASES_BY_DEBOOTSTRAP, done)
    return debootstraps, False, failed


def _begin_bootstrap(environment: Mapping[str, str]) -> Completed:
    with scratch_folder(temporary_folder()) as scratch:
        words = archive_command(_OF_ARCHIVE, scratch / "base", environment.get("PATH"))
        variables = {**environment, **IN_CONTAINER, "LC_ALL": "C", "TMPDIR": f"{scratch}"}
        return run([*namespaces.PROGRAM, "root", OWN_MOUNTS, *words], env=variables, timeout_s=_TRIAL_S)


def _begin_by_engine(engine: Engine, environment: Mapping[str, str]) -> Completed:
    with scratch_folder(temporary_folder()) as scratch:
        definition, image = scratch / "image.def", scratch / "image"
        definition.write_text(_OF_ARCHIVE.text, encoding="utf-8")
        return engines.build(engine, definition, image, environment=environment, scratch=scratch, timeout_s=_TRIAL_S)


def _of_failure(name: str, done: Completed) -> tuple[bool, CapabilityTrial]:
    """Return whether it may work all the same, as nobody knows why it failed or the reason may pass, and the trial."""
    known = explain(done.output)
    if known is not None and known.id not in _PASSING:
        return False, CapabilityTrial(name, works=False, said=known.meaning, remedy=known.remedy)
    said = known.meaning if known else one_line(telling_line(done.output))[:200] or f"exit status {done.exit_code}"
    return True, CapabilityTrial(name, works=False, said="it took too long" if done.timed_out else said, is_sure=False)


def _try_proot(program: Path | None, env: dict[str, str]) -> tuple[Path | None, bool, str]:
    """Return proot where programs see by it what they are to see, whether only slowly, and what is to be said."""
    if program is None:
        return None, False, ""
    shown = f"{temporary_folder()}:{_BEHIND}"
    words: list[str | Path] = [program, "--kill-on-exit", "-0", "-b", shown, sys.executable, "-I", "-S", "-c", _SEES]
    for is_slow, more in ((False, {}), (True, PROOT_SLOWLY)):
        if run(words, env=env | more, timeout_s=_TRIAL_S).ok:
            return program, is_slow, f"{program}, slowly (PROOT_NO_SECCOMP)" if is_slow else f"{program}"
    return None, False, f"{program} lets programs see this machine's files: version 5.2.0 or newer is needed"


def _version(program: Path, env: dict[str, str]) -> str:
    # squashfuse says its version only with the usage of a wrong call
    said = run([program, "-version"], env=env, timeout_s=_TRIAL_S).output
    found = re.search(r"\d+\.\d+(\.\d+)?", said.partition("\n")[0])
    return found[0] if found else f"{program}"


def _of_run(name: str, completed: Completed | None, absent: str) -> CapabilityTrial:
    if completed is None:
        return CapabilityTrial(name, works=False, said=absent)
    said = "" if completed.ok else one_line(completed.last_line)[:200]
    return CapabilityTrial(name, completed.ok, said, is_sure=not completed.timed_out)
