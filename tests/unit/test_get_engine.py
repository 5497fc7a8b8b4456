"""What .ci/get-engine requests from apt and installs: real apt-get on sources and lists of the tests, and stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shared.programs import needs

ROOT = Path(__file__).parents[2]


RECORDS = """\
#!/bin/sh
echo "${0##*/} $*" >>"$RECORD"
"""
APT_GET = """\
for package; do :; done
case "$*" in
indextargets*) echo 'Debian|Debian|main|http://mine.test/debian/' ;;
*--simulate*) printf '%b' "Inst $package (1 x)\\n$(cat "$BIN/$package.changes" 2>/dev/null)" ;;
*install*) cp "$BIN/sudo" "$BIN/$(cat "$BIN/$package.program" 2>/dev/null || echo "$package")" ;;
esac
"""
APT_CACHE = """\
echo "$2:"
echo '  Candidate: (none)'
"""
PROGRAMS = {"squashfs-tools": "mksquashfs", "squashfuse": "squashfuse_ll", "uidmap": "newuidmap"}


class Machine:
    """A Debian machine without an engine; its programs that install are stand-ins that record their arguments."""

    def __init__(self, folder: Path, *, uid: int) -> None:
        self.record = folder / "record"
        self._bin = folder / "bin"
        self._bin.mkdir()
        # stand-ins before links, as writing to a link would overwrite the program that it points to
        standins = {
            "apt-get": APT_GET,
            "apt-cache": APT_CACHE,
            "python3": "",
            "sudo": 'exec "$@"\n',
            "tee": "cat >/dev/null\n",
            "id": f"echo {uid}\n",
        }
        for name, body in standins.items():
            (self._bin / name).write_text(RECORDS + body)
            (self._bin / name).chmod(0o755)
        for package, program in PROGRAMS.items():
            (self._bin / f"{package}.program").write_text(program)
        for name in ("awk", "bash", "cat", "cp", "dpkg", "env", "mkdir", "sed", "tail"):
            (self._bin / name).symlink_to(str(shutil.which(name)))

    def would_change(self, package: str, changes: str) -> None:
        """Make apt report that an installation would also do this."""
        (self._bin / f"{package}.changes").write_text(changes)

    def get_engine(self, *argv: str) -> subprocess.CompletedProcess[str]:
        self.record.write_text("")
        env = {"PATH": str(self._bin), "RECORD": str(self.record), "BIN": str(self._bin)}
        return subprocess.run(
            [ROOT / ".ci" / "get-engine", *argv], env=env, capture_output=True, text=True, check=False
        )

    @property
    def installed(self) -> list[str]:
        """Return what apt-get was requested to install for real."""
        return [
            line for line in self.record.read_text().splitlines() if " install " in line and "--simulate" not in line
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    needs("dpkg")
    return Machine(tmp_path, uid=1000)


def test_packages_of_the_own_release_are_named_then_installed_and_no_suite_is_added(machine: Machine) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path("/etc/apt").rglob("*")}
    done = machine.get_engine()
    assert done.returncode == 0, done.stderr
    assert "installing with apt, from this machine's own release: uidmap\n" in done.stderr
    assert [line.split()[-1] for line in machine.installed if line.startswith("apt-get")] == [
        "squashfs-tools",
        *(["squashfuse"] if Path("/dev/fuse").exists() else []),
        *([] if Path("/usr/sbin/debootstrap").exists() else ["debootstrap"]),
        "uidmap",
    ]
    words = machine.record.read_text()
    # apt would upgrade login and passwd, which have the same source package as uidmap
    assert all("Upgrade-By-Source-Package=false" in line for line in words.splitlines() if " --simulate " in line)
    assert not [word for word in ("apptainer", "singularity", "-t sid", "tee") if word in words]
    assert {path: path.stat().st_mtime_ns for path in Path("/etc/apt").rglob("*")} == before


def test_a_package_that_would_change_others_is_named_and_stops_none_that_would_not(machine: Machine) -> None:
    machine.would_change("uidmap", r"Inst login [1:4.13+dfsg1-1] (1:4.13+dfsg1-1+deb12u2 x) []\nRemv passwd [4.13]\n")
    done = machine.get_engine()
    assert done.returncode == 4
    assert "not installed: uidmap: that would also change packages that are there: login passwd\n" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith(
        "still missing: uidmap; to get it all the same: sudo apt-get install --no-install-recommends uidmap"
    )
    assert [line for line in machine.installed if "squashfs-tools" in line]
    assert not [line for line in machine.installed if "uidmap" in line]


def test_a_question_and_a_slip_install_nothing(machine: Machine) -> None:
    done = machine.get_engine("--check")
    assert done.returncode == 1
    assert "missing: squashfs-tools" in done.stderr
    assert machine.get_engine("--from-side").returncode == 2
    assert "apt-get" not in machine.record.read_text()
