"""One commit of a git repository as a tar of only its files, with the same bytes wherever it is made.

git verifies what it fetches by the commit id; a lock also records the sha256 of the tar. Nothing is checked out,
attributes of the repository are ignored, and none of its code runs.
"""

from __future__ import annotations

import os
import posixpath
import re
import signal
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.core.errors import FailedError, LumiimgError, MissingHereError, one_line
from lumiimg.core.files import EPOCH, open_regular
from lumiimg.core.redact import redact
from lumiimg.engine.process import Completed, run, which
from lumiimg.engine.workspace import scratch_folder
from lumiimg.fetch.http import require_tls_or_digest
from lumiimg.image import FileKind
from lumiimg.image.oci.tar import read_members

if TYPE_CHECKING:
    from lumiimg.fetch.mirrors import Mirrors
    from lumiimg.image.oci.tar import Member

SCHEME = "git+https://"
_ADDRESS = re.compile(
    r"git\+(?P<url>https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~/+-]{1,400})@(?P<ref>[A-Za-z0-9._/+-]{1,200})"
    r"(?:#subdirectory=(?P<subdirectory>[A-Za-z0-9._/+-]{1,200}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FETCH_S, _ASK_S = 900.0, 30.0
_MAX_BYTES = 1 << 30
"""Size limit of a file that git writes, and so of all files of a commit together."""
_MAX_MEMBERS = 200_000
# The user's git settings for servers, certificates and logins (gitconfig) apply; variables that locate a repository, or
# make git run other programs, are removed.
_PASSED_ON = ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_CONFIG_GLOBAL")
_SETTINGS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false"),
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60", "tar.umask=0022"),
)
_NO_ATTRIBUTES = "* -export-subst -export-ignore -text -eol -ident -filter -working-tree-encoding\n"
"""Content of info/attributes, which overrides the attributes of the repository (gitattributes(5))."""


