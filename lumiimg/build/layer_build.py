"""One layer during its build: its folder, ways to run programs for it, and the check for GPU code."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import lumiimg
from lumiimg.core.errors import FailedError, one_line
from lumiimg.core.files import EPOCH, temporary_folder
from lumiimg.core.redact import redact
from lumiimg.definition.definition import BUILD_FOLDER, SCRIPT_MARK
from lumiimg.definition.writer import CLEAN
from lumiimg.engine import engine as engines
from lumiimg.engine.binds import BindSpec
from lumiimg.engine.engine import PACKED
from lumiimg.engine.failures import explain, last_words
from lumiimg.engine.process import Completed, run
from lumiimg.engine.workspace import MOVE_CACHE, MOVE_OUTPUT, full_folder, named_folder, no_room, scratch_folder
from lumiimg.gpu import GpuCodeError, GpuFit, node_gpu
from lumiimg.image import open_image, require_room
from lumiimg.inventory.components import Inventory
from lumiimg.inventory.gpu_fit import component_fits

if TYPE_CHECKING:
    from lumiimg.build.build_host import BuildHost
    from lumiimg.definition.definition import Definition

HELPER = (sys.executable, "-P", "-m", "lumiimg.build.changes")
"""Our own program (changes.py); with -P nothing is imported from the current folder."""
SCRIPT_ENVIRONMENT = "/.singularity.d/env/91-environment.sh"
"""File in which a script adds to the environment of the image. Source: apptainer.org/docs, definition files, %post."""
_SAME_PYC = "export PYTHONHASHSEED=0"
"""Python before 3.11 compiles sets of constants in the order of their hashes, which are random: bpo-37596."""
_STOPPED = """\
trap '_code=$? _line=$LINENO _at=$LINENO; [ "$BASH_SUBSHELL" != 1 ] || {
[ "${BASH_SOURCE[0]}" = "$0" ] || _line=${BASH_LINENO[${#BASH_LINENO[@]}-2]}
echo "lumiimg: stopped $_code $_line $_at ${BASH_SOURCE[0]##*/} ${BASH_COMMAND%%[[:cntrl:]]*}" >&2; }' ERR
set -E"""
"""Prints the command that ended a layer's script, which runs in its own subshell (`definition/writer.py`): many print
nothing, such as `test -e`. Failures in deeper subshells are ignored. Source: bash(1), ERR, LINENO, BASH_LINENO."""
_STOP = re.compile(
    r"(?m)^lumiimg: stopped (?P<code>\d{1,3}) (?P<line>\d{1,9}) (?P<at>\d{1,9}) (?P<file>\S+) (?P<command>.*)\n?"
)
_SCRIPT, _RUNNING = ".script", ".running"
_FULL_BYTES = 16 * 1024 * 1024
_DISK_FULL = "No space left on device"
_NO_SPACE = "no-space"
"""The id in failures.toml for a full disk or an exhausted quota."""
_DISK_FULL_MESSAGE = re.compile(rf"{_DISK_FULL}|Disk quota exceeded", re.IGNORECASE)
_IN_TMPDIR = re.compile(r"(?<![\w/])(?:/var)?/tmp/")
"""Matches a file of a script that is in TMPDIR (`binds`)."""
_BASH_SAYS = re.compile(rf"\S*/{re.escape(_SCRIPT)}: line (\d{{1,9}})(?=: )")
_PACKED_FULL = re.compile(rf"out of space on output|{_DISK_FULL}")
"""Messages of mksquashfs about a full disk. Source: squashfs-tools mksquashfs.c, write_bytes."""
_STICKY = 0o1777
_SHOWN = 4
_COMMAND_CHARS = 120
_OF_COMPILERS = "PYTORCH_ROCM_ARCH, GPU_TARGETS"


@dataclass
class LayerBuild:
    """Everything that a strategy needs to build one layer."""

    machine: BuildHost
    environment: Mapping[str, str]
    definition: Definition
    folder: Path
    """The layer's own folder, with the files for its script; its content is removed when the layer is done."""
    log: IO[bytes]
    on_notice: Callable[[str], None]
    exports: str = ""
    """Commands that set the variables of the layers below, which are not in the image until it is complete."""
    running: str = ""
    """The script or test that was written last."""
    full: Path | None = None
    """The folder, this one or TMPDIR, that ran out of space while a program ran for the layer."""

    @property
    def name(self) -> str:
        """The layer's name in messages."""
        return f"layer {', '.join(self.definition.layers)}"

    @property
    def work(self) -> Path:
        """The writable folder that the script finds at BUILD_FOLDER."""
        return self.folder / "work"

    @property
    def test_folder(self) -> Path:
        """The folder of the layer's test."""
        return self.folder / "test"

    @property
    def compile_cache(self) -> Path:
        """The folder that is preserved for the layer's script in the next build (`KEPT`)."""
        return self.work / self.definition.layers[0] / "kept"

    @property
    def scratch(self) -> Path:
        """The folder where an engine may unpack."""
        folder = self.folder / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def has_ended(self) -> bool:
        """Whether the script ended, successfully or not: then nothing in its compile cache is partly written."""
        return not os.path.lexists(self.work / _RUNNING)

    def on_line(self, text: str) -> None:
        """Pass a line on, and check the free space: after a failure, some is free again.

        Programs report a full disk in many ways (debootstrap: "Couldn't download packages"). TMPDIR may be small and
        full of other users' files: it is blamed only if a program reports a full disk.
        """
        if self.full is None and shutil.disk_usage(self.folder).free < _FULL_BYTES:
            self.full = self.folder
        elif _DISK_FULL_MESSAGE.search(text):
            self._see_tmpdir(text)
        self.on_notice(redact(text))

    def _see_tmpdir(self, text: str) -> None:
        """Record TMPDIR as full if it is, or if a line about a full disk names a file in it."""
        temporary = temporary_folder()
        if _IN_TMPDIR.search(text.replace(str(self.folder), "_")) or shutil.disk_usage(temporary).free < _FULL_BYTES:
            self.full = temporary

    def say(self, text: str) -> None:
        """Report what lumiimg itself is doing, and write it into the log."""
        self.log.write(f"{text}\n".encode())
        self.on_notice(text)

    def script(self, place: str, *, sourced: Sequence[str] = ()) -> list[str]:
        """Write a program that runs the layer's script, which finds its files at `place`; return the command for it.

        `sourced`: files of the image from which to read variables if no engine does so.
        """
        before, after = (
            [f"[ ! -e {file} ] || . {file}" for file in files] for files in (sourced, [SCRIPT_ENVIRONMENT])
        )
        ended = f"trap 'rm -f {BUILD_FOLDER}/{_RUNNING}' EXIT"
        self.work.mkdir(exist_ok=True)
        (self.work / _RUNNING).touch()
        post = self.definition.sections.post.removesuffix(CLEAN)
        lines = [*before, self.exports, *after, ended, _STOPPED, _SAME_PYC, post]
        return self._program(self.work, "\n".join(lines), place)

    def test(self, place: str) -> list[str]:
        """Write the test of the layer into a new folder; return the command that runs it.

        In the script's folder, the script may have put a link that leads to a file of the user.
        """
        self.test_folder.mkdir()
        return self._program(self.test_folder, f"{_STOPPED}\n{self.definition.sections.test}", place)

    def _program(self, folder: Path, text: str, place: str) -> list[str]:
        self.running = text
        (folder / _SCRIPT).write_text(text, encoding="utf-8")
        return ["/bin/bash", f"{place}/{_SCRIPT}"]

    @contextmanager
    def binds(self, place: str, shown: Path) -> Iterator[list[BindSpec]]:
        """Yield the binds of a script: its files, read-only; its writable folder; its own /tmp.

        `shown`: the folder bound at `place`, `work` or `test_folder`.
        It sees this machine's /etc/hosts and may add to the copy, which is lost, as in an engine's own build.
        """
        found = [BindSpec(f"{shown}", place)]
        layer = self.definition.layers[0]
        staged = sorted((self.folder / "files" / layer).glob("*")) if shown == self.work else ()
        for folder in staged:
            (self.work / layer / folder.name).mkdir(parents=True, exist_ok=True)
            found.append(BindSpec(f"{folder}", f"{place}/{layer}/{folder.name}", read_only=True))
        hosts = self.scratch / "hosts"
        with suppress(OSError):  # missing on some machines
            shutil.copyfile("/etc/hosts", hosts)
            found.append(BindSpec(f"{hosts}", "/etc/hosts"))
        # in TMPDIR, where writing is fast: often memory
        with scratch_folder(temporary_folder()) as private:
            for target in ("/tmp", "/var/tmp"):  # noqa: S108 - of the image
                source = private / target[1:].replace("/", "-")
                source.mkdir()
                source.chmod(_STICKY)
                found.append(BindSpec(f"{source}", target))
            yield found

    def run(
        self,
        root: Path,
        place: str,
        *,
        is_test: bool = False,
        writable: bool = False,
        within: Callable[[list[str | Path]], list[str | Path]] | None = None,
    ) -> None:
        """Run the script or the test of the layer in an image, by `engines.script_words`. Raises FailedError.

        `within`: wraps the command to run it as root of a namespace, where the kernel makes the container.
        """
        engine = self.machine.engine if within is None else engines.kernel_engine()
        own = self.machine.container.has_pid_namespace
        argv, shown = (self.test(place), self.test_folder) if is_test else (self.script(place), self.work)
        with self.binds(place, shown) as binds:
            words = engines.script_words(engine, root, argv, binds=binds, writable=writable, has_pid_namespace=own)
            environment = engines.unpacking_in(self.scratch, engine, self.environment)
            done = run(within(words) if within else words, env=environment, log=self.log, on_line=self.on_line)
            self.check(done)  # before its files in TMPDIR are removed

    def command(
        self,
        argv: Sequence[str | Path],
        variables: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a program of this machine; it gives files the times of an image (`EPOCH`)."""
        environment = {**self.environment, **(variables or {})} | {
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "PYTHONPATH": str(Path(lumiimg.__file__).parents[1]),
        }
        return run(argv, env=environment, log=self.log, on_line=on_line)

    def as_root(self, argv: Sequence[str | Path]) -> Completed:
        """Run a program of this machine as root of a user namespace if possible."""
        return self.command(self.machine.as_root(argv))

    def unpack(self, image: Path, root: Path, *, keeps_own: bool = False) -> None:
        """Unpack the files of an image over a folder (`changes.unpack`), as this user if nothing can be root.

        Compressed layers are decompressed beside it, not in TMPDIR, which is memory on a login node. Raises
        FailedError, also before a disk would become full.
        """
        how = [*(() if self.machine.has_subids else ("as-user",)), *(("but-own",) if keeps_own else ())]
        with scratch_folder(self.folder, "tars-") as tars:
            require_room(image, root, lambda: tars)
            self.run_helper("unpack", root, image, tars, *how)

    def run_helper(self, command: str, *paths: Path | str) -> None:
        """Run a command of changes.py on files of a layer. Raises FailedError."""
        completed = self.as_root([*HELPER, command, *paths])
        if not completed.ok:
            raise FailedError(f"its files cannot be read: {completed.last_line[:300]}", where=self.definition.name)

    def squash(self, folder: Path, target: Path, offset: int = 0) -> None:
        """Write a folder as a squashfs into `target` at `offset` bytes. Raises the errors of `pack`."""
        options = ["-offset", str(offset)] if offset else []
        options += [] if self.machine.has_subids else ["-all-root"]
        # engines mount their own /dev over it, and leave what an image has there out of a SIF
        options += ["-wildcards", "-e", "dev/*"]
        pack(self.machine.mksquashfs, folder, target, *options, within=self.as_root, elsewhere=MOVE_CACHE)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Report system errors during the build of the layer as its failure. Raises FailedError."""
        try:
            yield
        except OSError as error:
            what = error.strerror or str(error)
            if full := full_folder(error, self.folder, temporary_folder()):
                raise no_room(full, f"{self.name}: {what}") from error
            where, known = f"{error.filename}: " if error.filename else "", explain(what)
            raise FailedError(f"{self.name}: {where}{what}", hint=known.remedy if known else None) from error

    def check(self, completed: Completed) -> None:
        """Raise FailedError for a program that failed, with the explanation of a known failure."""
        if completed.ok:
            return
        output = _STOP.sub("", completed.output)
        known = explain(output)
        if known and known.id == _NO_SPACE:
            self._see_tmpdir(last_words(output))
        if self.full is not None:
            raise no_room(self.full, f"{self.name}: the disk or the quota is full; the whole log: {self.log.name}")
        if known and known.id == _NO_SPACE:
            known = replace(known, meaning=f"{known.meaning}, for the cache or for TMPDIR, {temporary_folder()}")
        last_line = one_line(_BASH_SAYS.sub(lambda hit: self._own_line(int(hit[1])), last_words(output)))[:300]
        what = f"the build stopped at: {last_line or f'exit status {completed.exit_code}'}"
        if known:
            what = known.meaning
        elif stops := [*_STOP.finditer(completed.output)]:
            what = self._stop(stops[-1]) + (f"; the last line it printed: {last_line}" if last_line else "")
        log = f"the whole log: {self.log.name}"
        raise FailedError(f"{self.name}: {what}", hint=f"{known.remedy}; {log}" if known else log)

    def _stop(self, stop: re.Match[str]) -> str:
        """Return where a script stopped: `post.sh line 3: test -e /opt/x: exit 1`."""
        line, command = int(stop["line"]), stop["command"]
        where = self._own_line(line)
        if stop["file"] != _SCRIPT:
            where += f", in {stop['file']} line {stop['at']}"
        elif line <= len(lines := self.running.splitlines()):  # bash has only the last command of a pipeline
            command = lines[line - 1]
        return f"{one_line(where)}: {one_line(command.strip())[:_COMMAND_CHARS]}: exit {stop['code']}"

    def _own_line(self, number: int) -> str:
        """Return the position in the layer's own file for a line of the whole script that was run."""
        for at, text in reversed([*enumerate(self.running.splitlines()[:number], 1)]):
            if text.startswith(SCRIPT_MARK):
                return f"{text.rpartition(' ')[2]} line {number - at}"
        return f"line {number}"


def pack(
    mksquashfs: Path,
    folder: Path,
    target: Path,
    *options: str,
    within: Callable[[list[str | Path]], Completed],
    elsewhere: str = MOVE_OUTPUT,
) -> None:
    """Write a folder as a squashfs; `within` runs the program. Raises FailedError if it fails.

    `elsewhere`: the hint if the disk of `target` is full.
    """
    argv: list[str | Path] = [mksquashfs, folder, target, "-noappend", "-no-progress", "-quiet"]
    done = within([*argv, *PACKED, "-processors", str(len(os.sched_getaffinity(0))), *options])
    if _PACKED_FULL.search("" if done.ok else done.output):
        raise FailedError(_DISK_FULL, where=str(named_folder(target.parent)), hint=elsewhere)
    if not done.ok:
        raise FailedError(f"mksquashfs: {one_line(done.last_line)[:300]}", where=str(target))


def require_gpu_code(layer: str, gpus: Collection[str], result: Path, *, of_wheels: str | None = None) -> str | None:
    """Raise FailedError if a layer has GPU code, but none for one of its GPUs: on the node it would be too late.

    `gpus`: the GPUs that the layer is compiled for; `of_wheels`: the GPU that the wheels must have code for, in
    components that every job calls; `result`: the files that the layer added. For a compiled layer without GPU code, a
    note is returned: it may compile at run time, as Triton does.
    """
    wanted = gpus or ([of_wheels] if of_wheels is not None else [])
    if not wanted:
        return None
    with open_image(result) as image:
        code = Inventory(image).gpu_code
    if gpus and not code.files:
        return f"{layer} was compiled for {', '.join(gpus)}, but installed no readable GPU code"
    for gpu in wanted:
        try:
            verdicts = component_fits(code, node_gpu(gpu))
        except GpuCodeError:
            continue  # a name that no compiler accepts either
        lacking = [one for one in verdicts if one.fit is GpuFit.NO and (gpus or one.needed)]
        if any(one.needed for one in lacking) or (gpus and len(lacking) == len(verdicts)):
            shown = ", ".join(f"{one.component} ({one.has})" for one in lacking[:_SHOWN])
            what = f"its wheels have no code for {gpu}"
            hint = f"its releases, and where their wheels come from: lumiimg show {layer}"
            if gpus:
                what = f"it was compiled for {gpu}, but has no code for it"
                hint = f"check that its post.sh passes ARCH to the compiler ({_OF_COMPILERS}, …); {hint}"
            raise FailedError(f"layer {layer}: {what}: {shown}", hint=hint)
    return None
