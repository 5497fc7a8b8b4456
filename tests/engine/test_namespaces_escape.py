"""Container escapes that were seen elsewhere, or that a kernel might allow: none leaves the kernel's own engine.

The chains run with a Python owned by the user, like those of uv, conda and pyenv: what overwrites it would run as the
user the next time (as in CVE-2019-5736 of runc).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.engine.engine import exec_words, kernel_engine
from lumiimg.engine.namespaces import PROGRAM
from lumiimg.engine.process import run
from tests.engine.conftest import write_layer
from tests.shared.build_traces import strays
from tests.shared.kernel_starts import STRATEGIES, squashed, start
from tests.shared.programs import needs, patient, wait_until
from tests.shared.small_roots import small_root

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.engine
_SOURCE = Path(__file__).parent / "escapes/escapes.c"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder with programs of this machine, and the program of the escapes."""
    needs("gcc")
    root = small_root(tmp_path_factory.mktemp("programs") / "root")
    subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Werror", "-o", root / "bin/escapes", _SOURCE], check=True)
    return root


@pytest.fixture
def image(programs: Path, tmp_path: Path) -> Path:
    """A copy of that image for one test."""
    return Path(shutil.copytree(programs, tmp_path / "image", symlinks=True))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python owned by the user, with the packages of this one."""
    venv = Path(sys.prefix)
    program = tmp_path / "python/bin/python3"
    program.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), program)
    shutil.copy(venv / "pyvenv.cfg", tmp_path / "python")
    (tmp_path / "python/lib").symlink_to(venv / "lib")
    return program


_LOOKS = r"""
readlink /proc/1/exe
for process in /proc/[0-9]*; do
    [ $process/exe -ef "$(readlink $process/exe)" ] || echo "of this machine: $process is $(readlink $process/exe)"
    grep -i python $process/maps && echo "of this machine: $process"
    echo $process
done 2>&1
"""


@pytest.mark.core
@pytest.mark.threat
@pytest.mark.parametrize("way", STRATEGIES)
def test_no_process_in_a_container_is_of_this_machine(image: Path, way: str) -> None:
    (image / "opt/bash").hardlink_to(image / "bin/bash")
    for shell in ("/bin/bash", "/bin/dash"):  # which stays as the first process
        done = start(image, "/opt/bash", "-c", _LOOKS, way=way)
        (image / "bin/bash").unlink(missing_ok=True)
        processes = done.stdout.splitlines()
        assert processes[:2] == [shell, "/proc/1"], done.stdout + done.stderr
        assert all(line.startswith("/proc/") for line in processes[1:]), done.stdout


_ITSELF = ("/proc/self/exe", "/proc/1/exe", "/proc/thread-self/exe", "/proc/self/fd/3", "/dev/fd/3", "../proc/self/exe")
_SHELLS = {
    **{f"link to {target}": target for target in _ITSELF},
    **{f"script of {target}": f"#!{target}\n" for target in (*_ITSELF, " \t/proc/self/exe -c 1", "proc/self/exe")},
    "script of a link": "#!/bin/linked\n",
    "script of a script": "#!/bin/scripted\n",
}


@pytest.mark.threat
@pytest.mark.parametrize("what", _SHELLS)
def test_no_program_of_an_image_is_a_link_to_the_engine(image: Path, what: str) -> None:
    """While it starts, /proc/self/exe is the engine's Python, which would run with libraries of the image."""
    (image / "bin/linked").symlink_to("/proc/self/exe")
    (image / "bin/scripted").write_text("#!/bin/linked\n")
    (image / "bin/scripted").chmod(0o755)
    for name in ("bash", "sh", "dash"):
        (image / "bin" / name).unlink()
    place = image / "bin/sh"
    if what.startswith("link"):
        place.symlink_to(_SHELLS[what])
    else:
        place.write_text(_SHELLS[what])
        place.chmod(0o755)
    for way in STRATEGIES:
        done = start(image, "/bin/program", "-c", "import os; os.write(1, b'Python')", way=way)
        assert (done.returncode, done.stdout) == (255, ""), (way, done.stderr)
        assert done.stderr.startswith("FATAL:   /bin/sh of the image cannot be started: "), done.stderr
        assert len(done.stderr.splitlines()) == 1


