"""One layer while it is built: its folder, and the ways to run something for it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import lumiimg
from lumiimg.build.compile_cache import kept_files
from lumiimg.build.safe_fs import new_file, remove, take_folder
from lumiimg.definition.writer import CLEAN
from lumiimg.engine import engine as engines
from lumiimg.engine.failures import explain, telling_line
from lumiimg.engine.process import Completed, run
from lumiimg.errors import FailedError, LumiimgError, one_line
from lumiimg.files import EPOCH, open_regular
from lumiimg.secret import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumiimg.build.capabilities import BuildMachine
    from lumiimg.definition.definition import Definition
    from lumiimg.image import RootFileSystem

SCRIPT = ".post.script"
"""Where engines put a definition's script while they run it."""
HELD = ".lumiimg.kept"
INSIDE = (sys.executable, "-P", "-m", "lumiimg.build.userns_helper")
"""A program of ours (userns_helper.py); with -P nothing of the current folder is imported."""
_FULL_BYTES = 16 * 1024 * 1024
_DISK_FULL = "No space left on device"


@dataclass
class LayerBuild:
    """What a strategy needs to build one layer."""

    machine: BuildMachine
    environment: Mapping[str, str]
    definition: Definition
    folder: Path
    """Its own; the definition and its files are in it. What it holds is removed when the layer is done."""
    log: IO[bytes]
    tell: Callable[[str], None]
    disk_was_full: bool = False

    @property
    def kept(self) -> Path:
        """What the layer's script keeps between builds (`KEPT`): from an earlier one, then from this."""
        return self.folder / "kept"

    @property
    def scratch(self) -> Path:
        """Where an engine may unpack."""
        folder = self.folder / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    def on_line(self, text: str) -> None:
        """Pass a line on, and see whether there is room left: once something has failed, there is again.

        Programs in a build say many things of a full disk (debootstrap: "Couldn't download packages").
        """
        self.disk_was_full = self.disk_was_full or shutil.disk_usage(self.folder).free < _FULL_BYTES
        self.tell(hidden(text))

    def say(self, text: str) -> None:
        """Pass on what lumiimg itself does, and write it into the log."""
        self.log.write(f"{text}\n".encode())
        self.tell(text)

    def build(self, target: Path) -> None:
        """Have the engine build the definition itself, as a folder. Raises FailedError if a script fails.

        It gets the user's logins for registries with TLS alone.
        """
        with_tls = self.definition.sections.header.agent in {"docker", "oras"} and not self.definition.plain_http
        self.check(
            engines.build(
                self.machine.engine,
                self.folder / f"{self.definition.name}.def",
                target,
                environment=self.environment if with_tls else engines.without_logins(self.environment, self.scratch),
                scratch=self.scratch,
                plain_http=self.definition.plain_http,
                log=self.log,
                on_line=self.on_line,
            )
        )

    def run(
        self,
        root: Path,
        argv: Sequence[str],
        *,
        writable: bool = False,
        within: Callable[[list[str | Path]], list[str | Path]] | None = None,
    ) -> None:
        """Run a script in an image, as `engines.run_script` does. Raises FailedError if it fails.

        It sees the hosts of this machine and may add to them: in an engine's own build, that is not kept either.
        `within`: what the command is run by, as root of a namespace; there the kernel makes the container.
        """
        hosts = self.scratch / "hosts"
        with suppress(OSError):  # not on every machine
            shutil.copyfile("/etc/hosts", hosts)
        self.check(
            engines.run_script(
                self.machine.engine if within is None else engines.of_kernel(),
                root,
                argv,
                environment=self.environment,
                scratch=self.scratch,
                writable=writable,
                own_processes=self.machine.own_processes,
                hosts=hosts if hosts.exists() else None,
                within=within,
                log=self.log,
                on_line=self.on_line,
            )
        )

    def command(
        self, argv: Sequence[str | Path], *, told: bool = False, variables: Mapping[str, str] | None = None
    ) -> Completed:
        """Run a program of this machine, which makes later times than the image's that; `told`: lines are passed on."""
        environment = {**self.environment, **(variables or {})} | {
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "PYTHONPATH": os.pathsep.join([str(Path(lumiimg.__file__).parents[1])]),
        }
        return run(argv, env=environment, log=self.log, on_line=self.on_line if told else None)

    def as_root(self, argv: Sequence[str | Path]) -> Completed:
        """Run a program of this machine as root of a user namespace, where there is one."""
        return self.command(self.machine.as_root(argv))

    def own_root(self, argv: Sequence[str | Path], variables: Mapping[str, str], *, silent_s: float) -> None:
        """Run a program as root with mounts of its own and without the user's logins, and pass its lines on.

        Raises FailedError where it fails, or prints nothing for `silent_s`.
        """
        words = self.machine.as_root(argv, mount=True)
        environment = {**engines.without_logins(self.environment, self.scratch), **variables}
        heard_s = time.monotonic()

        def on_line(text: str) -> None:
            nonlocal heard_s
            heard_s = time.monotonic()
            self.on_line(text)

        is_silent = lambda: time.monotonic() - heard_s > silent_s  # noqa: E731
        done = run(words, env=environment, log=self.log, on_line=on_line, give_up=is_silent)
        if done.timed_out:
            raise FailedError(
                f"layer {', '.join(self.definition.layers)}: {argv[0]} printed nothing for {silent_s / 60:g} minutes, "
                "and was ended",
                hint=f"does the mirror answer? --mirror debian=URL names another; the whole log: {self.log.name}",
            )
        self.check(done)

    def inside(self, command: str, *paths: Path) -> None:
        """Have userns_helper.py do something to files of a layer. Raises FailedError."""
        completed = self.as_root([*INSIDE, command, *paths])
        if not completed.ok:
            raise FailedError(f"its files cannot be read: {completed.last_line[:300]}", where=self.definition.name)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Have what the system refuses while the layer is built told as its failure. Raises FailedError."""
        try:
            yield
        except OSError as error:
            what = error.strerror or str(error)
            known = explain(what)
            where = f"{error.filename}: " if error.filename else ""
            raise FailedError(
                f"layer {', '.join(self.definition.layers)}: {where}{what}", hint=known.remedy if known else None
            ) from error

    def require_own(self, root: Path, hint: str) -> None:
        """Raise FailedError where a root folder is that of an id which is the user's only as root of a namespace."""
        seen = root.lstat()
        if seen.st_uid != os.geteuid() and not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise FailedError(
                f"layer {', '.join(self.definition.layers)}: the folder / of the image belongs to another id than "
                "root, and cannot be written here",
                hint=hint,
            )

    @contextmanager
    def placed(self, upper: Path, below: RootFileSystem) -> Iterator[list[str]]:
        """Put the script into `upper`, with what it copies and what an earlier run kept; yield how it is called.

        Afterwards what it keeps is in the folder `kept` of the step, also where it failed. Raises FailedError.
        """
        staged = [(file.target, self.folder / file.path) for file in self.definition.files]
        staged += [(f"{self.definition.kept}/{name}", path) for name, path in kept_files(self.kept)]
        for target, source in staged:
            self._place(source, upper, below, target)
        # by the shell, and whatever comes of it: a compile of hours is not lost because of what comes after it
        hold = f"[ ! -d {self.definition.kept} ] || mv {self.definition.kept} /{HELD}"
        post = self.definition.sections.post.removesuffix(CLEAN)
        # what an image has under the name is none of the layer's; the shell removes it where nothing leads out of it
        text = f"rm -rf /{HELD}; trap 'code=$?; {hold}; {CLEAN.strip()}; exit $code' EXIT\n{post}"
        # the name is an engine's own: whatever an image has there, engines replace it, too
        with new_file(upper, f"/{SCRIPT}", 0o644) as file:
            file.write(text.encode())
        try:
            yield ["/bin/bash", f"/{SCRIPT}"]
        except BaseException:
            with suppress(LumiimgError, OSError):  # why it failed is what counts
                self._take_back(upper)
            raise
        self._take_back(upper)

    def _take_back(self, upper: Path) -> None:
        """Take the script, and what it keeps, out of the root folder again. Raises FailedError, OSError."""
        self.require_own(upper, "the script changed its owner: / must belong to root")
        shutil.rmtree(self.kept, ignore_errors=True)
        take_folder(upper, HELD, self.kept)
        remove(upper, f"/{SCRIPT}")

    def _place(self, source: Path, upper: Path, below: RootFileSystem, path: str) -> None:
        """Copy a file to where the image has that path; folders above it that are not there yet are made.

        Raises FailedError if it cannot be.
        """
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        there = next(parent for parent in parents if below.exists(parent))
        if not below.is_dir(there):
            raise FailedError("is not a folder in the image", where=there)
        # A link of the image leads to a place in the image, never to one of this machine. What then still is one leads
        # nowhere there, and is not replaced: it is the image's. A file or link of the last name is: a layer below left
        # it, where lumiimg puts its own.
        target = below.resolve(there) + path.removeprefix(there.rstrip("/"))

        def permissions(folder: str) -> int:
            return below.stat(folder).permissions if below.is_dir(folder) else 0o755

        try:
            with open_regular(source) as content, new_file(upper, target, 0o644, permissions=permissions) as file:
                shutil.copyfileobj(content, file)
        except OSError as error:
            raise FailedError(f"cannot be made: {error.strerror or error}", where=path) from error

    def check(self, completed: Completed) -> None:
        """Raise FailedError, with what is known of such a failure, for a program that failed."""
        if completed.ok:
            return
        known = explain(_DISK_FULL if self.disk_was_full else completed.output)
        said = telling_line(completed.output) or f"exit status {completed.exit_code}"
        what = known.meaning if known else f"the build stopped at: {one_line(said)[:300]}"
        log = f"the whole log: {self.log.name}"
        raise FailedError(
            f"layer {', '.join(self.definition.layers)}: {what}", hint=f"{known.remedy}; {log}" if known else log
        )
