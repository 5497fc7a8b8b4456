"""Small roots in which others lack permission for some files and folders, and what another user really gets there."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lumiimg.elf import LoadResult, Process
from lumiimg.image import open_image
from tests.shared.elf_builder import LOADER, gcc, loader_cache, read_trace, settings_here, so

IS_ROOT = os.geteuid() == 0
_NOBODY = 65534
_NEW_USER = 0x10000000
_DENIED = 126
_ENDS = 'void start(void) { __asm__ volatile("syscall" : : "a"(60), "D"(0)); }'
_FOLDERS = ("/opt/a", "/opt/b", "/opt/c", "/opt/d", "/usr/lib", "/lib64", "/opt/real")
_NAMES = ("liba.so", "libb.so", "libpre.so")


@dataclass(frozen=True)
class Case:
    """A root, a program in it, the environment of its process, and the modes of what is closed."""

    root: Path
    program: str
    environment: dict[str, str]
    modes: dict[str, int]


def strangers_mode(mode: int) -> int:
    """Return the mode that gives this user only the rights of others, if it cannot become another user."""
    return mode if IS_ROOT else (mode & 0o7) * 0o111


class ClosedRoots:
    """A folder in which roots are made, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._parts = folder / "parts"
        self._folder = folder / "roots"
        folder.chmod(0o755)
        self._folder.mkdir()
        b = so(self._parts / "libb.so")
        a = so(self._parts / "liba.so", b)
        so(self._parts / "libpre.so")
        absolute = so(self._parts / "absolute/liba.so", b, soname="/opt/a/liba.so")
        ways: dict[str, tuple[str, ...]] = {
            "plain": (),
            "runpath": ("-rpath", "/opt/a:/opt/b"),
            "rpath": ("--disable-new-dtags", "-rpath", "/opt/b/../a:/opt/a:/nowhere"),
            "origin": ("-rpath", "$ORIGIN/../opt/b:$ORIGIN"),
        }
        for name, words in ways.items():
            gcc(self._parts / name, "-pie", "-Wl,-e,start", *(f"-Wl,{word}" for word in words), a, b, source=_ENDS)
        gcc(self._parts / "slash", "-pie", "-Wl,-e,start", absolute, source=_ENDS)
        self._programs = (*ways, "slash")

    def make(self, seed: int) -> Case:
        """Write a root, replacing the previous one."""
        shutil.rmtree(self._folder)
        root, dice = self._folder / f"r{seed}", random.Random(seed)  # noqa: S311
        for folder in ("/etc", "/app", *_FOLDERS):
            (root / folder[1:]).mkdir(parents=True)
        shutil.copy(LOADER, root / "lib64")
        program = dice.choice(self._programs)
        shutil.copy(self._parts / program, root / "app" / program)
        for name in _NAMES:
            for folder in _FOLDERS:
                place = root / folder[1:] / name
                match dice.choice(("file", "file", "link", "relative", "none", "none")):
                    case "file":
                        shutil.copy(self._parts / name, place)
                    case "link" if folder != "/opt/real":
                        place.symlink_to(f"/opt/real/{name}")
                    case "relative" if folder != "/opt/real":
                        place.symlink_to(f"{'../' * folder.count('/')}opt/c/../real/{name}")
        if dice.random() < 0.5:
            where = [(name, f"{dice.choice(_FOLDERS)}/{name}", 0) for name in sorted(_NAMES, reverse=True)]
            (root / "etc/ld.so.cache").write_bytes(loader_cache(where))
        if dice.random() < 0.3:
            (root / "etc/ld.so.preload").write_text(dice.choice(("libpre.so\n", "/opt/a/libpre.so libb.so\n")))
        environment = {}
        if dice.random() < 0.5:
            environment["LD_LIBRARY_PATH"] = ":".join(dice.sample((*_FOLDERS, "/app/.", "", "/none"), 3))
        if dice.random() < 0.3:
            environment["LD_PRELOAD"] = dice.choice(("libpre.so", "/opt/real/libpre.so", "libpre.so:libb.so"))
        return Case(root, f"/app/{program}", environment, self._close(root, dice))

    def _close(self, root: Path, dice: random.Random) -> dict[str, int]:
        """Take permissions from some files and folders; return the modes, deepest first."""
        modes = {}
        share = dice.choice((0.05, 0.15, 0.3))
        for place in sorted(root.rglob("*"), reverse=True):
            is_first = place.parent == root / "app" or place.name in {"app", "lib64", "opt", Path(LOADER).name}
            if place.is_symlink() or dice.random() > share * (0.3 if is_first else 1):
                continue
            to_run = (0o711, 0o611) if IS_ROOT else ()  # without root, this user could not read them either
            mode = dice.choice(
                (0o700, 0o711, 0o744, 0o750) if place.is_dir() else (0o600, 0o640, 0o744, 0o700, *to_run)
            )
            modes["/" + str(place.relative_to(root))] = mode
            place.chmod(strangers_mode(mode))
        return modes

    def open_again(self, case: Case) -> None:
        """Restore this user's permissions, so that the root can be removed."""
        for path in reversed(case.modes):
            (case.root / path[1:]).chmod(0o755)