_REFUSED = {"EPERM", "EACCES", "EINVAL", "ENOENT", "ENOSYS", "EROFS", "ENXIO"}
_TRIES = (
    ({"2"}, ("processes",)),
    ({"ETXTBSY", "EROFS", "EACCES"}, ("write /proc/1/exe",)),
    # the first process is the image's own shell: programs of the image may do anything with it
    ({"ok", "EFAULT"}, ("/proc/1/mem", "/proc/1/maps", "/proc/1/fd", "ptrace 1", "process_vm_writev 1")),
    ({"ENOENT"}, ("/proc/1/root", "/proc/1/cwd")),
    ({"ok"}, ("unshare users", "clone3 users", "unshare users and mounts", "raise max_user_namespaces")),
    ({"EXDEV"}, ("chroot",)),
    ({"ENOSYS"}, ("a key of the session", "the user's keyring")),
    ({"ok", *_REFUSED}, ("userfaultfd", "io_uring", "fanotify", "bpf", "setns")),
)  # fmt: skip
"""Allowed results of an attempt, in addition to refusals."""
_OF_PROBES = (
    ({"ENOSPC"}, ("unshare users", "clone3 users", "unshare users and mounts")),
    (_REFUSED, ("raise max_user_namespaces", "chroot")),
    ({"ok"}, ("a key of the session", "the user's keyring")),
)
"""Differences there: no program has privileges, and the keys are those of the user who runs it."""
_WITH_A_KEY = """\
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.syscall({keyctl}, 1, None)
libc.syscall({add_key}, b"user", b"lumiimg-key", b"secret", 6, -3)
keyring = libc.syscall({keyctl}, 0, -4, 1)
os.execv(sys.argv[1], [*sys.argv[1:], str(keyring)])
"""
_CALLS = {"x86_64": {"keyctl": 250, "add_key": 248}, "aarch64": {"keyctl": 219, "add_key": 217}}


@pytest.mark.threat
@pytest.mark.skipif(os.geteuid() == 0, reason="root in a container of root's may do all that root may")
@pytest.mark.parametrize("way", STRATEGIES)
def test_what_a_program_tries_stays_in_its_container(image: Path, way: str) -> None:
    within = (sys.executable, "-c", _WITH_A_KEY.format(**_CALLS[os.uname().machine]))
    done = start(image, "escapes", "tries", way=way, within=within)
    assert done.returncode == 0, done.stderr
    seen = dict(line.split(": ") for line in done.stdout.splitlines())
    tables = (*_TRIES, *(_OF_PROBES if way == "probe" else ()))
    expected = {name: outcomes for outcomes, names in tables for name in names}
    wrong = {name: message for name, message in seen.items() if message not in expected.get(name, _REFUSED)}
    assert not wrong
    assert len(seen) == 39


