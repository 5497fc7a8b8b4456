"""The Dockerfile of a stack, really built by Buildah, gives the image that lumiimg builds from the same stack; and
images in a real Podman, which has the API of Docker.

Buildah's `chroot` isolation needs no more than an engine does; the result of Docker's BuildKit for the same file is not
tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import PACKED_AS_OURS, built, check, findings, inside, lumiimg, write_layer
from tests.shared.build_traces import shown
from tests.shared.layer_builder import LAYER
from tests.shared.programs import needs, patient
from tests.shared.registries import layer_of, push
from tests.shared.small_roots import small_root

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
TOP = f"""{LAYER}files = ["word"]
[environment.set]
PYTHONNOUSERSITE = "of top"
[environment.prepend]
PATH = "/opt/top/bin"
LD_LIBRARY_PATH = "/opt/top/lib"
[sources.thing]
url = "https://x.test/thing.tar.gz"
file = "thing.tar.gz"
key = "one"
source = "the tests"
"""
POST = """\
test -z "${PYTHONNOUSERSITE-}"
mkdir -p /opt/top/bin
tar -xf "$SOURCE_THING" -C /opt/top
cat "$LAYER_FILES/word" >/opt/top/seen
printf '#!/bin/sh\\necho ran\\n' >/opt/top/bin/top-program
chmod 755 /opt/top/bin/top-program
"""
ENV: dict[str, object] = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["bash"]}
DIFFERS = (
    "/etc/host",
    "/.singularity.d/",
    "/.lumiimg",
    "/var/log/",
    "/var/cache/",
    "/dev/",
    "/proc",
    "/sys",
    "/run",
    "/etc/mtab",
)
"""Files that each builder adds, and files that contain dates."""


@pytest.mark.everything
def test_a_dockerfile_built_and_converted_is_the_image_that_lumiimg_builds(
    engine: Engine, bare: Path, registry: str, mirror: str, tmp_path: Path
) -> None:
    needs("buildah")
    push(registry, "library/debian", "trixie-slim", layer_of(bare), config=ENV)
    test = 'test "$PYTHONNOUSERSITE" = "of top"; test "$(top-program)" = ran; test -e /opt/top/thing\n'
    layers = write_layer(tmp_path / "layers/top", POST, TOP, test_sh=test, word="word\n")
    (tmp_path / "thing").write_text("a thing\n")
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "thing", "thing")
    request: list[str | Path] = ["--recipe", "demo", "--layers", layers, "--add", "top"]
    request += ["--source", f"thing={tmp_path / 'mine.tar.gz'}"]
    context = tmp_path / "context"
    mirrors = ["--mirror", f"docker.io=http://{registry}", "--mirror", f"debian={mirror}"]
    written = lumiimg("build", *request, *mirrors, "--definitions", context, "--as", "dockerfile", "--json")
    assert written.code == 0, written.err

    store = ["--storage-driver=vfs", f"--root={tmp_path / 'storage'}", f"--runroot={tmp_path / 'run'}"]

    def buildah(*words: str | Path) -> str:
        done = subprocess.run(["buildah", *store, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    try:
        buildah("bud", "--isolation=chroot", "--tls-verify=false", "--format=docker", "--tag=image", context)
        for kind in ("docker-archive", "oci-archive"):
            buildah("push", "image", f"{kind}:{tmp_path / kind}.tar")
        size = json.loads(buildah("inspect", "--type=image", "image"))["Docker"]["config"]["Env"]
    finally:  # files of other owners
        subprocess.run(["buildah", "unshare", "rm", "-rf", tmp_path / "storage", tmp_path / "run"], check=False)
    path = "/opt/top/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert {*size} == {f"PATH={path}", "PYTHONNOUSERSITE=of top", "LD_LIBRARY_PATH=/opt/top/lib"}

    ours, theirs = built(tmp_path / "ours.sif", *request), tmp_path / "theirs.sif"
    flags = [*(["--fakeroot"] if os.geteuid() else []), PACKED_AS_OURS]
    words: list[str | Path] = [engine.path, "build", *flags, theirs]
    subprocess.run([*words, f"docker-archive:{tmp_path}/docker-archive.tar"], capture_output=True, check=True)
    # without owners and hard links: an engine gives all files of Docker images to root, and `layer_of` drops hard links
    found, wanted = ({name: (*seen[:2], seen[5]) for name, seen in shown(one).items()} for one in (theirs, ours))
    paths = {name for name in found.keys() | wanted.keys() if not name.startswith(DIFFERS)}
    assert len(paths) > 5000
    assert {name: (found.get(name), wanted.get(name)) for name in paths if found.get(name) != wanted.get(name)} == {}

    # as a static check sees them, they are one image, in each form that Docker's people have
    answers = [check(image, "--level", "static") for image in (ours, theirs, *tmp_path.glob("*-archive.tar"))]
    assert len({(answer.code, *sorted(findings(answer))) for answer in answers}) == 1
    report = lumiimg("show", theirs, "--json").data["plan"]
    assert [layer["name"] for layer in (report["base"], *report["layer"])] == ["debian-13", "netprobe", "top"]
    # a variable of the user's shell does not replace that of a layer, though it would replace that of an ENV
    shell = os.environ | {"PYTHONNOUSERSITE": "mine"}
    for image in (ours, theirs):
        ran = subprocess.run([engine.path, "exec", image, "env"], env=shell, capture_output=True, text=True, check=True)
        assert "PYTHONNOUSERSITE=of top\n" in ran.stdout
        assert inside(engine, image, "sh", "-c", "top-program; cat /opt/top/seen") == "ran\nword\n"
        assert subprocess.run([engine.path, "test", image], capture_output=True, check=False).returncode == 0


def test_an_image_of_podman_is_read_by_its_name(tmp_path: Path) -> None:
    needs("podman")
    needs("buildah")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(small_root(tmp_path / "root"), ".")
    short = Path(tempfile.mkdtemp(prefix="podman-"))  # Podman takes no --runroot of more than 50 characters
    podman = ["podman", "--storage-driver=vfs", f"--root={tmp_path / 'storage'}", f"--runroot={short / 'run'}"]
    at = short / "socket"
    env = {"DOCKER_HOST": f"unix://{at}", "LUMIIMG_CACHE": str(tmp_path / "cache")}
    try:
        imported: list[str | Path] = [*podman, "import", "--change=ENV A=1", tmp_path / "root.tar", "small:1"]
        subprocess.run(imported, capture_output=True, check=True)
        with subprocess.Popen([*podman, "system", "service", "--time=0", f"unix://{at}"]) as service:
            try:
                deadline = time.monotonic() + patient(30)
                while not at.exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                result = lumiimg("explain", "docker-daemon:small:1", "--json", env=env)
                assert result.data["image"] == "docker-daemon://small:1", result.err
                assert "MiB to copy from the engine" in result.err
                assert "to copy" not in lumiimg("explain", "docker-daemon:small:1", "--json", env=env).err, "it is here"
                absent = lumiimg("explain", "docker-daemon:none:1", env=env)
                assert (absent.code, absent.err.count("\n")) == (2, 1)
                assert "the engine does not have it; docker pull none:1" in absent.err
            finally:
                service.terminate()
    finally:
        subprocess.run(["buildah", "unshare", "rm", "-rf", tmp_path / "storage", short], check=False)
    gone = lumiimg("check", "docker-daemon:small:1", env=env)
    assert (gone.code, gone.err.count("\n")) == (4, 1)
    assert "no Docker engine answers at unix://" in gone.err
