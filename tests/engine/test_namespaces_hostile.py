"""Attacks on the kernel's own engine: hostile images, programs that do not end, machines that refuse namespaces."""

from __future__ import annotations

import encodings
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lumiimg.engine.namespaces import PROGRAM
from tests.shared.build_traces import strays
from tests.shared.kernel_starts import STRATEGIES, squashed, start
from tests.shared.programs import EVERYTHING, needs, wait_until
from tests.shared.small_roots import small_root

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder with programs of this machine and their libraries."""
    return small_root(tmp_path_factory.mktemp("programs") / "root")


@pytest.fixture
def image(programs: Path, tmp_path: Path) -> Path:
    """A copy of that image for one test."""
    return Path(shutil.copytree(programs, tmp_path / "image", symlinks=True, copy_function=os.link))


_OUTSIDE = r"""
for process in /proc/[0-9]*; do
    [ $process = /proc/$$ ] && continue
    for way in root cwd; do
        for up in . .. ../.. ../../.. ../../../.. ../../../../.. ../../../../../..; do
            [ -e $process/$way/$up/etc/ld.so.cache ] && echo "this machine is at $process/$way/$up"
        done
    done
    for file in $process/fd/*; do
        case $(readlink $file) in pipe:* | /dev/null | /memfd:environment\ * | "") ;; *) echo "open in $process: $(readlink $file)" ;; esac
    done
    tr '\0' '\n' <$process/environ | grep LUMIIMG_HERE
done 2>/dev/null
for file in $(ls -l /proc/self/fd | grep -o '[3-9] -> .*' | grep -v '/proc/[0-9]*/fd$'); do echo "open in the program: $file"; done
tr '\0' ' ' 2>/dev/null </proc/[0-9]*/cmdline | grep "$1"
echo looked
"""


@pytest.mark.threat
@pytest.mark.parametrize(
    ("way", "kind"), [("build", "folder"), ("test", "folder"), ("test", "file"), ("probe", "file")]
)
def test_no_process_or_open_file_leads_a_program_out_of_its_container(image: Path, way: str, kind: str) -> None:
    assert Path("/etc/ld.so.cache").exists(), "of this machine alone"
    image = squashed(image) if kind == "file" else image
    mark = f"{400 + os.getpid() / 1e6}"
    with subprocess.Popen(["sleep", mark]) as other:
        done = start(image, "bash", "-c", _OUTSIDE, "bash", mark, way=way, env={"LUMIIMG_HERE": "1"})
        other.kill()
    output = done.stdout.splitlines()
    assert output == ["looked"], done.stdout + done.stderr


@pytest.mark.threat
@pytest.mark.parametrize("way", STRATEGIES)
def test_a_program_gains_no_privileges(image: Path, way: str) -> None:
    done = start(image, "bash", "-c", "grep -E 'NoNewPrivs|Cap(Prm|Eff|Bnd|Amb)' /proc/self/status; id -u", way=way)
    found = dict(line.partition(":\t")[::2] for line in done.stdout.splitlines())
    assert found.pop("NoNewPrivs") == "1"
    if "--fakeroot" in STRATEGIES[way]:
        assert found.pop("0") == ""
        assert int(found["CapAmb"], 16) == 0
    else:
        assert found.pop(f"{os.getuid()}") == ""
        assert {name: int(value, 16) for name, value in found.items()} == dict.fromkeys(
            ("CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
        )


_HANDS_ON = """\
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
head, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
libc.capget(head, sets)
low, _, _, high, _, _ = struct.unpack("=6I", sets)
libc.capset(head, struct.pack("=6I", low, low, low, high, high, high))
for number in range(64):
    libc.prctl(47, 2, number, 0, 0)  # PR_CAP_AMBIENT_RAISE
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.threat
def test_root_hands_no_capability_on_to_a_probe(image: Path) -> None:
    """Root in a container that cannot create user namespaces, and whose engine has left it such capabilities."""
    needs("unshare")
    within = ["unshare", "--map-root-user", sys.executable, "-c", _HANDS_ON]
    done = start(image, "bash", "-c", "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status", within=within)
    found = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert {name: int(value, 16) for name, value in found.items()} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )


@pytest.mark.threat
@pytest.mark.parametrize("argv", [["no-such-program"], ["/bin/sh", "-c", "exit 7"], ["/etc/passwd"]])
def test_nothing_of_an_image_runs_in_the_engine_itself(image: Path, argv: list[str]) -> None:
    """Python would search the image for a module that it has not imported yet, under the path on this machine."""
    places = {Path(encodings.__file__).parent, Path(os.__file__).parent, ROOT / "lumiimg"}
    trap = "import os\nos.write(2, b'code of the image runs')\n"
    for place in places:
        for file in place.rglob("*.py"):
            if "test" not in file.parts and "site-packages" not in file.parts:
                there = image / str(file)[1:]
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_text(trap)
    for has_shell in (True, False):
        if not has_shell:
            for name in ("bash", "sh", "dash"):
                (image / "bin" / name).unlink()
        for folder_is_closed in (False, True):
            (image / ".singularity.d/env").chmod(0 if folder_is_closed else 0o755)
            for way in STRATEGIES:
                done = start(image, *argv, way=way)
                assert "code of the image" not in done.stderr
                assert done.returncode in {7, 255}
                assert done.returncode == 7 or done.stderr.startswith("FATAL:"), done.stderr
    (image / ".singularity.d/env").chmod(0o755)


_OF_THIS_MACHINE = Path("/etc/ld.so.conf")
"""A file of this machine that is neither in the image nor visible in a container."""


def _put(place: Path, what: str, outside: Path) -> None:
    """Replace a part of an image with something else."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    target = _OF_THIS_MACHINE if place.parent.name == "etc" else outside
    links = {
        "absolute link": f"{target}",
        "relative link": os.path.relpath(target, place.parent),
        "link upwards": f"{'../' * 40}{target}",
        "link to processes": f"/proc/self/root{target}",
        "link to itself": place.name,
    }
    if what in links:
        place.symlink_to(links[what])
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "file":
        place.write_text("a file\n")
    else:
        place.mkdir()


_LINKS = ("absolute link", "relative link", "link upwards", "link to processes")
_KINDS = (*_LINKS, "link to itself", "pipe", "file", "folder")
_AT_ONCE = ("dev", "etc/group", "etc/hosts", "etc/localtime", "etc/resolv.conf", "home", "opt/new", "root", "sys", "tmp",
    "var/tmp", ".singularity.d/env/10.sh", ".singularity.d/env/99-base.sh")  # fmt: skip
_ALONE = ("etc", "etc/passwd", "opt", "proc", "var", ".singularity.d", ".singularity.d/env")


_SEVERAL = _KINDS if EVERYTHING else ("link upwards", "pipe", "file")


@pytest.mark.parametrize(
    ("places", "what"),
    [*((_AT_ONCE, what) for what in _KINDS), *(((place,), what) for place in _ALONE for what in _SEVERAL)],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_whatever_an_image_has_at_a_mount_point_a_bind_is_where_it_is_asked_for_or_refused_in_one_line(
    image: Path, tmp_path: Path, what: str, places: tuple[str, ...]
) -> None:
    if (what, *places) == ("pipe", "etc/passwd"):
        return  # the image's own shell waits for it, where it reads it
    outside = tmp_path / "outside"
    (outside / "env").mkdir(parents=True)
    for place in places:
        _put(image / place, what, outside)
    for way in ("build", "probe"):
        done = _bound(image, tmp_path, "/opt/new/bound", way, "cat /opt/new/bound; echo x >/opt/x; exit 0")
        assert [path.name for path in outside.iterdir()] == ["env"], way
        if done.returncode == 255:  # it says what is in the way, and nothing of its own inner life
            assert re.fullmatch(r"FATAL:   /\S+ .+\n", done.stderr), f"{way}: {done.stderr}"
            assert "/proc/self/fd" not in done.stderr
        else:
            assert done.stdout == "bound\n", f"{way}: {done.stderr}"


@pytest.mark.parametrize("what", _LINKS)
@pytest.mark.parametrize("way", ["build", "probe"])
def test_a_bind_below_a_link_of_an_image_is_never_put_on_a_file_of_this_machine(
    image: Path, tmp_path: Path, what: str, way: str
) -> None:
    """In a build, the image has no such file, and the bind is refused, unless it reached that of this machine."""
    name = _OF_THIS_MACHINE.name
    _put(image / "opt/new", what, _OF_THIS_MACHINE.parent)
    looks = f"cat /opt/new/{name}; [ -e /etc/{name} ] && echo 'at the end of the link'; exit 0"
    done = _bound(image, tmp_path, f"/opt/new/{name}", way, looks)
    if way == "build":
        assert done.stderr == f"FATAL:   /opt/new/{name} cannot be bound: No such file or directory\n"
    else:  # the engine follows all links except absolute ones, which it replaces with a folder
        is_followed = what in {"relative link", "link upwards"}
        assert done.stdout == "bound\n" + ("at the end of the link\n" if is_followed else "")


def _bound(image: Path, tmp_path: Path, target: str, way: str, script: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "source").write_text("bound\n")
    bind = f"type=bind,source={tmp_path / 'source'},destination={target}"
    return start(image, "/bin/sh", "-c", script, way=way, more=("--mount", bind))


_LIMITED = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from lumiimg.engine.namespaces.syscalls import Namespace, unshare
uid, gid = os.geteuid(), os.getegid()
unshare(Namespace.USER)
own = {"self/setgroups": "deny", "self/uid_map": f"{uid} {uid} 1", "self/gid_map": f"{gid} {gid} 1"}
for name, text in (own | {"sys/user/max_user_namespaces": "0"}).items():
    with open(f"/proc/{name}", "w") as file:
        file.write(text)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a program as a user to whom the kernel gives no namespaces."""