@pytest.mark.threat
@pytest.mark.parametrize("names", [("bash",), ("bash", "sh", "dash")])
def test_the_first_program_of_a_container_is_in_the_image_itself(image: Path, names: tuple[str, ...]) -> None:
    """Anyone who can write to /tmp could replace it with a link to the engine's Python just before it is started."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        shutil.copy(image / "bin/bash", shared)
        for name in names:
            (image / "bin" / name).unlink()
            (image / "bin" / name).symlink_to(f"{shared}/bash")
        for way in STRATEGIES:
            done = start(image, "/bin/bash", "-c", "echo ran", way=way)
            assert (done.returncode, done.stdout) == (255, ""), (way, done.stderr)
            assert done.stderr == "FATAL:   /bin/bash of the image cannot be started: Invalid cross-device link\n"


@pytest.mark.threat
@pytest.mark.skipif(os.geteuid() == 0, reason="root has power over all mounts")
@pytest.mark.parametrize("way", ["build", "test"])
def test_root_in_a_build_has_no_power_over_the_mounts_around_it(image: Path, way: str) -> None:
    """With such power, a program entered the mounts in which an overlay is set up, and wrote to the home from there."""
    users = ("/bin/sh", "-c", 'readlink /proc/self/ns/user; exec "$@"', "sh")
    done = start(
        image, "bash", "-c", "readlink /proc/self/ns/user", way=way, within=[*PROGRAM, "root", "--mounts", *users]
    )
    around, inside = done.stdout.splitlines()
    assert around != inside


def _unchanged(file: Path) -> Callable[[], None]:
    before, mode = file.read_bytes(), file.stat().st_mode

    def hold() -> None:
        assert (file.stat().st_mode, file.read_bytes() == before) == (mode, True)

    return hold


@pytest.fixture
def layer(image: Path, tmp_path: Path) -> list[str | Path]:
    """The options that build on that image with a layer, whose script each test writes."""
    layers = write_layer(tmp_path / "layers/escape")
    words: list[str | Path] = ["-m", "lumiimg", "build", "--base", squashed(image), "--layers", layers]
    return [*words, "--add", "escape", "--fabric", "none", "-o", tmp_path / "built.sif", "--strategy"]


def _started(
    way: str, script: str, image: Path, layer: list[str | Path], folder: Path
) -> tuple[list[str | Path], dict[str, str]]:
    """Return the arguments and variables that run a script in a build, or in the container of a probe."""
    (folder / "layers/escape/post.sh").write_text(script)
    words: list[str | Path] = [*layer, way]
    if way in STRATEGIES:
        words = [*PROGRAM[1:], "exec", *STRATEGIES[way], image, "bash", "-c", script]
    return words, os.environ | {"LUMIIMG_ENGINE": "namespaces", "LUMIIMG_CACHE": f"{folder / 'cache'}"}


@pytest.mark.threat
@pytest.mark.parametrize("way", ["overlay", "sandbox", *STRATEGIES])
def test_the_users_python_is_whole_after_a_build_or_a_probe_that_attacks_it(
    image: Path, layer: list[str | Path], python: Path, tmp_path: Path, way: str
) -> None:
    mark = f"{700 + os.getpid() / 1e6}"
    script = f"escapes stay {mark}; escapes spoil; cat /proc/self/status >/dev/null\n"
    words, env = _started(way, script, image, layer, tmp_path)
    holds = _unchanged(python)
    done = subprocess.run([python, *words], env=env, capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not strays(mark)
    holds()


@pytest.mark.threat
@pytest.mark.parametrize("way", ["overlay", "sandbox", *STRATEGIES])
def test_what_hides_from_its_end_dies_with_lumiimg(
    image: Path, layer: list[str | Path], python: Path, tmp_path: Path, way: str
) -> None:
    mark = f"{800 + os.getpid() / 1e6}"
    script = f"escapes take {mark}; trap '' TERM HUP INT; sleep 3000\n"
    words, env = _started(way, script, image, layer, tmp_path)
    holds = _unchanged(python)
    with subprocess.Popen([python, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        wait_until(lambda: strays(mark) != [], limit_s=60)
        time.sleep(0.3)  # it takes over the first process
        child.kill()
    wait_until(lambda: not strays(mark), limit_s=30)
    time.sleep(0.2)
    holds()


@pytest.mark.threat
def test_a_program_that_stops_the_engine_is_ended_all_the_same(image: Path) -> None:
    """A signal to its group reaches the engine's own processes, and lumiimg ends them at the time limit."""
    mark = f"{900 + os.getpid() / 1e6}"
    argv = ["bash", "-c", f"escapes stay {mark}; kill -{signal.SIGSTOP.value} 0"]
    done = run(exec_words(kernel_engine(), image, argv), env=os.environ, timeout_s=2)
    assert done.timed_out
    assert not strays(mark)
