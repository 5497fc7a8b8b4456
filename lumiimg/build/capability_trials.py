"""Trials of this machine: flags of the kernel and names of programs promise too much, so each is tried."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
import shlex
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lumiimg.build.bootstrap import IN_CONTAINER, archive_command
from lumiimg.build.capabilities import (
    BASES_BY_DEBOOTSTRAP,
    CONTAINER,
    OWN_MOUNTS,
    PROGRAMS,
    PROOT_SLOWLY,
    BuildMachine,
    CapabilityTrial,
    program_of,
)
from lumiimg.definition.definition import DEBOOTSTRAP, Header
from lumiimg.engine import engine as engines
from lumiimg.engine import namespaces
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.process import Completed, run
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, one_line
from lumiimg.files import temporary_folder
from lumiimg.resolve.bootstrap import debootstrap_at

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


def look(engine: Engine, environment: Mapping[str, str]) -> BuildMachine:
    """Try what a build may need, in a few tenths of a second."""
    path = environment.get("PATH")
    env = dict(environment)
    ids = run([*namespaces.PROGRAM, "root", "true"], env=env, timeout_s=_TRIAL_S)
    mounts = None
    if ids.ok and platform.machine() in _MACHINES:
        mounts = _start_on_overlay(environment, [*namespaces.PROGRAM, "root", OWN_MOUNTS])
    fuse = os.access("/dev/fuse", os.R_OK | os.W_OK)
    found = {name: program_of(name, path) for name in PROGRAMS}
    starts, fakeroot, own_processes, container = _try_container(engine, environment)
    engine = engine if fakeroot else engine.without_fakeroot
    debootstraps, bootstraps, base = _try_bootstrap(engine, environment, maps_ids=ids.ok, starts=starts)
    trials = [
        container,
        base,
        _of_run("user namespace with the user's ids", ids, ""),
        _of_run("a container on an overlay in it", mounts, "it could not be tried"),
        CapabilityTrial("FUSE", fuse, "/dev/fuse" if fuse else "/dev/fuse cannot be opened"),
    ]
    proot, is_slow, said = _try_proot(found["proot"], env)
    for name, program in found.items():
        if name == "proot" and program is not None:
            trials.append(CapabilityTrial(name, proot is not None, said))
        else:
            trials.append(
                CapabilityTrial(name, program is not None, _version(program, env) if program else "not on PATH")
            )
    found["proot"] = proot
    return BuildMachine(
        engine=engine,
        maps_ids=ids.ok,
        mounts=mounts is not None and mounts.ok,
        fuse=fuse,
        trials=tuple(trials),
        proot_is_slow=is_slow,
        starts=starts,
        own_processes=own_processes,
        debootstraps=debootstraps,
        bootstraps=bootstraps,
        fakeroot=fakeroot,
        **{name.replace("-", "_"): program for name, program in found.items()},
    )


def _try_container(engine: Engine, environment: Mapping[str, str]) -> tuple[bool, bool, bool, CapabilityTrial]:
    """Return whether scripts can be run in a container, by `--fakeroot`, and with processes of their own; the trial.

    All as far as it is known.
    """
    try:
        with scratch_folder(temporary_folder()) as scratch:
            done = _start_containers(engine, environment, scratch)
    except FailedError as error:
        return True, True, True, CapabilityTrial(CONTAINER, works=False, said=str(error), is_sure=False)
    if not done:
        said = "cannot be tried on this processor"
        return True, True, True, CapabilityTrial(CONTAINER, works=False, said=said, is_sure=False)
    if done[0].ok:
        return True, True, True, CapabilityTrial(CONTAINER, works=True, said="a program was run in one")
    last, known = done[-1], explain(done[0].output)
    own_processes = "--pid" in last.argv
    why = known.meaning if known else one_line(telling_line(done[0].output))[:200]
    if last.ok and "--fakeroot" in done[0].argv and "--fakeroot" not in last.argv:
        is_sure = known is not None and known.id not in _PASSING  # layers that install packages do without, by proot
        said = f"only without --fakeroot: {why}"
        return True, False, own_processes, CapabilityTrial(CONTAINER, works=is_sure, said=said, is_sure=is_sure)
    if last.ok:
        said = f"processes that a script leaves running are not stopped: {why}"
        return True, True, own_processes, CapabilityTrial(CONTAINER, works=True, said=said)
    starts, trial = _of_failure(CONTAINER, done[-1])
    return starts, True, True, trial


def _start_on_overlay(environment: Mapping[str, str], namespace: Sequence[str]) -> Completed | None:
    """Start a container as layers are built on overlays, by the kernel; None where there is no room to try."""
    try:
        with scratch_folder(temporary_folder()) as scratch:
            _write_root(scratch / "root")
            for name in ("dev", "proc", "sys", "tmp", "etc", "root", "var/tmp"):
                (scratch / "root" / name).mkdir(parents=True)
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
                within=lambda argv: [*namespace, "/bin/sh", "-c", script, "sh", *argv],
                timeout_s=_TRIAL_S,
            )
    except FailedError:
        return None


def _start_containers(engine: Engine, environment: Mapping[str, str], scratch: Path) -> list[Completed]:
    """Start a container as builds do, and where that fails, without `--fakeroot`, then with this machine's /proc.


    The program needs no library, so that a folder with it alone is an image: one that ended with 0 has been run. On
    processors for which there is none, nothing is returned.
    """
    if platform.machine() not in _MACHINES:
        return []
    root = scratch / "root"
    _write_root(root)
    argv = ["/bin/sh"]
    engine_alone = engine.without_fakeroot
    ways = [engine] if engine == engine_alone else [engine, engine_alone]
    done: list[Completed] = []
    for own, way in itertools.product((True, False), ways):  # in a container, /proc may not be mounted again
        start = functools.partial(engines.run_script, way, root, argv, own_processes=own, scratch=scratch)
        done.append(start(environment=environment, timeout_s=_TRIAL_S))
        if done[-1].ok:
            break
    return done


def _write_root(root: Path) -> None:
    """Write an image of one program."""
    program = root / "bin" / "sh"  # engines run scripts of theirs before the program, and fakeroot(1) is one
    program.parent.mkdir(parents=True)
    program.write_bytes(_program(*_MACHINES[platform.machine()]))
    program.chmod(0o755)


def _program(machine: int, code: bytes) -> bytes:
    """Return an executable of one segment. Source: elf(5)."""
    header, segment = 64, 56
    size = header + segment + len(code)
    ident = b"\x7fELF\x02\x01\x01"  # 64 bits, little end first
    executable, loaded, readable_and_run = 2, 1, 5
    return (
        struct.pack(
            "<16sHHIQQQIHHHHHH",
            *(ident, executable, machine, 1, _AT + header + segment, header, 0, 0, header, segment, 1, 0, 0, 0),
        )
        + struct.pack("<IIQQQQQQ", loaded, readable_and_run, 0, _AT, _AT, size, size, 0x1000)
        + code
    )


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
            with scratch_folder(temporary_folder()) as scratch:
                done = _built(engine, _OF_ARCHIVE.text, {**environment, "LC_ALL": "C"}, scratch)
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


def _built(engine: Engine, text: str, environment: Mapping[str, str], scratch: Path) -> Completed:
    """Have the engine build a definition in the folder `image`."""
    definition = scratch / "image.def"
    definition.write_text(text, encoding="utf-8")
    return engines.build(
        engine,
        definition,
        scratch / "image",
        environment=environment,
        scratch=scratch,
        timeout_s=_TRIAL_S,
    )


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
    words = [
        "--kill-on-exit",
        "-0",
        "-b",
        f"{temporary_folder()}:{_BEHIND}",
        sys.executable,
        "-I",
        "-S",
        "-c",
        _SEES,
    ]
    for is_slow, more in ((False, {}), (True, PROOT_SLOWLY)):
        if run([program, *words], env=env | more, timeout_s=_TRIAL_S).ok:
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
    is_sure = not completed.timed_out
    return CapabilityTrial(name, completed.ok, "" if completed.ok else one_line(completed.last_line)[:200], is_sure)
