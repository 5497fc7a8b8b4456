"""What was found out about a machine, kept in the cache for the next build on it.

    <cache>/hosts/NAME.KIND.json    what was found with an engine of that kind, and what it depends on

It holds as long as what it depends on is the same: the boot, the kernel and what that allows this user and this
process, the engine and the programs. Nothing that time or room cut short is kept. Programs are never taken from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from lumiimg.build.capabilities import PROGRAMS, BuildMachine, CapabilityTrial, program_of
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.process import which
from lumiimg.errors import LumiimgError
from lumiimg.files import open_regular, read_beginning, write_text
from lumiimg.resolve.bootstrap import debootstrap_at

_FORMAT = 7
_LIMIT_BYTES = 64 * 1024
_FLAGS = (
    *("maps_ids", "mounts", "fuse", "proot_is_slow"),
    *("starts", "own_processes", "debootstraps", "bootstraps", "fakeroot"),
)
_KERNEL = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
)
"""Who may make user namespaces can change while a machine runs: user_namespaces(7), and patches of Debian, Ubuntu."""
_RANGES = ("/etc/subuid", "/etc/subgid")
_PRIVILEGES = re.compile(r"^(?:CapEff|CapBnd|NoNewPrivs|Seccomp):.*$", re.MULTILINE)
"""Of proc_pid_status(5): a job step or a container may allow less than a login does."""


def look_or_recall(engine: Engine, environment: Mapping[str, str], cache: Path) -> BuildMachine:
    """Return what is known of this machine, or try it and keep that. A cache that cannot be written is skipped."""
    return _recall(engine, environment, cache) or look_again(engine, environment, cache)


def look_again(engine: Engine, environment: Mapping[str, str], cache: Path) -> BuildMachine:
    """Try what a build may need, and keep what was found."""
    from lumiimg.build.capability_trials import look  # what only recalls pays for none of it

    machine = look(engine, environment)
    path = _path(cache, engine.kind)
    with contextlib.suppress(OSError, LumiimgError):
        if all(trial.is_sure for trial in machine.trials):
            document = {
                "format": _FORMAT,
                "depends_on": _depends_on(engine, environment),
                "proot": machine.proot is not None,
                **{name: getattr(machine, name) for name in _FLAGS},
                "trials": [asdict(trial) for trial in machine.trials],
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(document, indent=1))
        else:
            path.unlink(missing_ok=True)
    return machine


def recall(program: Path, environment: Mapping[str, str], cache: Path) -> BuildMachine | None:
    """Return what is known of this machine with the engine whose program it is; nothing is run.

    A program that is as it was when it said of which kind and version it is would say so again.
    """
    for kind in EngineKind:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            document = msgspec.json.decode(_read(_path(cache, kind)), type=dict[str, Any])
            engine = Engine(program, kind, str(document["depends_on"]["engine"][1]), frozenset())
            if found := _recall(engine, environment, cache):
                return found
    return None


def _recall(engine: Engine, environment: Mapping[str, str], cache: Path) -> BuildMachine | None:
    try:
        document = msgspec.json.decode(_read(_path(cache, engine.kind)), type=dict[str, Any])
        if document["format"] != _FORMAT or document["depends_on"] != _depends_on(engine, environment):
            return None
        flags: dict[str, Any] = msgspec.convert({name: document[name] for name in (*_FLAGS, "proot")}, dict[str, bool])
        trials = msgspec.convert(document["trials"], tuple[CapabilityTrial, ...])
    except (OSError, ValueError, KeyError, RecursionError):
        return None
    path = environment.get("PATH")
    programs: dict[str, Any] = {name.replace("-", "_"): program_of(name, path) for name in PROGRAMS}
    if not flags.pop("proot"):
        programs["proot"] = None
    engine = engine if flags["fakeroot"] else engine.without_fakeroot
    return BuildMachine(engine=engine, trials=trials, **flags, **programs)


def _read(path: Path) -> str:
    """Return a file of this user. Raises OSError, also for what is another's, no file, or too large to be ours."""
    with open_regular(path, follow=False) as file:
        seen = os.fstat(file.fileno())
        if seen.st_uid != os.geteuid() or seen.st_size > _LIMIT_BYTES:
            raise OSError
        return file.read(_LIMIT_BYTES).decode("utf-8")


def _path(cache: Path, kind: EngineKind) -> Path:
    return cache / "hosts" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', socket.gethostname())[:100]}.{kind}.json"


def _depends_on(engine: Engine, environment: Mapping[str, str]) -> dict[str, Any]:
    path = environment.get("PATH")
    programs = {"debootstrap": debootstrap_at(path)}
    programs |= {name: which(name, path) for name in (*PROGRAMS, "newuidmap", "newgidmap", "fakeroot")}
    return {
        "kernel": [os.uname().release, *map(_text, _KERNEL)],
        "user": [os.geteuid(), _link("/proc/self/ns/user"), *_PRIVILEGES.findall(_text("/proc/self/status"))],
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "temporary": environment.get("TMPDIR"),
        "engine": [engine.kind.value, engine.version, _stamp(str(engine.path))],
        "files": [_stamp(name) for name in _RANGES],
        "programs": {name: _stamp(program) for name, program in programs.items()},
    }


def _text(path: str) -> str:
    try:
        return read_beginning(path, _LIMIT_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _stamp(path: str | None) -> list[str | int] | None:
    """Return path, time of change in ns and size of a file."""
    if path is None:
        return None
    try:
        seen = os.stat(path)  # noqa: PTH116 - of what shutil.which has found, a link or not
    except OSError:
        return [path]
    return [path, seen.st_mtime_ns, seen.st_size]
