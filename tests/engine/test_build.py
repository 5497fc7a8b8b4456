"""Real builds: the image contains what was written, and a build that fails or is killed leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import ExitCode
from lumiimg.image import open_image
from lumiimg.image.sif import read_sif
from tests.engine.conftest import built, inside, lumiimg, write_layer
from tests.shared.build_traces import leftovers, strays
from tests.shared.layer_builder import LAYER
from tests.shared.programs import patient, wait_until

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

AWKWARD = {
    "QUOTES": """it's "quoted" `id` $(id) $HOME \\ !""",
    "LINES": "one\ntwo\n%post\n%labels\n  x y\n{{ VERSION }}\n",
    "EMPTY": "",
    "UNICODE": "ä€😀",
}
SCRIPT = r"""
for name in QUOTES LINES EMPTY UNICODE; do printf '%s' "${!name}" >"/opt/awkward-$name"; done
cat >/opt/heredoc <<'END'
#!/bin/sh
# a comment that stays
	a tab,   trailing blanks
back\slash {a} { { x } } 100% of it
END
cat "$LAYER_FILES/data.txt" >/opt/data
echo "$PWD $-" >/opt/where
exit 0
echo 'never reached' >/opt/heredoc
"""


@pytest.fixture(scope="module")
def awkward(images: Path) -> Path:
    """An image whose layer contains every awkward value, built under awkward names."""
    arguments = "".join(f'[arguments.{name}]\ndefault = ""\nhelp = "text"\n' for name in AWKWARD)
    environment = (
        '[environment.set]\nSPOKEN = "it\'s [not] a \\"build argument\\" $HOME"\n'
        '[environment.prepend]\nLD_LIBRARY_PATH = "/opt/awkward/lib"\n'
    )
    toml = LAYER + 'files = ["data.txt"]\n' + arguments + environment
    folder = write_layer(images / "my layers/awkward", SCRIPT, toml, data_txt="data {{ stays }}\n%labels\n")
    place = images / 'it\'s "a"\nplace'
    place.mkdir()
    words = [word for name, value in AWKWARD.items() for word in ("--arg", f"awkward.{name}={value}")]
    return built(place / "an image.sif", "--layers", folder, "--base", "debian-13", "--add", "awkward", *words)


def test_arguments_scripts_and_files_reach_the_image_byte_by_byte(engine: Engine, awkward: Path) -> None:
    for name, value in AWKWARD.items():
        assert inside(engine, awkward, "cat", f"/opt/awkward-{name}") == value
    wanted = SCRIPT.partition("<<'END'\n")[2].partition("END\n")[0]
    assert inside(engine, awkward, "cat", "/opt/heredoc") == wanted
    assert inside(engine, awkward, "cat", "/opt/data") == "data {{ stays }}\n%labels\n"
    folder, flags = inside(engine, awkward, "cat", "/opt/where").split()
    assert {"e", "u"} <= set(flags)
    for gone in (folder, "/opt/lumiimg/build"):
        assert "gone" in inside(engine, awkward, "sh", "-c", f"test -e {gone} || echo gone")


@pytest.mark.core
def test_our_reader_and_the_engine_read_the_same_of_the_image(engine: Engine, awkward: Path) -> None:
    done = subprocess.run([engine.path, "inspect", "--json", "--all", awkward], capture_output=True, check=True)
    attributes = json.loads(done.stdout)["data"]["attributes"]
    with open_image(awkward) as image:
        assert image.description.warnings == ()
        assert image.description.labels == attributes["labels"]
        assert image.description.labels["lumiimg.layer.02"] == "awkward"
        spoken = inside(engine, awkward, "sh", "-c", 'printf %s "$SPOKEN"')
        assert image.environment["SPOKEN"] == spoken == 'it\'s [not] a "build argument" $HOME'
        assert image.environment["LD_LIBRARY_PATH"].startswith("/opt/awkward/lib")
        path = "/usr/lib/x86_64-linux-gnu/libfabric.so.1"
        data = image.root.read_bytes(path, 1 << 30)
        digest = inside(engine, awkward, "sha256sum", path).split()[0]
    assert hashlib.sha256(data).hexdigest() == digest


