"""What is checked on a machine before a build: whether a container starts, and whether debootstrap can make a base.

The engines are stand-ins: shell scripts that print what Apptainer 1.4.5 printed where it failed, and that run the
program of the trial on this machine instead of in a container.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.build.build_host import CONTAINER, BuildHost, host_for_builds
from lumiimg.cli.main import main
from lumiimg.engine import namespaces
from lumiimg.engine.engine import EngineKind, find_engine
from tests.shared.layer_builder import LAYER
from tests.shared.programs import needs
from tests.shared.validation import validated

if TYPE_CHECKING:
    from lumiimg.build.build_host import CapabilityTrial
    from tests.shared.layer_builder import MakeLayer

Capture = pytest.CaptureFixture[str]

ENGINE = r"""#!/bin/bash
echo "$*" >>{calls}
case "$*" in
--version) echo 'apptainer version 1.4.5'; exit ;;
"build --help") echo '--fakeroot --sandbox'; exit ;;
exec*) {exec} ;;
build*)
    if grep -q '^Bootstrap: debootstrap' "${{@: -1}}"; then {debootstrap}; fi
    exit 255 ;;
esac
"""
KERNEL = r"""#!/bin/bash
case "$1 $2 $4" in
"root --mounts -c") ;;
"root --mounts "*) shift 2; exec "$@" ;;
root*) shift; exec "$@" ;;
*) "${@: -2:1}/bin/sh" ;;
esac
"""
"""A stand-in for the kernel's own engine: it runs what should run in a namespace, but without mounts."""
PROGRAMS = ("mksquashfs", "unshare", "bash", "sh", "true", "cp", "grep", "rm", "mkdir", "mktemp")
STARTS = '"${@: -2:1}/bin/sh"'
"""Runs the program of the trial as it is."""
CAPABILITIES = (
    r"printf '\033[91mERROR  : Requesting capability set 0x000001ffffffffff while permitted capability set is "
    r"0x000001fffeffffff\n\033[0m'; exit 1"
)
BEGINS = (
    "echo 'E: Failed getting release file file:///lumiimg-no-such-mirror/dists/stable/Release'; "
    "echo 'FATAL:   While performing build: conveyor failed to get: while debootstrapping: exit status 1'; exit 255"
)
NO_DEVICES = (
    "echo 'mknod: /x/rootfs/test-dev-null: Operation not permitted'; "
    "echo \"E: Cannot install into target '/x/rootfs' mounted with noexec or nodev\"; "
    "echo 'FATAL:   While performing build: conveyor failed to get: while debootstrapping: exit status 1'; exit 255"
)
BY_DEBOOTSTRAP = LAYER.replace('"layer"', '"base"', 1) + (
    '[[bootstrap]]\nagent = "debootstrap"\nfrom = "stable"\nmirror = "debian"\n'
)
BY_REGISTRY = (
    LAYER.replace('"layer"', '"base"', 1)
    + '[[bootstrap]]\nagent = "docker"\nfrom = "busybox@sha256:'
    + "0" * 64
    + '"\n'
)
ROOT = "root lacks capabilities here"
ORDINARY = "run lumiimg as an ordinary user"


class Place:
    """A machine with its own engine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "singularity").symlink_to("apptainer")
        for name in filter(shutil.which, PROGRAMS):  # no others: each costs a trial of its own
            (self.bin / name).symlink_to(str(shutil.which(name)))
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("LUMIIMG_CACHE", str(folder / "cache"))
        monkeypatch.setenv("TMPDIR", str(folder))
        self.has(STARTS, BEGINS)
        if namespaces.PROGRAM[0] != "/bin/false":
            monkeypatch.setattr(namespaces, "PROGRAM", (str(self.bin / "kernel"),))
            self.put("kernel", KERNEL)

    def put(self, name: str, script: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def has(self, starts: str, debootstrap: str) -> None:
        """Install an engine that runs one script to start a container, and another to make a base; debootstrap, too."""
        self.put("debootstrap", f"#!/bin/sh\n{debootstrap}\n")
        script = ENGINE.format(calls=shlex.quote(str(self.calls)), exec=starts, debootstrap=debootstrap)
        self.put("apptainer", script)

    def looked_at(self) -> BuildHost:
        return BuildHost((find_engine(os.environ),), os.environ)

    def trial(self, name: str) -> CapabilityTrial:
        return next(trial for trial in self.looked_at().trials if trial.name == name)

    def tries(self) -> list[str]:
        """Return the engine's commands since the last call, except for its version and help."""
        found = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return [line for line in found if line not in {"--version", "build --help"}]


