"""Two build strategies give the result of the engine alone; killed builds leave a sound cache; no work is repeated.

The base is the SIF of a real Debian; the layers do everything that makes layers difficult.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lumiimg.image import open_image
from lumiimg.image.sif import squashfs_ranges
from lumiimg.image.squashfs.format import SUPERBLOCK, Compressor, Superblock
from tests.engine.conftest import built_by_engine, engine_builds, inside, lumiimg, write_layer
from tests.shared.build_traces import leftovers, shown, strays
from tests.shared.layer_builder import LAYER
from tests.shared.programs import patient, tenth_of, wait_until
from tests.shared.validation import validated

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

KILLS = tenth_of(50)
KERNEL = {"LUMIIMG_ENGINE": "namespaces"}
SCRIPTS = {
    "one": """\
mkdir -p /opt/one/folder /opt/one/gone
echo text >"/opt/one/a name with blanks, and: 'quotes'"
echo one >/opt/one/file; ln /opt/one/file /opt/one/hard; ln -s file /opt/one/soft
mkfifo /opt/one/pipe; echo x >/opt/one/suid; chmod 4755 /opt/one/suid; chmod 700 /opt/one/folder
chown daemon:daemon /opt/one/folder; touch /opt/one/gone/child
python3 -c 'import os; os.setxattr("/opt/one/file", "user.note", b"kept")'
printf 'value = 1\\n' >/opt/one/module.py
python3 -c 'import py_compile; py_compile.compile("/opt/one/module.py")'
echo 'export FROM_SCRIPT=1' >>"$SINGULARITY_ENVIRONMENT"
""",
    "two": """\
