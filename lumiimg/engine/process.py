"""Run child processes: every one starts here, so their environment, output and end are handled in one place.

Each has its own process group, so that a timeout or Ctrl-C also ends grandchildren, and a watchdog that outlives
lumiimg, so that nothing keeps running when lumiimg itself is killed without warning (SIGKILL, out of memory).
spython's runner is not used: it hangs forever once there are 64 KiB on standard error.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from lumiimg.core.errors import MissingHereError
from lumiimg.core.redact import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
"""Maximum output of one child in memory, from its end; a log, if there is one, has the output from its start."""
LOG_LIMIT_BYTES = 256 * 1024 * 1024
"""Maximum output of one child in its log: more than a build prints, but endless output cannot fill a file system."""
LINE_LIMIT_BYTES = 64 * 1024
LINES_LIMIT = 500_000
"""Maximum number of lines of one child that are passed on, within `LOG_LIMIT_BYTES`; of later ones, only the last:
processing them takes longer than a child with endless output takes to print them."""
GRACE_S = 10.0
"""Time between the polite signal and SIGKILL."""
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Terminal colours and cursor movements, which engines also write into pipes. Source: ECMA-48, 5.4."""
NO_NETRC = {"NETRC": os.devnull}
"""For programs whose own rules for ~/.netrc send its `default` login to any host, even without TLS."""
_READ_BYTES = 64 * 1024
_POLL_S = 0.1
_REAP_S = 0.005
_DRAIN_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Reads the number of a process group, then waits until the pipe is closed, by the kernel if lumiimg dies; then it ends
# the group.
_WATCH = (
    "read -r group || exit; read -r _; "
    f'kill -TERM "-$group" 2>/dev/null && sleep {GRACE_S:.0f} && kill -KILL "-$group" 2>/dev/null'
)