@pytest.fixture
def place(tmp_path: Path, clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    del clean_home
    needs("unshare")
    return Place(tmp_path, monkeypatch)


def doctor(capsys: Capture) -> tuple[int, Any]:
    code = main(["doctor", "--json"])
    return code, validated(capsys.readouterr().out, "doctor")


@pytest.mark.usefixtures("no_namespaces")
def test_a_build_that_can_start_no_container_ends_before_its_first_step(
    place: Place, make_layer: MakeLayer, layers: Path, capsys: Capture
) -> None:
    place.has(CAPABILITIES, BEGINS)
    make_layer("base", BY_REGISTRY)
    output = place.folder / "x.sif"
    argv = ["build", "--layers", str(layers), "--base", "base", "-o", str(output)]
    assert main(argv) == 4
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert last.startswith(f"lumiimg: Apptainer 1.4.5 cannot start a container here: {ROOT}")
    assert ORDINARY in last
    assert "[1/" not in err
    assert not list(place.folder.glob("x.sif*")), "no image, no log"


@pytest.mark.usefixtures("no_namespaces")
def test_doctor_says_the_one_command_to_go_on_with_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def proposed_line() -> str:
        main(["doctor"])
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next"))

    def has(name: str) -> None:
        (place.bin / name).symlink_to("/bin/true")

    monkeypatch.delenv("MODULEPATH", raising=False)
    assert proposed_line() == "next:  lumiimg build --recipe demo -o demo.sif"
    (place.bin / "mksquashfs").unlink(missing_ok=True)
    place.has(CAPABILITIES, BEGINS)
    monkeypatch.setattr("os.path.exists", lambda path: str(path) == "/dev/fuse" or os.path.lexists(path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    elsewhere = "next, for another machine:  lumiimg build --recipe demo --definitions defs"
    assert proposed_line() == elsewhere, "nobody knows how packages are installed here"
    has("apt-get")
    install = "apt-get install --no-install-recommends squashfs-tools squashfuse uidmap"
    assert proposed_line() == f"next, as root:  {install}"
    has("sudo")
    assert proposed_line() == f"next:  sudo {install}"
    for name in ("newuidmap", "squashfuse_ll", "mksquashfs"):
        has(name)
    monkeypatch.setattr("lumiimg.build.doctor.own_ranges", lambda _: [])
    assert proposed_line().startswith("next:  sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ")
    for name in ("newuidmap", "squashfuse_ll", "mksquashfs"):
        (place.bin / name).unlink()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert proposed_line() == "next:  apt-get install --no-install-recommends squashfs-tools squashfuse"
    monkeypatch.setattr("os.path.exists", lambda path: str(path) != "/dev/fuse" and os.path.lexists(path))
    assert proposed_line() == "next:  apt-get install --no-install-recommends squashfs-tools"
    (place.bin / "apptainer").unlink()
    assert main(["doctor"]) == 4
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("no way to build works here: no working container engine here")
    assert last == "next:  apt-get install --no-install-recommends squashfs-tools"
    monkeypatch.setenv("MODULEPATH", "/appl/modules")
    assert proposed_line() == elsewhere, "users of a cluster are not root"


NOBODY_KNOWS = "echo 'FATAL:   something that nobody has seen before'; exit 255"
WHICH = {
    "it works": (STARTS, None, EngineKind.APPTAINER),
    "it starts nothing": (CAPABILITIES, None, EngineKind.NAMESPACES),
    "it starts nothing, and nobody knows why": (NOBODY_KNOWS, None, EngineKind.NAMESPACES),
    "it starts nothing, and is named": (CAPABILITIES, "apptainer", EngineKind.APPTAINER),
    "it works, and the kernel's is named": (STARTS, "namespaces", EngineKind.NAMESPACES),
}


def works_elsewhere(data: dict[str, Any]) -> bool:
    """Return whether an engine starts containers, but not those that builds need."""
    return any(each["works"] and each["name"].startswith("a container by") for each in data["trials"])


@pytest.mark.parametrize(("starts", "named", "kind"), WHICH.values(), ids=WHICH.keys())
def test_doctor_and_builds_take_the_same_engine(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Capture, starts: str, named: str | None, kind: EngineKind
) -> None:
    if named:
        monkeypatch.setenv("LUMIIMG_ENGINE", named)
    place.has(starts, BEGINS)
    code, data = doctor(capsys)
    assert data["engine"]["kind"] == kind
    if (starts, named) == (STARTS, None):
        trials = {trial["name"]: trial["said"] for trial in data["trials"]}
        assert (trials[CONTAINER], trials["debootstrap"]) == ("a program ran in one", f"{place.bin}/debootstrap")
        asked = next(words for words in place.tries() if words.startswith("exec"))  # the very words of a build
        assert "--no-home --cleanenv" in asked
        assert ("--fakeroot" in asked) == (os.geteuid() != 0)
    if (starts, named) == (CAPABILITIES, None):
        (passed_over,) = (trial for trial in data["trials"] if trial["said"].startswith(ROOT))
        assert passed_over["name"] == "a container by Apptainer 1.4.5"
        assert passed_over["said"].endswith("; `check` tries it anyway, as jobs do")
    is_passed_by = data["advice"]["next"] == "unset LUMIIMG_ENGINE"
    assert is_passed_by == (named == "apptainer" and starts == CAPABILITIES and code != 0 and works_elsewhere(data))
    assert host_for_builds(os.environ).engine.kind is kind
    assert (code == 0) == (named is None or starts == STARTS)
    of_jobs = EngineKind.NAMESPACES if named == "namespaces" else EngineKind.APPTAINER
    assert find_engine(os.environ).kind is of_jobs, "a check is by the engine of jobs, whether it works or not"


def proposed(capsys: Capture) -> list[str]:
    """Return the commands that `lumiimg` without arguments proposes."""
    capsys.readouterr()
    assert main([]) == 0
    return [
        line.strip() for line in capsys.readouterr().out.partition("next,")[2].splitlines() if line[:7] == " " * 6 + "l"
    ]


def test_builds_take_the_second_container_engine_where_the_first_starts_nothing(place: Place, capsys: Capture) -> None:
    place.has(STARTS, BEGINS)
    script = (place.bin / "apptainer").read_text().replace("apptainer version 1.4.5", "singularity-ce version 4.1.3")
    place.has(CAPABILITIES, BEGINS)
    place.put("singularity", script)
    assert host_for_builds(os.environ).engine.name == "SingularityCE 4.1.3"
    code, data = doctor(capsys)
    assert (code, data["engine"]["kind"]) == (0, "singularity")
    shown = {trial["name"]: trial["works"] for trial in data["trials"] if trial["name"].startswith("a container")}
    assert shown["a container"]
    assert shown["a container by Apptainer 1.4.5"] is False
    assert any(name.startswith("a container by namespaces of Linux") for name in shown)
    asked = place.folder / "asked"
    place.put("singularity", f"#!/bin/sh\nmkdir -p {asked}\n")
    assert find_engine(os.environ).name == "Apptainer 1.4.5"
    assert not asked.exists(), "a check by the first asks no other"


def test_lumiimg_alone_runs_nothing_and_leaves_to_doctor_what_works_here(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (here := place.folder / "here").mkdir()
    monkeypatch.chdir(here)
    assert proposed(capsys) == ["lumiimg doctor", "lumiimg list"]
    (here / "lumiimg.lock").touch()
    assert proposed(capsys) == ["lumiimg build --locked -o image.sif"]
    assert not place.calls.exists(), "nothing is run"


def test_a_base_that_debootstrap_cannot_make_is_reported_with_what_to_do(
    place: Place, make_layer: MakeLayer, layers: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    place.has(STARTS, NO_DEVICES)
    make_layer("boot", BY_DEBOOTSTRAP)
    argv = ["build", "--layers", str(layers), "--base", "boot", "-o", str(place.folder / "x.sif")]
    assert main([*argv, "--mirror", "debian=http://127.0.0.1:9/debian"]) == 1
    err = capsys.readouterr().err
    assert "lumiimg: layer boot (bootstrap): debootstrap must create device files" in err
    assert "noexec" not in err
    assert "--add-subuids" in err
    assert "--base FILE.sif" in err
    monkeypatch.setattr(namespaces, "PROGRAM", ("/bin/false",))
    shutil.rmtree(place.folder / "cache")
    make_layer("base", BY_REGISTRY)
    argv[argv.index("boot")] = "base"
    assert main([*argv, "--mirror", "docker.io=http://127.0.0.1:9", "--verbose", "--force"]) == 1
    assert any(words.endswith(" 01-base.def") for words in place.tries()), "the engine was asked for it"


@pytest.mark.usefixtures("no_namespaces")
def test_a_failure_that_nobody_knows_or_that_may_pass_is_left_open(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for starts in (NOBODY_KNOWS, "exit 7", "echo 'No space left on device'; exit 1"):
        place.has(starts, BEGINS)
        assert main(["doctor"]) == 3
        words = " ".join(capsys.readouterr().out.split())
        assert words.startswith("it is not known whether builds work here")
        assert "? a container: " in words
    place.has(STARTS, BEGINS)
    monkeypatch.setattr("lumiimg.build.build_host.debootstrap_at", lambda _: None)
    assert place.trial("debootstrap").said == "not on PATH"
    (place.bin / "mksquashfs").unlink(missing_ok=True)
    assert main(["doctor"]) == 1
    assert "✗ mksquashfs: not on PATH" in " ".join(capsys.readouterr().out.split()), "without it, nothing is built"


REFUSES = "case \"$*\" in *--fakeroot*) echo 'FATAL:   {why}'; exit 255;; esac; "


def test_without_ids_of_its_own_an_engine_that_refuses_fakeroot_builds_without_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Such as SingularityCE 4.1.3; Apptainer 1.4.5 continues instead."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    why = "could not use fakeroot: no mapping entry found in /etc/subuid for me"
    place.has(f"{REFUSES.format(why=why)}{STARTS}", BEGINS)
    assert main(["doctor"]) == 0
    assert "✓ a container: only without --fakeroot: this user has no range" in " ".join(capsys.readouterr().out.split())
    place.tries()
    machine = place.looked_at()
    assert "--fakeroot" not in machine.engine.build_flags
    assert len([words for words in place.tries() if "--fakeroot" in words]) == 1, "tried once, and then left out"
    monkeypatch.setattr(namespaces, "PROGRAM", ("/bin/false",))
    place.has(f"{REFUSES.format(why='not today')}{STARTS}", BEGINS)
    assert main(["doctor"]) == 3, "for no known reason it is no promise"
    assert "? a container: only without --fakeroot: FATAL: not today" in " ".join(capsys.readouterr().out.split())


def test_where_no_container_has_its_own_processes_builds_go_on_without(place: Place, capsys: Capture) -> None:
    refuses = (
        "case \"$*\" in *--pid*) echo 'FATAL:   mount proc->/proc error: operation not permitted'; exit 255;; esac"
    )
    place.has(f"{refuses}; {STARTS}", BEGINS)
    assert not place.looked_at().container.has_pid_namespace
    assert main(["doctor"]) == 0
    assert "✓ a container: processes that a script leaves running cannot be stopped: FATAL: mount proc" in " ".join(
        capsys.readouterr().out.split()
    )