test "$V_ONE" = 1
rm -rf /etc/apt; mkdir /etc/apt; echo anew >/etc/apt/conf
rm -rf /opt/one/gone; echo 'a file now' >/opt/one/gone
rm /opt/one/soft; mkdir /opt/one/soft; touch /opt/one/soft/inside
useradd --system lumi; umask 0007; touch /opt/private
name=$(printf 'n%.0s' {1..255}); touch "/opt/$name"; mv "/opt/$name" "/opt/${name//n/m}"
mv /opt/one/folder /opt/moved
""",
    "three": "cat /opt/one/file >/opt/three; echo three >>/opt/one/file; (sleep 300 &) ; read -r answer || true\n",
}
TESTS = {"two": {"test_sh": 'test "$FROM_SCRIPT" = 1 && id lumi && test ! -e /etc/apt/sources.list.d\n'}}


class Stack(NamedTuple):
    """Layers on a base."""

    folder: Path
    base: Path

    @property
    def argv(self) -> list[str | Path]:
        adds = [word for name in SCRIPTS for word in ("--add", name)]
        return ["build", "--base", self.base, "--layers", self.folder / "layers", *adds]


@pytest.fixture(scope="module")
def stack(small: Path, images: Path) -> Stack:
    folder = images / "strategies"
    for name, script in SCRIPTS.items():
        toml = f'{LAYER}[environment.set]\nV_{name.upper()} = "1"\n'
        write_layer(folder / "layers" / name, script, toml, **TESTS.get(name, {}))
    return Stack(folder, small)


def build(
    stack: Stack, output: Path, *words: str | Path, cache: Path, code: int = 0, env: dict[str, str] | None = None
) -> dict[str, Any]:
    result = lumiimg(*stack.argv, "-o", output, "--json", *words, env={"LUMIIMG_CACHE": str(cache), **(env or {})})
    assert result.code == code, result.err
    return json.loads(result.out) if code == 0 else {"error": result.err}


@pytest.fixture(scope="module")
def built_by(stack: Stack, engine: Engine) -> dict[str, Path]:
    """The same image, built with each strategy and a separate cache."""
    found = {}
    for way, strategy, env in (
        ("overlay", "overlay", {}),
        ("sandbox", "sandbox", {}),
        ("kernel-overlay", "overlay", KERNEL),
        ("kernel-sandbox", "sandbox", KERNEL),
    ):
        found[way] = stack.folder / f"{way}.sif"
        done = build(stack, found[way], "--strategy", strategy, cache=stack.folder / f"cache-{way}", env=env)
        assert (done["strategy"], done["reused_steps"]) == (strategy, 0)
    found["mixed"] = stack.folder / "mixed.sif"
    done = build(stack, found["mixed"], "--strategy", "sandbox", cache=stack.folder / "cache-overlay")
    assert done["reused_steps"] == done["steps"], "what one way has built serves the other"
    found["engine"] = built_by_engine(engine, stack.folder / "engine.sif", *stack.argv[1:])
    return found


def unlike(one: Path, other: Path) -> dict[str, object]:
    """Return the differences between two images by path."""
    first, second = shown(one), shown(other)
    paths = {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    return {path: (first.get(path, ())[:5], second.get(path, ())[:5]) for path in paths}


def packing(image: Path) -> set[tuple[int, int]]:
    """Return the compression and block size of the file systems of an image."""
    found = set()
    for offset, _ in squashfs_ranges(image):
        superblock = Superblock(*SUPERBLOCK.unpack(image.read_bytes()[offset : offset + SUPERBLOCK.size]))
        found.add((superblock.compression, superblock.block_bytes))
    return found


GZIP = (Compressor.GZIP, 128 << 10)
"""What every engine can start. SingularityCE 4.1 reports `unknown compression algorithm value 6` for zstd."""


@pytest.mark.core
def test_all_ways_make_the_same_image(built_by: dict[str, Path], stack: Stack) -> None:
    """The engine alone does not record how an image was built, but stores the definition that it was given."""
    ours = shown(built_by["overlay"])
    assert "/opt/one/gone/child" not in ours
    assert "/etc/apt/sources.list.d" not in ours
    assert f"/opt/{'m' * 255}" in ours
    for way in ("sandbox", "mixed"):
        assert unlike(built_by["overlay"], built_by[way]) == {}, way
    for way in ("overlay", "sandbox"):
        assert built_by[f"kernel-{way}"].read_bytes() == built_by[way].read_bytes(), way
    # how it was built, and what differs each time
    own = ("/.lumiimg", "/.singularity.d/Singularity", "/etc/shadow", "/var/cache/ldconfig/aux-cache", "/var/log/")
    others = unlike(built_by["engine"], built_by["overlay"])
    assert {path: seen for path, seen in others.items() if not path.startswith(own)} == {}
    for file in (*built_by.values(), *stack.folder.glob("cache-*/layers/*/data*")):
        assert packing(file) == {GZIP}, file


def test_on_somebody_elses_base_of_zstd_an_image_is_gzip_and_has_the_same_files(
    stack: Stack, built_by: dict[str, Path], engine: Engine, tmp_path: Path
) -> None:
    base = tmp_path / "theirs.sif"
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {stack.base}\n")
    packed = "--mksquashfs-args=-comp zstd -b 1M"
    subprocess.run([engine.path, "build", "--fakeroot", packed, base, "x.def"], cwd=tmp_path, check=True)
    assert packing(base) == {(Compressor.ZSTD, 1 << 20)}
    of_engines = ("/.singularity.d", "/.lumiimg")  # records of the build itself
    for way in ("overlay", "sandbox"):
        image = tmp_path / f"{way}.sif"
        build(stack._replace(base=base), image, "--strategy", way, cache=tmp_path / f"cache-{way}")
        assert packing(image) == {GZIP}, way
        assert [path for path in unlike(image, built_by[way]) if not path.startswith(of_engines)] == [], way
        assert inside(engine, image, "sh", "-c", "echo $V_ONE $FROM_SCRIPT") == "1 1\n"


def test_an_engine_shows_the_same_of_all_and_compiles_no_python_again(
    built_by: dict[str, Path], engine: Engine
) -> None:
    script = (
        "cd /opt && find . -xdev | LC_ALL=C sort; ls /etc/apt; env | grep -E '^(V_|FROM_)' | sort; cat /opt/three; "
        """python3 -c 'import os; print(os.getxattr("/opt/one/file", "user.note"))'; """
        "PYTHONPATH=/opt/one python3 -v -c 'import module' 2>&1 | grep -F 'matches /opt/one/module.py'"
    )
    reported = {way: inside(engine, image, "sh", "-c", script) for way, image in built_by.items()}
    assert len(set(reported.values())) == 1
    assert all(text in reported["overlay"] for text in ("FROM_SCRIPT=1", "b'kept'", "matches /opt/one/module.py"))


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return every file below a folder, and when it was changed."""
    return {
        str(path): (seen.st_ino, seen.st_size, seen.st_ctime_ns)
        for path in folder.rglob("*")
        for seen in [path.lstat()]
    }


