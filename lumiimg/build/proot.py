"""Find proot, which makes a user look like root without ids from the kernel: on PATH, in a site module, or Debian's.

Debian's is fetched by its digest, with the one library that it needs, and stored in the cache.
"""

from __future__ import annotations

import io
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.catalog.sites import find_site, target_site
from lumiimg.core.errors import FailedError, LumiimgError, MissingHereError, one_line
from lumiimg.core.files import make_folder, read_beginning, temporary_folder
from lumiimg.core.text import shell_quote
from lumiimg.core.toml import package_toml
from lumiimg.engine.process import run, which
from lumiimg.engine.workspace import written_by_rename
from lumiimg.fetch.mirrors import apt_mirror
from lumiimg.image.oci.tar import read_members

if TYPE_CHECKING:
    from lumiimg.fetch.store import Sources

SLOWLY = {"PROOT_NO_SECCOMP": "1"}
"""Without its system-call filter, proot stops programs at every call. Source: proot(1). On some kernels the filter lets
all calls pass unseen (seen with 5.4.0 on Linux 6.18), so that a script would get this machine's files."""
_TRIAL_S, _MODULES_S = 20.0, 60.0
_BEHIND = "/lumiimg-trial"
# ls, stat and install now call statx(2), which proot before 5.2.0 lets pass unseen (its CHANGELOG.rst)
_SEES = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
known = not hasattr(libc, "statx") or libc.statx(-100, b"{_BEHIND}", 0, 0x7FF, ctypes.create_string_buffer(256)) == 0
if not known or not os.path.exists("{_BEHIND}") or os.stat("{_BEHIND}").st_uid != 0:
    sys.exit("it lets programs see this machine's files: version 5.2.0 or newer is needed")
print("seen by root")
"""
_FOUND = re.compile(r"^proot=(/.+)$", re.MULTILINE)
_AR = re.compile(rb"data\.tar\.xz/? *[0-9]+ *0 *0 *[0-9]+ *([0-9]+) *`\n")
"""The header of a member of ar(5): name, time, owner, group, mode, size."""
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Proot:
    """The proot of this machine."""

    program: Path | None
    """Path of the program; None if no candidate works."""
    said: str
    """Its origin, or why each candidate cannot be used."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it needs to show programs the right files."""


def find_proot(environment: Mapping[str, str], sources: Sources | None) -> Proot:
    """Return the first proot that passes its trial. Without `sources`, only PATH is searched."""
    faults = []
    for found in (_on_path, _module_proot, _debian_proot)[: 1 if sources is None else None]:
        try:
            return found(environment, sources)
        except LumiimgError as error:
            faults.append(f"{error}")
    return Proot(None, "; ".join(faults))


def built_elsewhere(request: str, environment: Mapping[str, str]) -> str:
    """Return the commands that build for this machine on another one, and copy the image here."""
    site = target_site(environment, platform.node()).name
    to = "HOST" if site == "generic" else Path(site).stem
    return f"lumiimg build {request} --site {shell_quote(site)} -o image.sif && rsync -P image.sif {shell_quote(to)}:"


def _verified_proot(program: Path, origin: str, environment: Mapping[str, str], variables: Mapping[str, str]) -> Proot:
    """Return a proot that was seen to show programs the right files. Raises MissingHereError if it does not."""
    words: list[str | Path] = [program, "--kill-on-exit", "-0", "-b", f"{temporary_folder()}:{_BEHIND}"]
    words += [sys.executable, "-I", "-S", "-c", _SEES]
    for more in ({}, SLOWLY):
        done = run(words, env={**environment, **variables, **more}, timeout_s=_TRIAL_S)
        if done.ok and "seen by root" in done.output:
            slowly = ", slowly (PROOT_NO_SECCOMP)" if more else ""
            return Proot(program, f"{program}{origin}{slowly}", {**variables, **more})
    raise MissingHereError(f"{program}{origin}: {one_line(done.last_line)[:200] or 'it cannot run a program'}")


def _on_path(environment: Mapping[str, str], _: Sources | None) -> Proot:
    if (found := which("proot", environment.get("PATH"))) is None:
        raise MissingHereError("not on PATH")
    return _verified_proot(Path(found), "", environment, {})


def _module_proot(environment: Mapping[str, str], _: Sources | None) -> Proot:
    """Return the proot of a site's modules, loaded in a login shell."""
    bash = which("bash", environment.get("PATH"))
    if bash is None or "MODULEPATH" not in environment:
        raise MissingHereError("no modules here")
    site = find_site(target_site(environment, platform.node()).name, environment)
    if not site.proot_modules:
        raise MissingHereError(f"no known module of {site.name} provides it")
    load = " ".join(("module", "load", *site.proot_modules))
    script = f"{load} >/dev/null 2>&1 </dev/null; printf '\\nproot=%s\\n' \"$(type -P proot)\""
    done = run([bash, "-lc", script], env=environment, cwd=Path("/"), timeout_s=_MODULES_S)
    if (found := _FOUND.search(done.output)) is None or not os.access(found[1], os.R_OK | os.X_OK):
        raise MissingHereError(f"`{load}` provides no proot that runs")
    return _verified_proot(Path(found[1]), f" of `{load}`", environment, {})


def _debian_proot(environment: Mapping[str, str], sources: Sources | None) -> Proot:
    """Return Debian's proot, from the configured mirror, else from that of this machine's apt."""
    facts = package_toml("lumiimg.build", "proot.toml")
    if sources is None or platform.machine() != facts["processor"]:
        raise MissingHereError(f"Debian's is not for {platform.machine()}")
    if (mirror := sources.mirrors.named("debian") or apt_mirror("debian")) is None:
        raise MissingHereError("no Debian mirror is configured (--mirror debian=URL, or [mirrors] in config.toml)")
    folder = make_folder(sources.cache, f"proot/{facts['date']}")
    for one in facts["package"]:
        package = sources.store.get(f"{mirror.rstrip('/')}/{one['path']}", one["sha256"], sources.on_line)
        with written_by_rename(folder / one["file"]) as partial:
            partial.write_bytes(_member(package, one["member"]))
            partial.chmod(0o755)
    return _verified_proot(folder / "proot", " of Debian", environment, {"LD_LIBRARY_PATH": f"{folder}"})


def _member(package: Path, name: str) -> bytes:
    """Return a file of a package whose digest was verified. Raises FailedError. Source: deb(5)."""
    try:
        import lzma
    except ImportError as error:  # it depends on how Python was built
        raise FailedError("this Python has no lzma, which Debian packages need") from error
    data = read_beginning(package, _MAX_BYTES)
    if (header := _AR.search(data)) is not None:
        with lzma.open(io.BytesIO(data[header.end() : header.end() + int(header[1])])) as files:
            for member in read_members(files, _MAX_BYTES, f"{package}"):
                if member.name == name:
                    return files.read(member.stat.size_bytes)
    raise FailedError(f"has no {name}", where=f"{package}")