_AS_ROOT = (*PROGRAM, "root", "--mounts", "/bin/sh", "-c")


@pytest.mark.parametrize(
    ("within", "way", "message"),
    [
        ((sys.executable, "-c", _LIMITED, str(ROOT)), "probe", "refuses a namespace: .*max_user_namespaces is 0"),
        ((sys.executable, "-c", _LIMITED, str(ROOT)), "build", "refuses a namespace: .*max_user_namespaces is 0"),
        ((*_AS_ROOT, 'exec setpriv --inh-caps=-all --bounding-set=-all "$@"', "sh"), "build", "lacks CAP_SETUID"),
        ((*_AS_ROOT, 'exec setpriv --inh-caps=-sys_admin --bounding-set=-sys_admin "$@"', "sh"), "build", None),
        ((*_AS_ROOT, 'exec setpriv --inh-caps=-sys_admin --bounding-set=-sys_admin "$@"', "sh"), "probe", None),
        ((*_AS_ROOT, 'cd /; mkdir "$0/../gone"; cd "$0/../gone"; rmdir ../gone; exec "$@"', "IMAGE"), "probe", None),
    ],
)
def test_a_machine_that_refuses_something_is_named_in_one_line_or_done_without(
    image: Path, within: tuple[str, ...], way: str, message: str | None
) -> None:
    words = [str(image) if word == "IMAGE" else word for word in within]
    done = start(image, "sh", "-c", "echo works", way=way, within=words)
    if message is None:
        assert done.stdout == "works\n", done.stderr
    else:
        assert done.returncode == 255
        assert re.fullmatch(rf"FATAL:   .*{message}.*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("hides", "message"),
    [
        ("mount -t tmpfs none /proc/irq", ["the kernel does not mount /proc here"]),
        (
            "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys",
            ["the kernel does not mount /proc here", "/proc/sys/user/max_user_namespaces: Read-only"],
        ),
    ],
)
def test_what_the_kernel_does_not_give_a_container_is_reported(image: Path, hides: str, message: list[str]) -> None:
    """As in a container whose engine hides parts of /proc."""
    done = start(image, "sh", "-c", "echo works", within=(*_AS_ROOT, f'{hides}; exec "$@"', "sh"))
    assert done.stdout == "works\n", done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(message)
    assert all(line.startswith(f"WARNING: {words}") for line, words in zip(lines, message, strict=True)), lines


@pytest.mark.threat
@pytest.mark.parametrize("way", ["test", "probe"])
def test_a_start_that_is_killed_leaves_nothing(image: Path, way: str) -> None:
    file, mark = squashed(image), f"{600 + os.getpid() / 1e6}"
    child = subprocess.Popen([*PROGRAM, "exec", *STRATEGIES[way], file, "sleep", mark])
    wait_until(lambda: strays(f"sleep\0{mark}") != [])
    child.kill()
    child.wait()
    wait_until(lambda: not strays(mark) and not strays(str(file)), limit_s=20)