@pytest.mark.core
def test_the_same_again_writes_no_byte(built_by: dict[str, Path], stack: Stack) -> None:
    del built_by
    before = state(stack.folder)
    start = time.monotonic()
    done = build(stack, stack.folder / "overlay.sif", cache=stack.folder / "cache-overlay")
    assert time.monotonic() - start < patient(60)  # a hang would show; how fast it is, the benchmarks show
    assert done["is_new"] is False
    assert state(stack.folder) == before


@pytest.mark.parametrize(("way", "env"), [("overlay", {}), ("sandbox", KERNEL)])
def test_two_builds_are_the_same_bytes_whatever_the_umask(
    way: str, env: dict[str, str], stack: Stack, built_by: dict[str, Path], tmp_path: Path
) -> None:
    again = tmp_path / "again.sif"
    mask = os.umask(0o007)  # as on LUMI
    try:
        done = build(stack, again, "--strategy", way, cache=tmp_path / "cache", env=env)
    finally:
        os.umask(mask)
    assert done["reused_steps"] == 0
    assert again.read_bytes() == built_by[way].read_bytes()
    assert again.stat().st_mode & 0o777 == 0o750
    with open_image(again) as image:
        assert image.root.stat("/").permissions == 0o755


def test_what_changed_is_built_and_why_names_it(stack: Stack, built_by: dict[str, Path], tmp_path: Path) -> None:
    del built_by
    layers = tmp_path / "layers"
    shutil.copytree(stack.folder / "layers", layers)
    (layers / "three" / "post.sh").write_text("echo other >/opt/three\n")
    changed = Stack(tmp_path, stack.base).argv[1:]
    env = {"LUMIIMG_CACHE": str(stack.folder / "cache-overlay")}
    miss = lumiimg("build", "--why", "three", *changed, env=env)
    assert (miss.code, "+echo other >/opt/three" in miss.out) == (1, True)
    assert lumiimg("build", "--why", "two", *changed, env=env).code == 0
    built = lumiimg("build", *changed, "-o", tmp_path / "x.sif", "--json", env=env)
    assert built.data["reused_steps"] == built.err.count(": reused from an earlier build, ") == 3
    steps = [line for line in built.err.splitlines() if line.startswith("[")]
    assert [line.split(" ")[1] for line in steps if line.endswith(" s the last time)")] == ["04-three"]


