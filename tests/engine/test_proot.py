"""Builds on machines without subordinate ids: proot instead of root, and the same image except for owners.

The engine is a stand-in for SingularityCE; apt, dpkg, its maintainer scripts, pip and proot are real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.image import FileKind, open_image
from tests.engine.conftest import built, inside, lumiimg, write_layer
from tests.shared.build_traces import SINGULARITY, leftovers, shown, strays
from tests.shared.layer_builder import LAYER
from tests.shared.programs import needs, patient, unwrapped, wait_until
from tests.shared.registries import layer_of, push

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

PROGRAMS = ("mksquashfs", "sh", "bash", "env", "rm", "python3", "cat", "mkdir", "tar", "proot", "sleep")
BELOW = "mkdir /opt/below; echo 'export FROM_BELOW=1' >>\"$SINGULARITY_ENVIRONMENT\"\n"
PACKAGE = """\
test "$(id -u)" = 0
test "$V_BELOW" = 1; test "$FROM_BELOW" = 1
work=/opt/work
mkdir -p $work/DEBIAN $work/opt/pkg/folder
cat >$work/DEBIAN/control <<'CONTROL'
Package: small
Version: 1
Architecture: all
Maintainer: the tests <tests@example.org>
Description: small
CONTROL
cat >$work/DEBIAN/postinst <<'POSTINST'
#!/bin/sh
set -e
useradd --system small
chown small:small /opt/pkg/folder /opt/pkg/of-small
chmod 4755 /opt/pkg/tool
test "$(stat -c %a /opt/pkg/folder)" = 2770
POSTINST
chmod 755 $work/DEBIAN/postinst
chmod g-s $work/DEBIAN
echo tool >$work/opt/pkg/tool; echo x >$work/opt/pkg/of-small; chmod 640 $work/opt/pkg/of-small
ln $work/opt/pkg/tool $work/opt/pkg/hard; ln -s tool $work/opt/pkg/soft; chmod 2770 $work/opt/pkg/folder
dpkg-deb --build --root-owner-group $work /opt/small.deb
dpkg -i /opt/small.deb
rm -r $work /opt/small.deb
echo secret >/opt/closed; chmod 000 /opt/closed
mkdir /opt/nobody; echo y >/opt/nobody/y; chmod 000 /opt/nobody
rm /etc/debian_version; rm -r /opt/below; mkdir /opt/below; mkfifo /opt/pipe
echo 'export FROM_SCRIPT=1' >>"$SINGULARITY_ENVIRONMENT"
(sleep 300 &)
"""
TEST = 'test "$V_PACKAGE" = 1 && test "$FROM_SCRIPT" = 1 && test -u /opt/pkg/tool && id small\n'
DIFFERENT = (
    "/var/log/",  # times
    "/var/cache/ldconfig/",  # numbers of inodes
    "/.singularity.d/",  # says which engine it was, in labels.json
)


class Place:
    """Layers, and a machine without root."""

    def __init__(self, folder: Path, base: Path, engine: Engine) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in PROGRAMS:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        (self.bin / "singularity").write_text(SINGULARITY.format(engine=engine.path, path=os.environ["PATH"]))
        (self.bin / "singularity").chmod(0o755)
        self.layer("below", BELOW)
        self.layer("package", PACKAGE, test_sh=TEST)
        self.base = base
        self.cache = folder / "cache"
        self.env = {"LUMIIMG_CACHE": str(self.cache), "PATH": str(self.bin)}

    def layer(self, name: str, post: str, **files: str) -> None:
        toml = f'{LAYER}[environment.set]\nV_{name.upper()} = "1"\n'
        write_layer(self.folder / "layers" / name, post, toml, **files)

    def argv(self, output: Path, *names: str) -> list[str | Path]:
        adds = [word for name in names for word in ("--add", name)]
        return ["build", "--base", self.base, "--layers", self.folder / "layers", *adds, "-o", output, "--json"]


@pytest.fixture(scope="module")
def place(images: Path, small: Path, engine: Engine) -> Place:
    needs("proot")
    (images / "proot").mkdir()
    return Place(images / "proot", small, engine)


@pytest.fixture(scope="module")
def image(place: Place) -> Path:
    output = place.folder / "proot.sif"
    start = time.monotonic()
    done = lumiimg(*place.argv(output, "below", "package"), env=place.env)
    assert done.code == 0, done.err
    assert done.data["strategy"] == "sandbox"
    assert time.monotonic() - start < patient(200), "what a script leaves behind is not waited for"
    return output


def test_but_for_owners_it_is_the_image_of_the_overlay_way(place: Place, image: Path) -> None:
    other = place.folder / "overlay.sif"
    env = {"LUMIIMG_CACHE": str(place.folder / "cache-overlay")}
    done = lumiimg(*place.argv(other, "below", "package"), "--strategy", "overlay", env=env)
    assert done.code == 0, done.err
    one, two = shown(other), shown(image)
    base = shown(place.base)
    owners = {path: entry[2:4] for path, entry in two.items()}
    assert {path for path, owner in owners.items() if owner not in {(0, 0), base.get(path, ((),) * 4)[2:4]}} == set()
    assert any(owner != (0, 0) for owner in owners.values()), "what no layer touched is the base's own"
    for path in one.keys() | two.keys():
        here: Any = one.get(path)
        there: Any = two.get(path)
        facts = [entry and (entry[0], *entry[4:]) for entry in (here, there)]
        assert path.startswith(DIFFERENT) or facts[0] == facts[1], path
        # what is closed to its owner is opened only to the owner, as a user's mksquashfs could not read it otherwise
        if here and there and here[1] != there[1]:
            assert there[1] == here[1] | (0o700 if here[0] is FileKind.DIRECTORY else 0o400), path
    assert two["/opt/closed"][1] == 0o400
    assert one["/opt/closed"][1] == 0
    assert two["/opt/pkg/tool"][1] == 0o4755
    assert two["/opt/pkg/tool"][4] == 2, "hard links"
    assert two["/opt/pkg/folder"][1] == 0o2770


def test_what_it_has_is_there_for_those_who_run_it_and_nothing_else_is_left(
    place: Place, image: Path, engine: Engine
) -> None:
    script = "echo $V_BELOW $V_PACKAGE $FROM_BELOW $FROM_SCRIPT; dpkg-query -W -f '${Status}' small; test -e /opt/below"
    assert inside(engine, image, "sh", "-c", script) == "1 1 1 1\ninstall ok installed"
    with open_image(image) as opened:
        assert not opened.root.exists("/etc/debian_version")
        assert not opened.root.exists("/opt/work")
    assert leftovers(place.cache, place.folder) == []
    assert strays(str(place.cache)) == []


def test_a_build_that_is_ended_or_fails_leaves_nothing(place: Place, tmp_path: Path) -> None:
    sleeps = ("sleep\x00301", "sleep\x00302")
    place.layer("waits", "dpkg --version; (setsid sleep 301 &); sleep 302\n")
    output, cache = tmp_path / "x.sif", tmp_path / "cache"
    env = place.env | {"LUMIIMG_CACHE": str(cache)}
    argv = [sys.executable, "-m", "lumiimg", *map(str, place.argv(output, "waits"))]
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(argv, env=os.environ | env, stderr=subprocess.PIPE, text=True) as child:
            wait_until(lambda: all(map(strays, sleeps)) or child.poll() is not None, 120)
            assert child.poll() is None, child.stderr and child.stderr.read()
            child.send_signal(number)
            child.wait(patient(60))
        wait_until(lambda: not any(map(strays, (*sleeps, str(cache)))))
        assert not output.exists()
    place.layer("fails", "dpkg -i /opt/none.deb\n")
    done = lumiimg(*place.argv(output, "fails"), env=env)
    assert (done.code, "none.deb" in done.err) == (1, True), done.err
    # the next build removes what a build killed by SIGKILL has left
    assert leftovers(cache, tmp_path) == []


def test_a_proot_that_shows_this_machines_files_is_not_used(place: Place, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    shutil.copytree(place.bin, programs, symlinks=True)
    (programs / "proot").unlink()
    # like 5.1.0 with statx(2): the program runs, but sees files of this machine
    (programs / "proot").write_text('#!/bin/bash\nwhile [ ! -x "$1" ]; do shift; done\nexec "$@"\n')
    (programs / "proot").chmod(0o755)
    (tmp_path / "lumiimg").mkdir()
    (tmp_path / "lumiimg/config.toml").write_text('[mirrors]\ndebian = "http://127.0.0.1:9"\n')
    env = {"LUMIIMG_CACHE": f"{tmp_path}/cache", "PATH": f"{programs}", "XDG_CONFIG_HOME": f"{tmp_path}"}
    doctor = json.loads(lumiimg("doctor", "--json", env=env).out)
    [proot] = [trial for trial in doctor["trials"] if trial["name"] == "proot"]
    assert (proot["works"], "5.2.0 or newer is needed" in proot["said"]) == (False, True)
    plain = lumiimg(*place.argv(tmp_path / "below.sif", "below"), env=env)
    assert plain.code == 0, "it installs nothing, and needs no root"
    assert (plain.data["strategy"], plain.data["engine"]["kind"]) == ("sandbox", "singularity")
    done = lumiimg(*place.argv(tmp_path / "x.sif", "package"), env=env)
    assert done.code == 4
    assert "proot, which makes a user look like root, is not here" in unwrapped(done.err)
    elsewhere = "on another machine: lumiimg build … --site generic -o image.sif && rsync -P image.sif HOST:"
    assert elsewhere in done.err, "these tests have a site by LUMIIMG_SITE"


@pytest.mark.everything
def test_the_demo_and_layers_with_apt_and_pip_are_built_by_the_proot_of_debian_where_none_is_on_path(
    place: Place, mirror: str, registry: str, engine: Engine, tmp_path: Path
) -> None:
    """As on LUMI without its module: the base comes from a registry despite debootstrap, and proot runs all scripts."""
    debootstrap = '[[bootstrap]]\nagent = "debootstrap"\nfrom = "trixie"\nmirror = "debian"\n'
    layers = write_layer(tmp_path / "layers/slim", toml=LAYER.replace('"layer"', '"base"', 1) + debootstrap)
    slim = built(tmp_path / "slim.sif", "--layers", layers, "--base", "slim", "--mirror", f"debian={mirror}")
    push(registry, "library/debian", "trixie-slim", layer_of(slim))
    programs = tmp_path / "bin"
    shutil.copytree(place.bin, programs, symlinks=True)
    (programs / "proot").unlink()
    env = {"LUMIIMG_CACHE": f"{tmp_path}/cache", "PATH": f"{programs}"}
    mirrors = ("--mirror", f"docker.io=http://{registry}", "--mirror", f"debian={mirror}", "--layers", layers)
    done = lumiimg("build", *mirrors, "--recipe", "demo", "-o", tmp_path / "demo.sif", "--json", env=env)
    assert done.code == 0, done.err
    assert done.data["strategy"] == "sandbox"
    assert [stage["name"] for stage in done.data["stages"]][:2] == ["00-bootstrap", "01-debian-13"]
    assert inside(engine, tmp_path / "demo.sif", "/opt/lumiimg/netprobe/bin/handshake", "--help")
    words = ("--base", "debian-13", "--add", "netprobe", "--add", "pip:iniconfig==2.0.0", "--site", "generic")
    done = lumiimg("build", *mirrors, *words, "-o", tmp_path / "pip.sif", env=env)
    assert done.code == 0, done.err
    version = "import importlib.metadata as m; print(m.version('iniconfig'))"
    assert inside(engine, tmp_path / "pip.sif", "/opt/venv/bin/python", "-c", version) == "2.0.0\n"