@dataclass(frozen=True, slots=True)
class GitAddress:
    """`git+https://HOST/REPOSITORY@COMMIT#subdirectory=FOLDER`, as pip writes it."""

    url: str
    """Address of the repository: `https://…`."""
    ref: str
    """The part after the @: a commit, or a name that stands for one today."""
    subdirectory: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether it names a full commit id."""
        return _COMMIT.fullmatch(self.ref) is not None

    def __str__(self) -> str:
        """Return the address as pip writes it."""
        inside = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"git+{self.url}{f'@{self.ref}' if self.ref else ''}{inside}"


def git_address(text: str) -> GitAddress | None:
    """Return the address in a text, even if it names no commit; None for any other text."""
    for whole in (text, text.replace("#", "@HEAD#", 1) if "#" in text else f"{text}@HEAD"):
        if (found := _ADDRESS.fullmatch(whole)) is not None:
            inside = posixpath.normpath(found["subdirectory"]) if found["subdirectory"] else ""
            is_inside = not inside.startswith(("/", "..")) and ".." not in found["url"].split("/")
            ref = found["ref"].lower() if _COMMIT.fullmatch(found["ref"].lower()) else found["ref"]
            return GitAddress(found["url"], ref, inside) if is_inside else None
    return None


def commit_at(address: GitAddress, mirrors: Mirrors) -> str | None:
    """Return the commit that a branch or tag stands for today, as the server says; None if it names none."""
    names = [f"refs/heads/{address.ref}", f"refs/tags/{address.ref}", f"refs/tags/{address.ref}^{{}}"]
    names = ["HEAD"] if address.ref == "HEAD" else names
    try:
        url = _url(address, mirrors)
        done = _git(("ls-remote", "--", url, *names), Path("/"), url, _ASK_S)
    except LumiimgError:
        return None
    found = dict(line.split("\t", 1)[::-1] for line in done.output.splitlines() if "\t" in line)
    commits = [found[name] for name in names if _COMMIT.fullmatch(found.get(name, ""))]
    return commits[-1] if done.ok and commits else None


def write_commit(address: GitAddress, target: Path, mirrors: Mirrors, *, offline: bool) -> None:
    """Write the files of a commit as a tar with one top folder.

    Raises MissingHereError without git, or if --offline forbids the network; FailedError for a commit that cannot be
    fetched, has submodules or links that lead outside, or is larger than 1 GiB.
    """
    if offline:
        what, hint = "is needed from the network, which --offline forbids", "fetch it once without --offline"
        raise MissingHereError(what, where=f"{address}", hint=hint)
    url = _url(address, mirrors)
    with scratch_folder(target.parent) as folder:
        repository, packed = folder / "repository", folder / "packed.tar"
        at = f"--git-dir={repository}"

        def git(*words: str) -> Completed:
            done = _git((at, *words), folder, url, _FETCH_S)
            if not done.ok:
                raise _failure(done, address)
            return done

        git("init", "--quiet", "--bare", "--template=", f"{repository}")
        (repository / "info").mkdir(exist_ok=True)
        (repository / "info" / "attributes").write_text(_NO_ATTRIBUTES, encoding="ascii")
        git("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, address.ref)
        inside = address.subdirectory or "."
        if any(line.startswith("160000 ") for line in git("ls-tree", "-r", address.ref, inside).output.splitlines()):
            hint = "name their contents as separate requirements, or build it in a layer of your own"
            raise FailedError("has submodules, which are not supported", where=f"{address}", hint=hint)
        git("archive", "--format=tar", f"--output={packed}", address.ref, inside)
        _write_tar(packed, target, address)


def _url(address: GitAddress, mirrors: Mirrors) -> str:
    url = mirrors.rewrite(address.url)
    require_tls_or_digest(url)
    return url


def _git(words: tuple[str, ...], folder: Path, url: str, timeout_s: float) -> Completed:
    """Run git with only the protocol of the address allowed, which a redirect cannot change either."""
    program = which("git", os.environ.get("PATH"))
    if program is None:
        what = "git, which fetches requirements at a commit, is not on PATH"
        raise MissingHereError(what, hint="install it, or load its module; earlier downloads do not need it")
    env = {name: value for name, value in os.environ.items() if name in _PASSED_ON or not name.startswith("GIT_")}
    env |= {"GIT_ALLOW_PROTOCOL": url.partition(":")[0], "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true"}
    env |= {"LC_ALL": "C", "SSH_ASKPASS": "true"}
    if bundle := env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE"):
        env.setdefault("GIT_SSL_CAPATH" if Path(bundle).is_dir() else "GIT_SSL_CAINFO", bundle)
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    limited = ["/bin/sh", "-c", f'ulimit -f {_MAX_BYTES // 512}; exec "$@"', "git", program]
    return run([*limited, *settings, *words], env=env, cwd=folder, timeout_s=timeout_s)


def _failure(done: Completed, address: GitAddress) -> FailedError:
    if done.timed_out:
        return FailedError(f"was not fetched within {_FETCH_S:.0f} s", where=f"{address}", hint="try again")
    if done.exit_code == 128 + signal.SIGXFSZ or re.search("signal 25|File too large", done.output):
        return FailedError(f"is larger than {_MAX_BYTES >> 20} MiB", where=f"{address}")
    error_line = next((line for line in done.output.splitlines() if line.startswith("fatal: ")), done.last_line)
    return FailedError(
        f"git: {redact(one_line(error_line))[:300]}", where=f"{address}", hint="check that the commit exists"
    )


def _write_tar(packed: Path, target: Path, address: GitAddress) -> None:
    """Write the files below the subdirectory to a new tar, without owners and with the fixed time stamp of images."""
    top, where, above = f"{posixpath.basename(address.url)}-{address.ref[:12]}", f"{address}", address.subdirectory
    count = 0
    with open_regular(packed) as stream, tarfile.TarFile(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for member in read_members(stream, _MAX_BYTES, where):
            path = posixpath.relpath(member.name, above or ".")
            if member.kind is FileKind.DIRECTORY or path.startswith("../"):
                continue
            if (count := count + 1) > _MAX_MEMBERS:
                raise FailedError(f"has more than {_MAX_MEMBERS} files", where=where)
            info = tarfile.TarInfo(f"{top}/{path}")
            info.mode, info.mtime = 0o755 if member.stat.permissions & 0o100 else 0o644, EPOCH
            if member.kind is FileKind.FILE:
                info.size = member.stat.size_bytes
                archive.addfile(info, stream)
            else:
                info.type, info.linkname = tarfile.SYMTYPE, _followed(member, path, where)
                archive.addfile(info)
    if not count:
        raise FailedError("contains no files", where=where)


def _followed(member: Member, path: str, where: str) -> str:
    """Return the target of a symlink. Raises FailedError for a target outside, or a member that is not a symlink."""
    leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.target))
    if member.kind is not FileKind.SYMLINK or leads.startswith(("/", "..")):
        raise FailedError(f"has a link that points outside: {one_line(path)[:200]}", where=where)
    return member.target