@pytest.mark.core
def test_an_image_is_built_again_from_itself_alone(stack: Stack, built_by: dict[str, Path], tmp_path: Path) -> None:
    image = tmp_path / "theirs.sif"
    image.write_bytes(built_by["overlay"].read_bytes())
    with open_image(image) as opened:
        carried = {entry.name for entry in opened.root.list_dir("/.lumiimg/layers/0")}
    assert carried == {*SCRIPTS}, "not those of its base"
    done = lumiimg("show", image, "--json")
    assert done.code == 0, done.err
    plan = validated(json.dumps(done.data["plan"]), "plan")
    assert [layer["name"] for layer in plan["layer"]] == list(SCRIPTS)
    names = {component["name"] for component in done.data["sbom"]["components"]}
    assert {"debian", "bash", "python3"} <= names
    (stack.folder / "layers").rename(stack.folder / "hidden")
    try:
        env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
        words = ("rebuild", image, "-o", tmp_path / "again.sif")
        refused = lumiimg(*words, env=env)
        unknown = lumiimg(*words, "--base", stack.base, env=env)
        again = lumiimg(*words, "--base", stack.base, "--trust-lock", "--json", env=env)
    finally:
        (stack.folder / "hidden").rename(stack.folder / "layers")
    assert (refused.code, f"was built on {stack.base} (sha256 " in refused.err) == (2, True)
    assert (unknown.code, "as the image carries it (sha256:" in unknown.err) == (2, True)
    assert again.code == 0, again.err
    assert again.data["reused_steps"] == 0
    assert (tmp_path / "again.sif").read_bytes() == image.read_bytes()