def test_an_engine_signs_all_of_an_image_and_a_build_knows_it_again(
    engine: Engine, small: Path, tmp_path: Path
) -> None:
    env = {"APPTAINER_KEYSDIR": str(tmp_path / "keys"), "SINGULARITY_SYPGPDIR": str(tmp_path / "keys")}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [engine.path, *words], env=os.environ | env, check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.stdout.decode()

    run("key", "newpair", "-N", "Ann", "-E", "a@example.org", "-C", "", "-P", "", "--push=false", "--bit-length=2048")
    folder = write_layer(tmp_path / "layers/small", "echo text >/opt/small\n")
    image = tmp_path / "image.sif"
    words: list[str | Path] = ["build", "--base", small, "--layers", folder, "--add", "small", "-o", image, "--json"]
    assert lumiimg(*words).code == 0
    run("sign", image)
    entries = json.loads(run("verify", "--local", "--json", image))["SignerKeys"]
    assert len(entries) == len(read_sif(image).objects) - 1
    assert all(entry["Signer"]["DataCheck"] for entry in entries)
    before = image.read_bytes()
    assert lumiimg(*words).data["is_new"] is False
    assert image.read_bytes() == before


def test_a_bindings_module_does_not_break_a_build(tmp_path: Path) -> None:
    folder = write_layer(tmp_path / "l/bound", f"echo {tmp_path.name} >/opt/bound\n")
    bind = {"SINGULARITY_BIND": "/var/spool/slurmd,/opt/cray", "APPTAINER_BIND": "/nowhere", "SINGULARITYENV_X": "leak"}
    argv: list[str | Path] = ["build", "--layers", folder, "--base", "debian-13", "--add", "bound"]
    result = lumiimg(*argv, "-o", tmp_path / "x.sif", env=bind)
    assert result.code == 0, result.err


@pytest.mark.core
def test_a_script_that_fails_is_exit_1_with_the_layer_the_line_and_the_log(tmp_path: Path) -> None:
    # after `false | cat`, an engine's own %post continues; a layer's script does not
    folder = write_layer(tmp_path / "l/broken", "echo about to fail\nfalse | cat\necho never\n")
    output = tmp_path / "x.sif"
    result = lumiimg("build", "--layers", folder, "--base", "debian-13", "--add", "broken", "-o", output)
    assert result.code == ExitCode.NO
    last = result.err.strip().splitlines()[-1]
    assert last.startswith(
        "lumiimg: layer broken: post.sh line 2: false | cat: exit 1; the last line it printed: about"
    )
    assert f"the whole log: {output}.log" in last
    log = Path(f"{output}.log").read_text()
    assert "about to fail" in log
    assert "\nnever" not in log
    assert not output.exists()
    assert leftovers(tmp_path) == []
    for script, test, why in (
        ("exit 3\n", None, "the build stopped at: exit status 3;"),
        (
            "true\n",
            "echo 'not as promised'\nfalse\n",
            "test.sh line 2: false: exit 1; the last line it printed: not as ",
        ),
    ):
        (folder / "broken/post.sh").write_text(script)
        if test:
            (folder / "broken/test.sh").write_text(test)
        result = lumiimg("build", "--layers", folder, "--base", "debian-13", "--add", "broken", "-o", output)
        assert (result.code, why in result.err) == (ExitCode.NO, True), result.err
        assert not output.exists()


def test_the_same_from_nothing_is_the_same_bytes_and_nothing_above_an_equal_base_is_built(
    demo: Path, tmp_path: Path
) -> None:
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}

    def made(name: str, *words: str) -> list[str]:
        done = lumiimg("build", "--recipe", "demo", "-o", tmp_path / name, "--json", *words, env=env)
        assert done.code == 0, done.err
        assert (tmp_path / name).read_bytes() == demo.read_bytes(), name
        return [stage["name"] for stage in done.data["stages"] if not stage["reused"]]

    assert made("one.sif") == ["00-bootstrap", "01-debian-13", "02-netprobe", "image"]
    assert made("two.sif", "--fresh") == ["00-bootstrap", "01-debian-13", "image"]


