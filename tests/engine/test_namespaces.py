"""The kernel's own engine starts programs as the real engine does, and an image cannot affect anything outside."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.engine.engine import PACKED, Engine, exec_words, kernel_engine
from lumiimg.engine.namespaces import PROGRAM
from tests.engine.conftest import lumiimg
from tests.shared.programs import patient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.engine
_OF_ENGINES = {
    "APPTAINER_APPNAME", "APPTAINER_BIND", "APPTAINER_COMMAND", "SINGULARITY_BIND", "PROMPT_COMMAND", "USER_PATH", "SHLVL", "_",
}  # fmt: skip
"""Variables that Apptainer sets about itself, and those of shells."""
_SEEN = r"""
pwd
id
tail -1 /etc/passwd; tail -1 /etc/group
stat -c '%a %F' / /tmp /var/tmp /dev /proc /sys /etc /root "$HOME"
readlink /etc/localtime
cat /etc/hosts /etc/resolv.conf
cut -d: -f1 /proc/net/dev; ls /sys/class/net
grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status
for place in / /etc /opt /usr /root; do touch $place/x 2>/dev/null && echo "wrote $place"; done
test -r /proc/$$/stat && echo processes
ls /dev | sort | head -40
"""


def _start(
    engine: Engine, image: Path, argv: list[str], env: Mapping[str, str] | None = None, **options: object
) -> str:
    words = exec_words(engine, image, argv, **options)  # type: ignore[arg-type]
    done = subprocess.run(words, env=dict(env or os.environ), capture_output=True, check=False, timeout=patient(120))
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


def _files(engine: Engine, image: Path, *what: str) -> list[str]:
    """Return a line for each file that any user may list."""
    shown = ["(", "-type", "f", "-printf", r"%m %s %p\n", ")", "-o", "-printf", r"%y %m %l %p\n"]
    find = ["find", *what, "-xdev", "-readable", *shown]
    return sorted(_start(engine, image, ["sh", "-c", 'exec 2>/dev/null; "$@"; :', "sh", *find]).splitlines())


@pytest.fixture(scope="module")
def kernel() -> Engine:
    return kernel_engine()


@pytest.fixture(scope="module")
def folder(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the image as a folder that this user owns."""
    path = tmp_path_factory.mktemp("unpacked") / "root"
    offset = next(line.split("|")[3].split("-")[0].strip() for line in _listed(demo) if "*System" in line)
    words: list[str | Path] = [
        "unsquashfs",
        "-quiet",
        "-no-progress",
        "-no-xattrs",
        "-dest",
        path,
        "-offset",
        offset,
        demo,
    ]
    subprocess.run(words, check=False, capture_output=True)
    assert (path / "bin").exists()
    return path


