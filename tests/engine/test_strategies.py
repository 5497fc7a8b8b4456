"""Two ways to build, one result, which is that of the engine alone; a cache that builds killed at any moment leave whole; and no work twice.

The base is the SIF of a real Debian; the layers do what makes layers hard.
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

from lumiimg.image import open_image, open_stack, stacked
from lumiimg.image.squashfs.superblock import Compressor
from tests.engine.conftest import PACKED_AS_OURS, built_by_engine, inside, lumiimg
from tests.shared.build_traces import SINGULARITY, leftovers, shown, strays
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
mkdir -p "/opt/$(printf 'n%.0s' {1..200})"
mv /opt/one/folder /opt/moved
""",
    "three": "cat /opt/one/file >/opt/three; echo three >>/opt/one/file; (sleep 300 &) ; read -r answer || true\n",
}
TEST = {"two": 'test "$FROM_SCRIPT" = 1 && id lumi && test ! -e /etc/apt/sources.list.d\n'}


class Stack(NamedTuple):
    """Layers on a base."""

    folder: Path
    base: Path

    @property
    def argv(self) -> list[str | Path]:
        adds = [word for name in SCRIPTS for word in ("--add", name)]
        return ["build", "--base", self.base, "--layers", self.folder / "layers", *adds]


@pytest.fixture(scope="module")
def stack(bare: Path, images: Path) -> Stack:
    folder = images / "strategies"
    for name, script in SCRIPTS.items():
        layer = folder / "layers" / name
        layer.mkdir(parents=True)
        (layer / "layer.toml").write_text(f'{LAYER}[environment.set]\nV_{name.upper()} = "1"\n')
        (layer / "post.sh").write_text(script)
        if name in TEST:
            (layer / "test.sh").write_text(TEST[name])
    return Stack(folder, bare)


def build(
    stack: Stack, output: Path, *words: str | Path, cache: Path, code: int = 0, env: dict[str, str] | None = None
) -> dict[str, Any]:
    result = lumiimg(*stack.argv, "-o", output, "--json", *words, env={"LUMIIMG_CACHE": str(cache), **(env or {})})
    assert result.code == code, result.err
    return json.loads(result.out) if code == 0 else {"error": result.err}


@pytest.fixture(scope="module")
def built_by(stack: Stack, engine: Engine) -> dict[str, Path]:
    """The same image, each time by another way, with another cache."""
    found = {}
    for way in ("overlay", "sandbox"):
        found[way] = stack.folder / f"{way}.sif"
        told = build(stack, found[way], "--strategy", way, cache=stack.folder / f"cache-{way}")
        assert (told["strategy"], told["reused_steps"]) == (way, 0)
    for way in ("overlay", "sandbox"):
        found[f"{way} of the kernel"] = stack.folder / f"kernel-{way}.sif"
        words = ["--strategy", way]
        told = build(
            stack, found[f"{way} of the kernel"], *words, cache=stack.folder / f"cache-kernel-{way}", env=KERNEL
        )
        assert (told["strategy"], told["reused_steps"]) == (way, 0)
    found["sandbox from overlay"] = stack.folder / "mixed.sif"
    words = ["--strategy", "sandbox"]
    told = build(stack, found["sandbox from overlay"], *words, cache=stack.folder / "cache-overlay")
    assert told["reused_steps"] == told["steps"], "what one way has built serves the other"
    found["engine"] = built_by_engine(engine, stack.folder / "engine.sif", *stack.argv[1:])
    return found


@pytest.mark.core
def test_all_ways_make_the_same_image(built_by: dict[str, Path]) -> None:
    """The engine alone writes nothing of how an image was built, and notes the definition that it was given."""
    found = {way: shown(image) for way, image in built_by.items()}
    ours, engines = found["overlay"], found.pop("engine")
    assert "/opt/one/gone/child" not in ours
    assert "/etc/apt/sources.list.d" not in ours
    for way, files in found.items():
        assert unlike(ours, files) == {}, way
    own = ("/.lumiimg", "/.singularity.d/Singularity")
    assert {path: seen for path, seen in unlike(engines, ours).items() if not path.startswith(own)} == {}


