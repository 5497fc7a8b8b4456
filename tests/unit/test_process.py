"""The gate for child processes: no deadlock, no leftover, no inherited environment."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lumiimg.engine import process
from lumiimg.engine.process import LINE_LIMIT_BYTES, OUTPUT_LIMIT_BYTES, run
from tests.shared.programs import alive, patient, wait_until

ENV = {"PATH": os.environ["PATH"]}


@pytest.mark.threat
def test_the_child_gets_the_given_environment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "1")
    done = run(["/usr/bin/env"], env={"ONLY": "this\nand that"})
    assert done.output == "ONLY=this\nand that\n"


@pytest.mark.threat
def test_much_on_stderr_does_not_deadlock_and_memory_is_bounded() -> None:
    # spython's runner hangs once 64 KiB are on standard error
    size = OUTPUT_LIMIT_BYTES + 1_000_000
    done = run(
        ["/bin/sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x >&2; echo; echo 'No space left on device'"],
        env=ENV,
        timeout_s=patient(60),
    )
    assert done.ok
    assert done.truncated
    assert done.last_line == "No space left on device", "the end is kept"
    assert len(done.output) <= OUTPUT_LIMIT_BYTES + 64 * 1024


@pytest.mark.threat
def test_a_child_that_prints_without_end_does_not_fill_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT_BYTES", 100_000)
    log = io.BytesIO()
    done = run(["/bin/sh", "-c", "yes | head -c 1000000; echo end"], env=ENV, log=log)
    assert done.last_line == "end"
    assert log.getvalue() == b"y\n" * 50_000 + b"\nlumiimg: output after 100000 bytes is not recorded\n"


@pytest.mark.threat
def test_lines_without_end_take_little_time_and_the_last_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LINES_LIMIT", 1000)
    lines: list[str] = []
    assert run(["/bin/sh", "-c", "yes | head -c 20000000; echo; echo last"], env=ENV, on_line=lines.append).ok
    assert 1000 < len(lines) < 100_000
    assert lines[-1] == "last"


@pytest.mark.threat
def test_a_line_without_end_is_handed_on_in_pieces() -> None:
    lines: list[str] = []
    run(["/bin/sh", "-c", f"head -c {LINE_LIMIT_BYTES * 3} /dev/zero | tr '\\0' x"], env=ENV, on_line=lines.append)
    assert sum(map(len, lines)) == LINE_LIMIT_BYTES * 3
    assert max(map(len, lines)) <= LINE_LIMIT_BYTES * 2


@pytest.mark.threat
def test_a_time_limit_ends_the_grandchildren_too() -> None:
    done = run(["/bin/sh", "-c", "sleep 987 & echo $!; sleep 987"], env=ENV, timeout_s=0.5)
    assert done.timed_out
    assert not done.ok
    wait_for_end(int(done.output.split()[0]))


@pytest.mark.threat
def test_a_time_limit_ends_who_has_stopped_itself_at_once() -> None:
    start = time.monotonic()
    assert run(["/bin/sh", "-c", "kill -STOP 0; sleep 987"], env=ENV, timeout_s=0.1).timed_out
    assert time.monotonic() - start < process.GRACE_S / 2


def test_a_daemon_that_writes_on_and_on_does_not_hold_it_up() -> None:
    start = time.monotonic()
    done = run(["/bin/sh", "-c", "yes & exit 3"], env=ENV)
    assert done.exit_code == 3
    assert time.monotonic() - start < patient(60)


def test_a_listener_that_fails_leaves_no_child_behind() -> None:
    pids: list[int] = []

    def listen(line: str) -> None:
        pids.append(int(line))
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(["/bin/sh", "-c", "echo $$; sleep 987"], env=ENV, on_line=listen)
    wait_for_end(pids[0])


def test_a_signal_shows_as_the_shell_counts_it() -> None:
    assert run(["/bin/sh", "-c", "kill -BUS $$"], env=ENV).exit_code == 128 + signal.SIGBUS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_the_child_ends_with_lumiimg(number: signal.Signals, tmp_path: Path) -> None:
    """With all that it started, even if a grandchild ignores the signal."""
    pid_file, reached = tmp_path / "pid", tmp_path / "told"
    deaf = f"trap '' INT TERM; (echo $BASHPID > {pid_file}; sleep 987; sleep 987) & trap - INT TERM; sleep 987"
    program = (
        "import os; from lumiimg.engine import process\n"
        "process._WATCH = process._WATCH.replace('sleep 10', 'sleep 1')\n"
        "write = process._write_all\n"
        f"process._write_all = lambda pipe, text: (write(pipe, text), open({str(reached)!r}, 'w').close())\n"
        f"process.run(['bash', '-c', {deaf!r}], env=dict(os.environ))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as parent:
        child = wait_for_number(pid_file)
        wait_until(reached.exists)  # before that, a SIGKILL of lumiimg leaves a child that was only just started
        parent.send_signal(number)
        parent.wait(timeout=patient(20))
    wait_for_end(child)


def test_a_child_that_is_just_starting_ends_with_lumiimg_too(tmp_path: Path) -> None:
    """It ends lumiimg at once, which on a busy machine has not yet returned from starting it."""
    pid_file = tmp_path / "pid"
    words = f"echo $$ > {pid_file}; kill -TERM $PPID; exec sleep 987"
    program = (
        "import os, subprocess, time\n"
        "from lumiimg.engine.process import run\n"
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *words, **options):\n"
        "        super().__init__(*words, **options)\n"
        "        time.sleep(0.2)\n"
        "subprocess.Popen = Slow\n"
        f"run(['sh', '-c', {words!r}], env=dict(os.environ))"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False, timeout=patient(60))
    assert done.returncode == -signal.SIGTERM
    wait_for_end(int(pid_file.read_text()))


def test_a_child_goes_on_when_the_terminal_is_closed_under_nohup(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from lumiimg.engine import process\n"
        f"print(process.run(['bash', '-c', 'echo $$ > {pid_file}; sleep 1; echo done'], env=dict(os.environ)).output)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        wait_for_number(pid_file)
        parent.send_signal(signal.SIGHUP)
        out, _ = parent.communicate(timeout=patient(20))
    assert (out.strip(), parent.returncode) == ("done", 0)


def wait_for_number(path: Path) -> int:
    """Return the number that another process writes; wait until it is complete."""
    wait_until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended: a signal takes time to arrive."""
    wait_until(lambda: not alive(pid))