def test_a_build_that_is_interrupted_leaves_no_half_image_and_the_next_one_works(tmp_path: Path) -> None:
    cache = tmp_path / 'it\'s a "cache"'
    # what was built before, as hard links to the same files
    shutil.copytree(real_cache() / "layers", cache / "layers", copy_function=os.link)
    marker = f"1000.{os.getpid()}"  # no other run's
    folder = write_layer(tmp_path / "l/slow", f"echo sleeping\n[ -e /opt/never ] || sleep {marker}\n")
    output = tmp_path / "x.sif"
    argv: list[str | Path] = ["build", "--layers", folder, "--base", "debian-13", "--add", "slow", "-o", output]
    environment = os.environ | {"LUMIIMG_CACHE": str(cache)}
    with subprocess.Popen([sys.executable, "-m", "lumiimg", *argv], env=environment, stderr=subprocess.PIPE) as child:
        wait_until(lambda: strays(f"sleep\0{marker}") != [])
        child.send_signal(signal.SIGINT)
        child.wait(timeout=patient(60))
    assert child.returncode != 0
    assert not output.exists()
    wait_until(lambda: strays(f"sleep\0{marker}") == [])
    assert leftovers(cache) == []
    (folder / "slow" / "post.sh").write_text("true\n")
    result = lumiimg(*argv, env={"LUMIIMG_CACHE": str(cache)})
    assert result.code == 0, result.err
    assert leftovers(cache, tmp_path) == []


def test_a_full_disk_is_named_in_one_line_and_leaves_nothing(demo: Path, tmp_path: Path) -> None:
    small = os.environ.get("LUMIIMG_TEST_SMALL_DISK")
    if not small:
        pytest.skip("LUMIIMG_TEST_SMALL_DISK names no small file system (a tmpfs of 64 MB)")
    disk = Path(small)

    def failed(*argv: str | Path, **env: str) -> str:
        result = lumiimg("build", *argv, env=env)
        assert result.code in {ExitCode.NO, ExitCode.MISSING_HERE}, result.err
        return result.err.strip().splitlines()[-1]

    layers = write_layer(tmp_path / "layers/large", "head -c 200M /dev/zero >/tmp/big\n")
    large = ("--layers", layers, "--add", "large", "--site", "generic")

    # the folder of the output, during the build: the size of the base in the image is not known before
    refusal = failed("--recipe", "demo", "-o", disk / "x.sif")
    assert (
        refusal
        == f"lumiimg: {disk}: cannot be written: No space left on device; free some space there, or write it elsewhere: -o"
    )
    assert [path.name for path in disk.iterdir()] in ([], ["x.sif.log"])
    (disk / "x.sif.log").unlink(missing_ok=True)
    # the same, if the size is known
    refusal = failed(*large, "--base", demo, "-o", disk / "x.sif")
    assert re.fullmatch(rf"lumiimg: {disk}: the build needs about .* is missing; .* write it elsewhere: -o", refusal)
    # TMPDIR, which is /tmp for scripts
    refusal = failed(*large, "--base", "debian-13", "-o", tmp_path / "y.sif", TMPDIR=small)
    assert refusal.startswith(f"lumiimg: {disk}: layer large: the disk or the quota is full; ")
    assert refusal.endswith("set TMPDIR to a folder with space")
    # the cache, before anything is done
    refusal = failed("--recipe", "demo", "-o", tmp_path / "y.sif", LUMIIMG_CACHE=f"{small}/cache")
    assert "the build needs about" in refusal
    assert refusal.endswith("LUMIIMG_CACHE=FOLDER")
    assert not (tmp_path / "y.sif").exists()
    assert leftovers(*disk.iterdir()) == []  # it is a mount itself
    shutil.rmtree(disk / "cache", ignore_errors=True)


def real_cache() -> Path:
    return Path(os.environ.get("LUMIIMG_CACHE") or Path.home() / ".cache" / "lumiimg")