def unlike(one: dict[str, tuple[object, ...]], other: dict[str, tuple[object, ...]]) -> dict[str, object]:
    """What differs between two images, by path."""
    paths = {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    return {path: (one.get(path, ())[:5], other.get(path, ())[:5]) for path in paths}


@pytest.mark.core
def test_the_kernel_makes_the_same_bytes_as_the_engine(built_by: dict[str, Path]) -> None:
    for way in ("overlay", "sandbox"):
        assert built_by[f"{way} of the kernel"].read_bytes() == built_by[way].read_bytes(), way


def packing(image: Path) -> list[tuple[int, int]]:
    """How each file system of an image is compressed, and the size of its blocks."""
    with open_stack([image]) as opened:
        return [layer.packing for layer in stacked(opened).layers]


def test_every_way_writes_what_every_engine_starts(stack: Stack, built_by: dict[str, Path]) -> None:
    """SingularityCE 4.1 takes gzip alone: `unknown compression algorithm value 6` is what it says of zstd."""
    gzip = (Compressor.GZIP, 128 << 10)
    for way, image in built_by.items():
        assert packing(image) == [gzip], way
    data = {path: packing(path) for path in stack.folder.glob("cache-*/layers/*/data*")}
    assert {one for found in data.values() for one in found} == {gzip}


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_on_somebody_elses_base_of_zstd_an_image_is_gzip_and_has_the_same_files(
    way: str, stack: Stack, built_by: dict[str, Path], engine: Engine, tmp_path: Path
) -> None:
    base = tmp_path / "theirs.sif"
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {stack.base}\n")
    packed = "--mksquashfs-args=-comp zstd -b 1M"
    subprocess.run([engine.path, "build", "--fakeroot", packed, base, "x.def"], cwd=tmp_path, check=True)
    assert packing(base) == [(Compressor.ZSTD, 1 << 20)]
    build(stack._replace(base=base), tmp_path / "x.sif", "--strategy", way, cache=tmp_path / "cache")
    assert {*packing(tmp_path / "x.sif")} == {(Compressor.GZIP, 128 << 10)}
    ours, reference = shown(tmp_path / "x.sif"), shown(built_by[way])
    of_engines = ("/.singularity.d", "/.lumiimg")  # what their build noted of itself
    others = {path for path in ours.keys() | reference.keys() if ours.get(path) != reference.get(path)}
    assert {path for path in others if not path.startswith(of_engines)} == set()
    assert inside(engine, tmp_path / "x.sif", "sh", "-c", "echo $V_ONE $FROM_SCRIPT") == "1 1\n"


def test_an_engine_shows_the_same_of_all(built_by: dict[str, Path], engine: Engine) -> None:
    script = (
        "cd /opt && find . -xdev | LC_ALL=C sort; ls /etc/apt; env | grep -E '^(V_|FROM_)' | sort; cat /opt/three; "
        """python3 -c 'import os; print(os.getxattr("/opt/one/file", "user.note"))'"""
    )
    told = {way: inside(engine, image, "sh", "-c", script) for way, image in built_by.items()}
    assert len(set(told.values())) == 1
    assert "FROM_SCRIPT=1" in told["overlay"]
    assert "b'kept'" in told["overlay"]


def test_compiled_python_is_not_compiled_again(built_by: dict[str, Path], engine: Engine) -> None:
    script = "import sys; sys.path.insert(0, '/opt/one'); import module; print(module.__cached__)"
    for way in ("overlay", "sandbox"):
        said = subprocess.run(
            [engine.path, "exec", built_by[way], "python3", "-v", "-c", script],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "matches /opt/one/module.py" in said.stderr, way


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below a folder, and when it was touched."""
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
    told = build(stack, stack.folder / "overlay.sif", cache=stack.folder / "cache-overlay")
    assert time.monotonic() - start < patient(60)  # a hang would show; how fast it is, the benchmarks tell
    assert told["is_new"] is False
    assert state(stack.folder) == before


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_two_builds_are_the_same_bytes_whatever_the_umask(
    way: str, stack: Stack, built_by: dict[str, Path], tmp_path: Path
) -> None:
    again = tmp_path / "again.sif"
    mask = os.umask(0o007)  # as on LUMI
    try:
        told = build(stack, again, "--strategy", way, cache=tmp_path / "cache")
    finally:
        os.umask(mask)
    assert told["reused_steps"] == 0
    assert again.read_bytes() == built_by[way].read_bytes()
    assert again.stat().st_mode & 0o777 == 0o750
    with open_image(again) as image:
        assert image.root.stat("/").permissions == 0o755


def test_what_changed_is_built_and_why_tells_it(stack: Stack, built_by: dict[str, Path], tmp_path: Path) -> None:
    del built_by
    layers = tmp_path / "layers"
    shutil.copytree(stack.folder / "layers", layers)
    (layers / "three" / "post.sh").write_text("echo other >/opt/three\n")
    adds = [word for name in SCRIPTS for word in ("--add", name)]
    request: list[str | Path] = ["--base", stack.base, "--layers", layers, *adds]
    env = {"LUMIIMG_CACHE": str(stack.folder / "cache-overlay")}
    miss = lumiimg("build", "--why", "three", *request, env=env)
    assert miss.code == 1
    assert "+echo other >/opt/three" in miss.out
    assert lumiimg("build", "--why", "two", *request, env=env).code == 0
    built = lumiimg("build", *request, "-o", tmp_path / "x.sif", "--json", env=env)
    assert json.loads(built.out)["reused_steps"] == 3
    steps = [line for line in built.err.splitlines() if line.startswith("[")]
    assert [line.split(" ")[1] for line in steps if line.endswith(" s the last time)")] == ["04-three"]
    assert lumiimg("build", "--why", "three", *request, env=env).code == 0
    listed = lumiimg("cache", "ls", "--json", env=env)
    assert sum(entry["layers"] == ["three"] for entry in json.loads(listed.out)["entries"]) == 2


def test_a_cache_is_carried_to_another_place(stack: Stack, built_by: dict[str, Path], tmp_path: Path) -> None:
    del built_by
    here, there = stack.folder / "cache-overlay", tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-C", here, "-cf", tmp_path / "layers.tar", "layers"], check=True)
    subprocess.run(["tar", "-C", there, "-xf", tmp_path / "layers.tar"], check=True)
    carried = len(list((there / "layers").iterdir()))
    told = build(stack, tmp_path / "x.sif", cache=there)
    assert told["reused_steps"] == told["steps"]
    assert lumiimg("cache", "verify", env={"LUMIIMG_CACHE": str(there)}).code == 0
    gone = lumiimg("cache", "prune", "--keep", "0", "--json", env={"LUMIIMG_CACHE": str(there)})
    assert len(json.loads(gone.out)["removed"]) == carried
    assert list((there / "layers").iterdir()) == []


@pytest.mark.core
def test_an_image_is_built_again_from_itself_alone(stack: Stack, built_by: dict[str, Path], tmp_path: Path) -> None:
    image = tmp_path / "theirs.sif"
    image.write_bytes(built_by["overlay"].read_bytes())
    with open_image(image) as opened:
        definitions = {entry.name for entry in opened.root.list_dir("/.lumiimg/definitions")}
    assert "01-debian-13.def" not in definitions, "that is how its base was built"
    assert len(definitions) == 1 + len(SCRIPTS)
    told = lumiimg("show", image, "--json")
    assert told.code == 0, told.err
    plan = validated(json.dumps(told.data["plan"]), "plan")
    assert [layer["name"] for layer in plan["layers"]][1:] == list(SCRIPTS)
    names = {component["name"] for component in told.data["sbom"]["components"]}
    assert {"debian", "bash", "librccl1"} <= names
    (stack.folder / "layers").rename(stack.folder / "hidden")
    try:
        env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
        refused = lumiimg("rebuild", image, "-o", tmp_path / "again.sif", env=env)
        again = lumiimg("rebuild", image, "-o", tmp_path / "again.sif", "--base", stack.base, "--json", env=env)
    finally:
        (stack.folder / "hidden").rename(stack.folder / "layers")
    assert (refused.code, f"was built on {stack.base} (sha256 " in refused.err) == (2, True)
    assert again.code == 0, again.err
    assert again.data["reused_steps"] == 0
    assert (tmp_path / "again.sif").read_bytes() == image.read_bytes()


def test_what_another_build_put_on_an_image_is_not_taken_for_how_it_was_built(
    built_by: dict[str, Path], engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {built_by['overlay']}\n%post\ntrue\n")
    subprocess.run([engine.path, "build", "--fakeroot", PACKED_AS_OURS, "x.sif", "x.def"], cwd=tmp_path, check=True)
    refused = lumiimg("rebuild", tmp_path / "x.sif", "-o", tmp_path / "y.sif")
    assert (refused.code, "does not say how it was built" in refused.err) == (2, True)


COMPILES = """\
mkdir -p "$KEPT/tool"
[ -e "$KEPT/tool/wheel" ] || { echo compiling; head -c 32 /dev/urandom | sha256sum >"$KEPT/tool/wheel"; }
[ -e /etc/allowed ] || exit 7
cp "$KEPT/tool/wheel" /opt/compiled
"""


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_layers_in_another_order_compile_nothing_again(way: str, bare: Path, engine: Engine, tmp_path: Path) -> None:
    scripts = {"needed": "touch /etc/needed\n", "allows": "touch /etc/allowed\n", "compiles": COMPILES}
    layers = tmp_path / "layers"
    for name, script in scripts.items():
        (layers / name).mkdir(parents=True)
        requires = 'requires = ["needed"]\n' if name == "compiles" else ""
        (layers / name / "layer.toml").write_text(f"{LAYER}{requires}")
        (layers / name / "post.sh").write_text(script)

    def made(output: str, *names: str) -> tuple[int, str]:
        adds = [word for name in names for word in ("--add", name)]
        words: list[str | Path] = [
            "--base",
            bare,
            "--layers",
            layers,
            *adds,
            "-o",
            tmp_path / output,
            "--strategy",
            way,
        ]
        told = lumiimg("build", *words, env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
        return told.code, (tmp_path / f"{output}.log").read_text()

    code, log = made("failed.sif", "needed", "compiles")
    assert (code, "compiling" in log) == (1, True)
    code, log = made("one.sif", "needed", "allows", "compiles")
    assert (code, "compiling" in log) == (0, False), "what a failed build compiled is not lost"
    code, log = made("two.sif", "allows", "needed", "compiles")
    assert (code, "compiling" in log) == (0, False)
    said = {inside(engine, tmp_path / f"{name}.sif", "cat", "/opt/compiled") for name in ("one", "two")}
    assert len(said) == 1
    with open_image(tmp_path / "two.sif") as image:
        assert not image.root.exists("/opt/lumiimg/build")
        assert not image.root.exists("/.lumiimg.kept")
    (layers / "needed" / "post.sh").write_text("touch /etc/needed /etc/other\n")
    code, log = made("three.sif", "allows", "needed", "compiles")
    assert (code, "compiling" in log) == (0, True), "what it needs is another"
    listed = lumiimg("cache", "ls", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert listed.out.count("compiles (compiled)") == 2
    assert lumiimg("cache", "verify", env={"LUMIIMG_CACHE": str(tmp_path / "cache")}).code == 0


def one_layer(tmp_path: Path, base: Path, script: str) -> list[str | Path]:
    layer = tmp_path / "layers" / "hostile"
    layer.mkdir(parents=True, exist_ok=True)
    (layer / "layer.toml").write_text(LAYER)
    (layer / "post.sh").write_text(script)
    return ["build", "--base", base, "--layers", layer.parent, "--add", "hostile", "-o", tmp_path / "x.sif"]


def test_a_script_that_prints_without_end_of_line_and_asks_is_built(bare: Path, tmp_path: Path) -> None:
    script = (
        "head -c 100000000 /dev/zero | tr '\\0' x; echo; seq 100000; printf '\\033[2Jred\\rx'\n"
        'read -r answer && exit 1; cat >/dev/null; setsid sleep 3000 & disown\necho "$answer" >/opt/asked\n'
    )
    start = time.monotonic()
    told = lumiimg(*one_layer(tmp_path, bare, script), "--verbose", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert told.code == 0, told.err[-2000:]
    assert time.monotonic() - start < patient(1500), "the sleep is not waited for"
    assert "\033" not in told.err
    assert (tmp_path / "x.sif.log").stat().st_size > 100_000_000
    assert leftovers(tmp_path) == []
    assert strays(str(tmp_path)) == []


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_a_name_as_long_as_can_be(way: str, bare: Path, engine: Engine, tmp_path: Path) -> None:
    script = """name=$(printf 'n%.0s' {1..255}); touch "/opt/$name"; mv "/opt/$name" "/opt/${name//n/m}"\n"""
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    told = lumiimg(*one_layer(tmp_path, bare, script), "--strategy", way, env=env)
    assert told.code == 0, told.err
    assert inside(engine, tmp_path / "x.sif", "sh", "-c", "ls /opt | grep -E m{255} | wc -l") == "1\n"


def test_a_cache_that_may_only_be_read_is_told(bare: Path, tmp_path: Path) -> None:
    words = one_layer(tmp_path, bare, "touch /opt/x\n")
    cache = tmp_path / "cache"
    env = {"LUMIIMG_CACHE": str(cache)}
    cache.mkdir()
    cache.chmod(0o555)
    refused = lumiimg(*words, env=env)
    assert refused.code == 1
    assert refused.err.strip().splitlines()[-1].count("LUMIIMG_CACHE names the folder") == 1
    cache.chmod(0o755)
    assert lumiimg(*words, env=env).code == 0
    for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    try:
        again = lumiimg(*words, "--json", env=env)
        assert (again.code, again.data["is_new"]) == (0, False), "the image is there; nothing is to be written"
    finally:
        for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
            folder.chmod(0o755)


def test_a_clock_that_was_set_back_spoils_nothing(bare: Path, tmp_path: Path) -> None:
    words = one_layer(tmp_path, bare, "touch /opt/x\n")
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    first = lumiimg(*words, "--json", env=env)
    assert first.code == 0, first.err
    tomorrow = time.time() + 86400
    for path in tmp_path.rglob("*"):
        os.utime(path, (tomorrow, tomorrow), follow_symlinks=False)
    content = (tmp_path / "x.sif").read_bytes()
    (tmp_path / "x.sif").unlink()
    again = lumiimg(*words, "--json", env=env)
    assert again.data["reused_steps"] == again.data["steps"]
    assert (tmp_path / "x.sif").read_bytes() == content
    assert lumiimg("cache", "verify", env=env).code == 0


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
    told = [child.communicate(timeout=patient(600)) for child in children]
    assert [child.returncode for child in children] == [0] * 4, told
    assert len({(tmp_path / f"{number}.sif").read_bytes() for number in range(4)}) == 1
    steps = [validated(out, "build") for out, _ in told]
    built = sum(step["steps"] - step["reused_steps"] for step in steps)
    listed = lumiimg("cache", "ls", "--json", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert len(json.loads(listed.out)["entries"]) == steps[0]["steps"]
    assert built >= steps[0]["steps"]
    assert any("waiting for another build" in err for _, err in told)
    assert leftovers(tmp_path / "cache", tmp_path) == []


def test_singularityce_without_user_namespaces_builds_in_a_sandbox(
    stack: Stack, engine: Engine, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mksquashfs", "unsquashfs", "sh", "bash", "env", "rm", "python3", "cat", "mkdir", "tar"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "singularity").write_text(SINGULARITY.format(engine=engine.path, path=os.environ["PATH"]))
    (programs / "singularity").chmod(0o755)
    layer = tmp_path / "layers" / "plain"
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(f'{LAYER}[environment.set]\nV_PLAIN = "1"\n')
    (layer / "post.sh").write_text("mkdir /opt/plain; echo text >/opt/plain/file; rm /etc/debian_version\n")
    (layer / "test.sh").write_text('test "$V_PLAIN" = 1 && test ! -e /etc/debian_version\n')
    output = tmp_path / "x.sif"
    words: list[str | Path] = ["--base", stack.base, "--layers", layer.parent, "--add", "plain", "-o", output, "--json"]
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache"), "PATH": str(programs)}
    told = lumiimg("build", *words, env=env)
    assert told.code == 0, told.err
    assert json.loads(told.out)["strategy"] == "sandbox"
    assert json.loads(told.out)["engine"]["kind"] == "singularity"
    with open_image(output) as image:
        seen = image.root.stat("/opt/plain/file")
        assert (seen.uid, seen.gid) == (0, 0)
        assert not image.root.exists("/etc/debian_version")
    assert inside(engine, output, "sh", "-c", "echo $V_PLAIN") == "1\n"
    (layer / "post.sh").write_text("apt-get update\n")
    refused = lumiimg("build", *words, "--force", env=env)
    assert refused.code == 4
    assert "proot makes a user look like root" in refused.err


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_a_link_that_a_script_leaves_leads_to_no_file_of_this_machine_and_what_fails_silently_is_told(
    way: str, bare: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    words = one_layer(tmp_path, bare, f"rm -rf /.singularity.d; ln -s {mine} /.singularity.d\n")
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    told = lumiimg(*words, "--strategy", way, env=env)
    assert told.code == 1
    assert "/.singularity.d" in told.err
    assert list(mine.iterdir()) == []
    assert not (tmp_path / "x.sif").exists()
    silent = lumiimg(*one_layer(tmp_path, bare, "exit 3\n"), "--strategy", way, "--force", env=env)
    assert (silent.code, "layer hostile: the build stopped at: exit status 3;" in silent.err) == (1, True)


def test_a_base_whose_root_is_not_roots_fails_with_what_to_do(bare: Path, engine: Engine, tmp_path: Path) -> None:
    base = tmp_path / "base.sif"
    (tmp_path / "x.def").write_text(f"Bootstrap: localimage\nFrom: {bare}\n%post\nchown daemon /\n")
    subprocess.run([engine.path, "build", "--fakeroot", PACKED_AS_OURS, base, "x.def"], cwd=tmp_path, check=True)
    words = one_layer(tmp_path, base, "touch /opt/x\n")
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache")}
    refused = lumiimg(*words, "--strategy", "sandbox", env=env)
    assert refused.code == 1
    assert "belongs to another id than root" in refused.err
    assert "--strategy overlay" in refused.err
    assert lumiimg(*words, "--strategy", "overlay", env=env).code == 0