def test_what_another_build_put_on_an_image_is_not_taken_for_how_it_was_built(
    built_by: dict[str, Path], engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {built_by['overlay']}\n%post\ntrue\n")
    engine_builds(engine, tmp_path / "x.def", tmp_path / "x.sif")
    refused = lumiimg("rebuild", tmp_path / "x.sif", "-o", tmp_path / "y.sif")
    assert (refused.code, "does not say how it was built" in refused.err) == (2, True)


COMPILES = """\
mkdir -p "$KEPT/tool"
[ -e "$KEPT/tool/wheel" ] || { echo compiling; head -c 32 /dev/urandom | sha256sum >"$KEPT/tool/wheel"; }
[ -e /etc/allowed ] || exit 7
cp "$KEPT/tool/wheel" /opt/compiled
"""


def test_layers_in_another_order_compile_nothing_again(small: Path, tmp_path: Path) -> None:
    scripts = {"needed": "touch /etc/needed\n", "allows": "touch /etc/allowed\n", "compiles": COMPILES}
    layers = tmp_path / "layers"
    for name, script in scripts.items():
        write_layer(layers / name, script, LAYER + 'requires = ["needed"]\n' * (name == "compiles"))

    def made(output: str, way: str, *names: str) -> tuple[int, bool]:
        words: list[str | Path] = ["--base", small, "--layers", layers, "-o", tmp_path / output, "--strategy", way]
        adds = [word for name in names for word in ("--add", name)]
        done = lumiimg("build", *words, *adds, env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
        return done.code, "compiling" in (tmp_path / f"{output}.log").read_text()

    assert made("failed.sif", "overlay", "needed", "compiles") == (1, True)
    assert made("one.sif", "overlay", "needed", "allows", "compiles") == (0, False), "what a failed build has compiled"
    assert made("two.sif", "sandbox", "allows", "needed", "compiles") == (0, False)
    with open_image(tmp_path / "one.sif") as one, open_image(tmp_path / "two.sif") as two:
        assert len({image.root.read_bytes("/opt/compiled", 99) for image in (one, two)}) == 1
        assert not two.root.exists("/opt/lumiimg/build")
        assert not two.root.exists("/.lumiimg.kept")
    (layers / "needed" / "post.sh").write_text("touch /etc/needed /etc/other\n")
    assert made("three.sif", "overlay", "allows", "needed", "compiles") == (0, True), "what it needs is another"


def one_layer(tmp_path: Path, base: Path, script: str) -> list[str | Path]:
    layers = write_layer(tmp_path / "layers/hostile", script)
    return ["build", "--base", base, "--layers", layers, "--add", "hostile", "-o", tmp_path / "x.sif"]


def test_a_script_that_prints_without_end_of_line_and_asks_is_built(small: Path, tmp_path: Path) -> None:
    script = (
        "head -c 100000000 /dev/zero | tr '\\0' x; echo; seq 100000; printf '\\033[2Jred\\rx'\n"
        'read -r answer && exit 1; cat >/dev/null; setsid sleep 3000 & disown\necho "$answer" >/opt/asked\n'
    )
    start = time.monotonic()
    done = lumiimg(*one_layer(tmp_path, small, script), "--verbose", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert done.code == 0, done.err[-2000:]
    assert time.monotonic() - start < patient(1500), "the sleep is not waited for"
    assert "\033" not in done.err
    assert (tmp_path / "x.sif.log").stat().st_size > 100_000_000
    assert leftovers(tmp_path) == []
    assert strays(str(tmp_path)) == []


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_folders_may_have_any_names(way: str, small: Path, tmp_path: Path) -> None:
    odd = tmp_path / "it's a, b:c"
    odd.mkdir()
    env = {"LUMIIMG_CACHE": str(odd / "cache"), "TMPDIR": str(odd)}
    done = lumiimg(*one_layer(tmp_path, small, "echo >/opt/x\n"), "--strategy", way, env=env)
    assert done.code == 0, done.err
    assert leftovers(odd) == []


@pytest.mark.core
def test_builds_that_are_killed_at_any_moment_are_resumed(stack: Stack, tmp_path: Path) -> None:
    cache, output = tmp_path / "cache", tmp_path / "x.sif"
    environment = os.environ | {"LUMIIMG_CACHE": str(cache)}
    argv = [sys.executable, "-m", "lumiimg", *map(str, stack.argv), "-o", str(output)]
    start = time.monotonic()
    assert lumiimg(*stack.argv, "-o", output, env={"LUMIIMG_CACHE": str(cache)}).code == 0
    whole = time.monotonic() - start
    chance = random.Random(20261121)  # noqa: S311 - moments, no secrets
    for _ in range(KILLS):
        output.unlink(missing_ok=True)
        if chance.random() < 0.5:
            shutil.rmtree(cache / "layers", ignore_errors=True)
        with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
            time.sleep(chance.uniform(0, whole))
            child.send_signal(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
            child.wait(patient(60))
        assert lumiimg("cache", "verify", env={"LUMIIMG_CACHE": str(cache)}).code == 0
    built = lumiimg(*stack.argv, "-o", output, "--force", env={"LUMIIMG_CACHE": str(cache)})
    assert built.code == 0, built.err
    wait_until(lambda: not strays(str(cache)))
    assert leftovers(cache, tmp_path) == []


def test_four_builds_at_once_share_one_cache(stack: Stack, tmp_path: Path) -> None:
    environment = os.environ | {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "lumiimg", *map(str, stack.argv), "-o", tmp_path / f"{number}.sif", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    output = [child.communicate(timeout=patient(600)) for child in children]
    assert [child.returncode for child in children] == [0] * 4, output
    assert len({(tmp_path / f"{number}.sif").read_bytes() for number in range(4)}) == 1
    steps = [validated(out, "build") for out, _ in output]
    listed = lumiimg("cache", "ls", "--json", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert len(json.loads(listed.out)["entries"]) == steps[0]["steps"]
    assert leftovers(tmp_path / "cache", tmp_path) == []


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_a_link_that_a_script_leaves_leads_to_no_file_of_this_machine(way: str, small: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    words = one_layer(tmp_path, small, f"rm -rf /.singularity.d; ln -s {mine} /.singularity.d\n")
    done = lumiimg(*words, "--strategy", way, env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert (done.code, "/.singularity.d" in done.err) == (1, True)
    assert list(mine.iterdir()) == []
    assert not (tmp_path / "x.sif").exists()


def test_a_base_whose_root_is_not_roots_fails_with_what_to_do(small: Path, engine: Engine, tmp_path: Path) -> None:
    base = tmp_path / "base.sif"
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {small}\n%post\nchown daemon /\n")
    engine_builds(engine, tmp_path / "x.def", base)
    words = one_layer(tmp_path, base, "touch /opt/x\n")
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    refused = lumiimg(*words, "--strategy", "sandbox", env=env)
    assert refused.code == 1
    assert "does not belong to root" in refused.err
    assert "--strategy overlay" in refused.err
    assert lumiimg(*words, "--strategy", "overlay", env=env).code == 0