def _listed(image: Path) -> list[str]:
    done = subprocess.run(["apptainer", "sif", "list", image], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def layered(engine: Engine, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image with an overlay partition, as `overlay create` of an engine, or other people, add one."""
    folder = tmp_path_factory.mktemp("layered")
    (folder / "upper/opt").mkdir(parents=True)
    (folder / "upper/opt/over").write_text("text\n")
    shutil.copy(demo, folder / "image.sif")
    subprocess.run(["mksquashfs", folder / "upper", folder / "upper.sqfs", *PACKED, "-quiet"], check=True)
    kind = ["--datatype", "4", "--partfs", "1", "--parttype", "4", "--partarch", "2", "--groupid", "1"]
    subprocess.run([engine.path, "sif", "add", *kind, folder / "image.sif", folder / "upper.sqfs"], check=True)
    return folder / "image.sif"


def test_a_program_sees_what_it_sees_in_the_engine(engine: Engine, kernel: Engine, layered: Path, folder: Path) -> None:
    for image in (layered, folder):
        assert _start(kernel, image, ["/bin/sh", "-c", _SEEN]) == _start(engine, image, ["/bin/sh", "-c", _SEEN])
    places = ("/usr", "/opt", "/.singularity.d", "/var/lib")
    found = _files(kernel, layered, *places)
    assert "644 5 /opt/over" in found
    assert found == _files(engine, layered, *places)


_VALUES = (
    "plain",
    "",
    "a b",
    "it's",
    'say "x"',
    "$HOME",
    "${PATH}",
    "`id -u`",
    "a\nb",
    "*",
    "é",
    "a=b",
    ";x",
    r"a\b",
    "#",
)
_NAMES = (
    *("FIRST", "LD_LIBRARY_PATH", "PATH", "PREPEND_PATH", "APPEND_PATH", "NCCL_NET", "HOME", "TERM", "http_proxy"),
    *("HOSTNAME", "LANG", "PS1", "SHELL", "A_1"),
)


def _environments() -> Iterator[dict[str, str]]:
    chance = random.Random(20261123)  # noqa: S311 - the same ones each time
    for _ in range(12):
        env = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "USER": "somebody"}
        for prefix in ("", "APPTAINERENV_", "SINGULARITYENV_"):
            names = [name for name in _NAMES if prefix or name not in {"HOME", "PATH", "PREPEND_PATH", "APPEND_PATH"}]
            env |= {prefix + name: chance.choice(_VALUES) for name in chance.sample(names, 4)}
        yield env


def test_variables_reach_a_program_as_by_the_engine(engine: Engine, kernel: Engine, with_plugin: Path) -> None:
    for env in _environments():
        got, wanted = (
            dict(line.partition("=")[::2] for line in _start(one, with_plugin, ["/usr/bin/env", "-0"], env).split("\0"))
            for one in (kernel, engine)
        )
        assert {k: v for k, v in got.items() if k not in _OF_ENGINES} == {
            k: v for k, v in wanted.items() if k not in _OF_ENGINES
        }, env


def test_binds_are_where_the_engine_puts_them(
    engine: Engine, kernel: Engine, with_plugin: Path, tmp_path: Path
) -> None:
    source = tmp_path / 'a, "b": c'
    source.mkdir()
    (source / "file").write_text("here\n")
    script = 'cat "/new/deep/place/file" /etc/one /usr/lib/os-release; touch /new/deep/place/x && echo wrote; ls /new'
    binds = ((source, "/new/deep/place"), (source / "file", "/etc/one"), (source / "file", "/etc/os-release"))
    for env in ({}, {"APPTAINER_BIND": f"{tmp_path}:/mnt/by-variable:ro"}):
        argv, options = ["sh", "-c", f"{script}; ls /mnt"], {"binds": binds[:2], "writable": binds[2:]}
        reported = [_start(one, with_plugin, argv, os.environ | env, **options) for one in (kernel, engine)]
        assert reported[0] == reported[1]
        assert "here" in reported[0]
        assert "wrote" not in reported[0]


def test_a_program_ends_as_it_does_by_the_engine(engine: Engine, kernel: Engine, demo: Path) -> None:
    for ending in (
        "true",
        "exit 7",
        "exit 255",
        "kill -TERM $$",
        "kill -KILL $$",
        "kill -ABRT $$",
        "no-such-program-9",
    ):
        codes = [
            subprocess.run(exec_words(one, demo, ["sh", "-c", ending]), capture_output=True, check=False).returncode
            for one in (kernel, engine)
        ]
        # as lumiimg reads them: a shell of the image is in between, and exits with 128 plus the number of the signal
        assert [code if code >= 0 else 128 - code for code in codes] == [codes[0]] * 2, ending


def test_a_signal_ends_a_program_that_listens(kernel: Engine, demo: Path) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    child = subprocess.Popen(
        exec_words(kernel, demo, ["sh", "-c", script]), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    os.killpg(child.pid, signal.SIGTERM)
    assert (child.communicate()[0], child.returncode) == ("bye\n", 3)


def test_without_fuse_an_image_is_unpacked_for_its_container_alone(
    engine: Engine, kernel: Engine, layered: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("unsquashfs", "sh"):
        (tools / name).symlink_to(shutil.which(name) or "")
    env = os.environ | {"PATH": f"{tools}", "LUMIIMG_CACHE": f"{tmp_path / 'cache'}"}
    argv = ["sh", "-c", "find /usr /opt -xdev -type f -perm -o=r -printf '%s %p\\n' | sort"]
    wanted = _start(engine, layered, argv)
    work = tmp_path / "cache" / "work"
    assert _start(kernel, layered, argv, env) == wanted
    assert list(work.iterdir()) == []
    sleeps = [*exec_words(kernel, layered, ["sh", "-c", "echo up; exec sleep 3000"])]
    for number in (signal.SIGTERM, signal.SIGKILL):  # the first of those in the image, its shell, hears none
        with subprocess.Popen(sleeps, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as container:
            assert container.stdout is not None
            assert container.stdout.readline() == "up\n"
            assert lumiimg("cache", "prune", "--keep", "0", env=env).code == 0
            assert len(list(work.iterdir())) == 1, "a container has it"
            os.killpg(container.pid, number)
        assert len(list(work.iterdir())) == (number == signal.SIGKILL)
    assert lumiimg("cache", "prune", "--keep", "0", env=env).code == 0
    assert list(work.iterdir()) == []


def test_where_the_kernel_makes_no_namespaces_of_users_root_needs_none(folder: Path) -> None:
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    words: list[str | Path] = [*PROGRAM, "root", "--mounts", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*words, *PROGRAM, "exec", folder, "echo", "works"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "works\n", done.stderr