@dataclass(frozen=True, slots=True)
class Completed:
    """How a child ended."""

    argv: tuple[str, ...]
    exit_code: int
    """Exit status as in a shell: 128 + N for signal N."""
    output: str
    """Standard output and standard error in order (see `OUTPUT_LIMIT_BYTES`), without `ESCAPES`."""
    timed_out: bool = False
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the child ended by itself with status 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def last_line(self) -> str:
        """The last line that is not blank, usually the most helpful one about a failure."""
        return next((line for line in reversed(self.output.splitlines()) if line.strip()), "")


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float | None = None,
    log: IO[bytes] | None = None,
    on_line: Callable[[str], None] | None = None,
    give_up: Callable[[], bool] | None = None,
) -> Completed:
    """Run `argv` to its end and return how it ended; a status other than 0 is a result, not an exception.

    `env` is the whole environment. Output goes to `log` up to a limit, lines to `on_line`. `give_up` is called about
    ten times a second and may end the child, like its timeout. If lumiimg receives SIGINT, SIGTERM or SIGHUP meanwhile,
    the child's process group is ended first; then the signal acts on lumiimg.

    Raises MissingHereError if the program cannot be started.
    """
    words = tuple(os.fspath(word) for word in argv)
    collector = _Collector(log, on_line)
    # Both exist before the child: a signal during its start must not leave it behind.
    with _forward_signals() as forward_to, _watch() as watch_over:
        try:
            child = subprocess.Popen(
                words,
                env=_handed_on(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            hint = "check that it is installed and executable"
            raise MissingHereError(f"cannot start {words[0]}: {error}", hint=hint) from error
        try:
            watch_over(child)
            forward_to(child)
            timed_out = _read_to_the_end(child, collector, timeout_s, give_up)
        finally:
            # Processes that outlive the leader, or are left after an interrupt, would keep mounts and files of a
            # finished step in use. The child is not reaped yet, so its process id still identifies its group.
            _signal_group(child, signal.SIGKILL)
            code = child.wait()
    return Completed(words, code if code >= 0 else 128 - code, collector.text(), timed_out, collector.truncated)


def which(name: str, path: str | None) -> str | None:
    """Return the program of that name on a PATH, of which only the absolute folders are searched."""
    return shutil.which(name, path=_absolute(os.defpath if path is None else path))


def _absolute(path: str) -> str:
    """Return a PATH without its empty and relative folders, which depend on the current folder (execvp(3))."""
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if folder.startswith("/"))


def _handed_on(env: Mapping[str, str]) -> dict[str, str]:
    passed_on = without_secrets(env)
    # an empty PATH would mean the current folder again
    return passed_on | {"PATH": _absolute(passed_on["PATH"]) or os.defpath} if "PATH" in passed_on else passed_on


def _read_to_the_end(
    child: subprocess.Popen[bytes], collector: _Collector, timeout_s: float | None, give_up: Callable[[], bool] | None
) -> bool:
    """Read the child's output until it ends; return whether it had to be ended."""
    pipe = child.stdout
    assert pipe is not None  # noqa: S101 - Popen was asked for it
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    kill_at = ended_at = math.inf
    timed_out = False
    with pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if not timed_out and (now >= deadline or (give_up is not None and give_up())):
                timed_out = True
                _signal_group(child, signal.SIGTERM)
                kill_at = now + GRACE_S
            if now >= kill_at:
                _signal_group(child, signal.SIGKILL)
                kill_at = math.inf
            ended = _has_ended(child)
            if not selector.get_map():
                if ended:
                    break
                time.sleep(_REAP_S)
            elif selector.select(timeout=0 if ended else _POLL_S):
                chunk = os.read(pipe.fileno(), _READ_BYTES)
                collector.feed(chunk)
                if not chunk:
                    selector.unregister(pipe)
                # The remaining output of an ended child is read, but not the endless output of its daemons.
                ended_at = min(ended_at, now) if ended else ended_at
                if now - ended_at > _DRAIN_S:
                    break
            elif ended:
                break  # no output left: a daemon that it left behind may have the other end open
    collector.close()
    return timed_out


class _Collector:
    """Splits the byte stream into lines, stores its end, and passes it on to log and callback within limits."""

    def __init__(self, log: IO[bytes] | None, on_line: Callable[[str], None] | None) -> None:
        self._log = log
        self._on_line = on_line
        self._room = LOG_LIMIT_BYTES
        self._lines_room = LINES_LIMIT
        self._unsaid = b""
        self._line = b""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.truncated = False

    def feed(self, chunk: bytes) -> None:
        if self._log is not None and self._room > 0:
            self._log.write(chunk[: self._room])
            if len(chunk) >= self._room:
                self._log.write(f"\nlumiimg: output after {LOG_LIMIT_BYTES} bytes is not recorded\n".encode())
        if self._on_line is not None:
            self._hand_on(chunk)
        self._room -= len(chunk)
        # The end is stored: that is where a failure is reported.
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes > OUTPUT_LIMIT_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
            self.truncated = True

    def _hand_on(self, chunk: bytes) -> None:
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > LINE_LIMIT_BYTES:
            lines.append(self._line)
            self._line = b""
        if lines and min(self._room, self._lines_room) <= 0:
            self._unsaid, lines = lines[-1], []
        self._lines_room -= len(lines)
        for line in lines:
            self._emit(line)

    def close(self) -> None:
        if self._log is not None:
            self._log.flush()
        for line in filter(None, (self._unsaid, self._line)):
            self._emit(line)

    def _emit(self, line: bytes) -> None:
        if self._on_line is not None:
            self._on_line(_plain(line).rstrip("\r"))

    def text(self) -> str:
        return _plain(b"".join(self._tail))


def _plain(output: bytes) -> str:
    return ESCAPES.sub("", output.decode("utf-8", "replace"))


@contextmanager
def _watch() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield a function that registers a child, whose process group is then ended if lumiimg dies first.

    PR_SET_PDEATHSIG would reach only the child, and a killed engine does not end the programs in its container.
    """
    ours, theirs = os.pipe()
    try:
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            stdin=ours,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(ours)
    try:
        yield lambda child: _write_all(theirs, f"{child.pid}\n")
    finally:
        watch.kill()
        watch.wait()
        os.close(theirs)


def _write_all(pipe: int, text: str) -> None:
    # The watchdog may have been killed; the child runs all the same.
    with suppress(BrokenPipeError):
        os.write(pipe, text.encode())


@contextmanager
def _forward_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield a function that registers a child, whose group first gets signals that would end us; then they act on us.

    An ignored signal stays ignored (SIGHUP under nohup). The group gets SIGTERM instead of SIGHUP, on which many
    programs reload their settings.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    caught: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def pass_on() -> None:
        polite = signal.SIGINT if caught[-1] == signal.SIGINT else signal.SIGTERM
        for child in children:
            # From the third Ctrl-C on, it is SIGKILL.
            _signal_group(child, signal.SIGKILL if len(caught) > 2 else polite)

    def hear(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        pass_on()

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        if caught:
            pass_on()

    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, hear) for number in heard}
    try:
        yield forward_to
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
        os.killpg(child.pid, signal.SIGCONT)  # a stopped process reacts only to SIGKILL
    except (ProcessLookupError, PermissionError):
        # Already gone, or a set-user-id member that we may not signal.
        return
