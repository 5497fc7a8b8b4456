"""A layer is exactly what its script did to files: all build strategies give the result of the engine alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.files import EPOCH
from lumiimg.image import FileKind, open_image
from lumiimg.image.compare import FileDifference, compare
from tests.engine.conftest import built_by_engine, inside, lumiimg, write_layer
from tests.shared.nasty_layers import LAYERS, script
from tests.shared.programs import needs, patient, tenth_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

STACKS = tenth_of(500)
SEED = 19


def write_layers(folder: Path, scripts: Sequence[str]) -> list[str | Path]:
    """Write a layer for each script; return the options that request them."""
    words: list[str | Path] = ["--layers", folder]
    for number, text in enumerate(scripts):
        write_layer(folder / f"n{number}", text)
        words += ["--add", f"n{number}"]
    return words


def build(output: Path, way: str, cache: Path, *words: str | Path, code: int = 0) -> str:
    done = lumiimg("build", "-o", output, "--strategy", way, *words, env={"LUMIIMG_CACHE": str(cache)})
    assert done.code == code, done.err
    return done.err


def differences(engines: Path, ours: Path) -> list[FileDifference]:
    """Return the differences, except for times that our builds limit to EPOCH, as newer ones would change the bytes."""
    with open_image(engines) as first, open_image(ours) as second:

        def is_capped(path: str) -> bool:
            before, after = (opened.root.stat(path, follow=False).mtime_s for opened in (first, second))
            return after == min(before, EPOCH)

        found = [one for one in compare(first.root, second.root).files if one.path.startswith("/nasty")]
        return [one for one in found if one.what != "time" or not is_capped(one.path)]


@pytest.fixture(scope="module")
def nasty(small: Path, images: Path, engine: Engine) -> dict[str, Path]:
    """The same stacks, built by every strategy."""
    folder = images / "nasty"
    words = ["--base", small, *write_layers(folder / "layers", [script(n, STACKS, SEED) for n in range(LAYERS)])]
    found = {way: folder / f"{way}.sif" for way in ("overlay", "sandbox", "mixed")}
    found["engine"] = built_by_engine(engine, folder / "engine.sif", *words)
    for way in ("overlay", "sandbox"):
        build(found[way], way, folder / f"cache-{way}", *words)
    # the top layer in a sandbox, on layers made by overlays
    build(folder / "lower.sif", "overlay", folder / "cache-mixed", *words[:-2])
    build(found["mixed"], "sandbox", folder / "cache-mixed", *words)
    return found


@pytest.mark.threat
@pytest.mark.parametrize("way", ["overlay", "sandbox", "mixed"])
def test_every_way_does_what_the_engine_alone_does(way: str, nasty: dict[str, Path]) -> None:
    assert differences(nasty["engine"], nasty[way]) == []


def test_an_engine_shows_the_same_of_layers(nasty: dict[str, Path], engine: Engine) -> None:
    script = r"find /nasty -printf '%y %m %s %l %p\n' 2>&1 | LC_ALL=C sort | cat -v"
    reported = [inside(engine, nasty[way], "sh", "-c", script) for way in ("engine", "overlay")]
    assert reported[0] == reported[1]
    assert len(reported[0].splitlines()) > 10 * STACKS


CAPABLE = "import os, struct; os.setxattr('/opt/capable', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 10, 0, 0, 0))"


WAITS = "echo waiting\nwhile read -r line </etc/passwd; do :; done\ntrue\n"
"""Exits with 0 even if it could not read the file."""


def test_layers_whose_file_system_dies_are_not_taken_for_empty(small: Path, tmp_path: Path) -> None:
    needs("pkill")
    below, log = tmp_path / "below.sif", tmp_path / "x.sif.log"
    below.hardlink_to(small)
    words = ["--strategy", "overlay", "--base", below, *write_layers(tmp_path / "layers", [WAITS])]
    argv: list[str | Path] = [sys.executable, "-m", "lumiimg", "build", "-o", tmp_path / "x.sif", *words]
    env = os.environ | {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as child:
        wait_until(lambda: log.exists() and "waiting" in log.read_text())
        subprocess.run(["pkill", "-KILL", "-f", f"squashfuse.*{below}"], check=True)
        _, refused = child.communicate(timeout=patient(60))
    assert (child.returncode, "lumiimg: layer n0: " in refused) == (1, True), refused
    assert not (tmp_path / "x.sif").exists()
    kept = lumiimg("cache", "ls", "--json", env={"LUMIIMG_CACHE": str(tmp_path / "cache")}).data["entries"]
    assert ["n0"] not in [entry["layers"] for entry in kept]


BELOW = f"""\
mkdir -p /opt/rocm-6/bin /opt/rocm-6/empty; ln -s rocm-6 /opt/rocm
echo 1 >/opt/a; ln /opt/a /opt/b
mkfifo /opt/pipe
touch /opt/capable; python3 -c "{CAPABLE}"
mkdir /opt/setgid; chmod 2775 /opt/setgid
touch /opt/x /opt/.wh.x
"""
ABOVE = """\
rm /opt/rocm; mkdir -p /opt/rocm/empty
mv /opt/a /opt/c; echo 2 >>/opt/b; grep 2 /opt/c
mv /opt/pipe /opt/moved; ln /opt/moved /opt/linked; test -p /opt/linked
chmod 755 /opt/capable
touch /opt/setgid/file
mkdir /opt/.wh..wh..opq
"""


@pytest.mark.threat
@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_what_overlays_of_users_lose_is_preserved(way: str, small: Path, tmp_path: Path) -> None:
    words = ["--base", small, *write_layers(tmp_path / "layers", [BELOW, ABOVE])]
    build(tmp_path / "x.sif", way, tmp_path / "cache", *words)
    with open_image(tmp_path / "x.sif") as image:
        root = image.root
        assert [entry.name for entry in root.list_dir("/opt/rocm")] == ["empty"]
        assert root.stat("/opt/b").identity == root.stat("/opt/c").identity
        assert root.read_bytes("/opt/c", 10) == b"1\n2\n"
        assert root.stat("/opt/linked").kind is FileKind.FIFO
        assert root.stat("/opt/linked").identity == root.stat("/opt/moved").identity
        assert b"security.capability" in (root.xattrs("/opt/capable") or {})
        assert root.stat("/opt/setgid").permissions == 0o2775
        assert all(root.exists(f"/opt/{name}") for name in ("x", ".wh.x", ".wh..wh..opq"))