def _become_a_stranger(root: Path) -> None:
    if IS_ROOT:
        os.chroot(root)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    else:
        user, group = os.geteuid(), os.getegid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_USER):
            raise OSError(ctypes.get_errno(), "no user namespaces here")
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{file}").write_text(text)
        os.chroot(root)
        # exec drops the capabilities of a new namespace, but looks up the program before that: capset(2)
        version_3, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if libc.capset(version_3, none):
            raise OSError(ctypes.get_errno(), "capset")
    os.chdir("/")


def run_as_stranger(case: Case, **variables: str) -> tuple[int, str, str]:
    """Start the program as a user who owns nothing in the root; return 126, as a shell does, if it cannot start."""
    try:
        done = subprocess.run(
            [case.program],
            capture_output=True,
            check=False,
            env={**case.environment, **variables, "LD_ORIGIN_PATH": "/app"},  # without /proc, ld.so has no other way
            preexec_fn=lambda: _become_a_stranger(case.root),
        )
    except PermissionError:
        return _DENIED, "", ""
    return done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr)


def model(case: Case) -> LoadResult:
    """Return what the loader model predicts for the same start."""
    with open_image(case.root) as image:
        settings = settings_here(case.environment, Path("/"))
        return Process(image.root.for_users(), settings).start(case.program, exec_start=True)


def difference(case: Case) -> str | None:
    """Return how the model and the real process differ; None if they agree."""
    outcome = model(case)
    code, _, err = run_as_stranger(case)
    if code == _DENIED:
        is_reported = any(error.endswith("cannot execute: Permission denied") for error in outcome.errors)
        return None if is_reported else f"cannot be started, and the model says {outcome.errors}"
    if (code == 0) != outcome.ok:
        return f"exit {code}: {err}, and the model says {outcome.errors}"
    words = [line.partition(": error while loading shared libraries: ")[2] for line in err.splitlines()]
    fatal = next(filter(None, words), None)
    if fatal is not None and fatal.endswith("object file"):  # nothing was tried that would have set errno
        fatal = f"{fatal}: {os.strerror(errno.ENOENT)}"
    if fatal != next(iter(outcome.errors), None):
        return f"{fatal!r}, and the model says {outcome.errors}"
    preloads = {line for line in err.splitlines() if line.startswith("ERROR: ld.so: ")}
    modelled = {line for line in outcome.warnings if line.startswith("ERROR: ld.so: ")}
    if preloads != modelled:
        return f"{preloads}, and the model says {modelled}"
    _, out, err = run_as_stranger(case, LD_TRACE_LOADED_OBJECTS="1")
    trace = read_trace(case.program, out, err)
    listed = tuple((each.path if "/ld-linux" in each.path else each.name, each.path) for each in outcome.objects[1:])
    missing = tuple(each.name for each in outcome.missing)
    if not trace.is_fatal and (listed, missing) != (trace.found, trace.missing):
        return f"{trace.found}, {trace.missing}, and the model has {listed}, {missing}"
    return None
