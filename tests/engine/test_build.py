"""Real builds: what is written is what the image holds, and a build that fails or is killed leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spython.main import get_client

from lumiimg.elf.loader import Process
from lumiimg.elf.rules import LoaderSettings
from lumiimg.errors import ExitCode
from lumiimg.host.carried_manifest import Basis, read_manifest
from lumiimg.image import Image, open_image
from lumiimg.image.sif import read_sif_file
from tests.engine.conftest import built, engine_builds, inside, lumiimg
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


def layer_folder(folder: Path, name: str, toml: str, post: str, **files: str) -> Path:
    layer = folder / name
    layer.mkdir(parents=True)
    (layer / "layer.toml").write_text(toml)
    (layer / "post.sh").write_text(post)
    for file, text in files.items():
        (layer / file.replace("_", ".")).write_text(text)
    return folder


@pytest.fixture(scope="module")
def awkward(images: Path) -> Path:
    """An image whose layer has every awkward value, built under awkward names."""
    arguments = "".join(f'[arguments.{name}]\ndefault = ""\nhelp = "text"\n' for name in AWKWARD)
    environment = (
        '[environment.set]\nSPOKEN = "it\'s [not] a \\"build argument\\" $HOME"\n'
        '[environment.prepend]\nLD_LIBRARY_PATH = "/opt/awkward/lib"\n'
    )
    toml = LAYER + 'files = ["data.txt"]\n' + arguments + environment
    folder = layer_folder(images / "my layers", "awkward", toml, SCRIPT, data_txt="data {{ stays }}\n%labels\n")
    place = images / 'it\'s "a"\nplace'
    place.mkdir()
    words = [word for name, value in AWKWARD.items() for word in ("--arg", f"awkward.{name}={value}")]
    return built(place / "an image.sif", "--layers", folder, "--base", "debian-13", "--add", "awkward", *words)


@pytest.mark.parametrize("name", AWKWARD)
def test_an_argument_reaches_the_script_as_it_was_given(engine: Engine, awkward: Path, name: str) -> None:
    assert inside(engine, awkward, "cat", f"/opt/awkward-{name}") == AWKWARD[name]


def test_a_script_and_a_file_reach_the_image_byte_by_byte(engine: Engine, awkward: Path) -> None:
    wanted = SCRIPT.partition("<<'END'\n")[2].partition("END\n")[0]
    assert inside(engine, awkward, "cat", "/opt/heredoc") == wanted
    assert inside(engine, awkward, "cat", "/opt/data") == "data {{ stays }}\n%labels\n"


def test_a_script_runs_in_a_folder_of_its_own_that_is_gone_afterwards(engine: Engine, awkward: Path) -> None:
    folder, flags = inside(engine, awkward, "cat", "/opt/where").split()
    assert {"e", "u"} <= set(flags)
    assert "gone" in inside(engine, awkward, "sh", "-c", f"test -e {folder} || echo gone")
    assert "gone" in inside(engine, awkward, "sh", "-c", "test -e /opt/lumiimg/build || echo gone")


@pytest.mark.core
def test_our_reader_and_the_engine_read_the_same_of_the_image(engine: Engine, awkward: Path) -> None:
    done = subprocess.run([engine.path, "inspect", "--json", "--all", awkward], capture_output=True, check=True)
    attributes = json.loads(done.stdout)["data"]["attributes"]
    with open_image(awkward) as image:
        assert image.warnings == ()
        assert image.labels == attributes["labels"]
        assert image.definition is not None
        assert image.definition.strip() == attributes["deffile"].strip()
        assert image.labels["lumiimg.layer.02"] == "awkward"
        spoken = inside(engine, awkward, "sh", "-c", 'printf %s "$SPOKEN"')
        assert image.environment["SPOKEN"] == spoken == 'it\'s [not] a "build argument" $HOME'
        assert image.environment["LD_LIBRARY_PATH"].startswith("/opt/awkward/lib")
        path = "/usr/lib/x86_64-linux-gnu/libfabric.so.1"
        data = image.root.read_bytes(path, 1 << 30)
        digest = inside(engine, awkward, "sha256sum", path).split()[0]
    assert hashlib.sha256(data).hexdigest() == digest


def test_spython_reads_the_same_labels(
    engine: Engine, demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # spython calls `singularity` by name, whatever the engine is called
    (tmp_path / "singularity").symlink_to(engine.path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = get_client(quiet=True).inspect(str(demo), json=True, quiet=True)
    attributes = json.loads(seen)["attributes"] if isinstance(seen, str) else seen["attributes"]
    with open_image(demo) as image:
        assert attributes["labels"] == image.labels


def test_the_engine_finds_nothing_else_than_our_loader_model(engine: Engine, demo: Path) -> None:
    """The same question to both: what does ld.so load for RCCL and for python3 in this image?"""
    for path in ("/usr/lib/x86_64-linux-gnu/librccl.so.1", "/usr/bin/python3", "/usr/bin/fi_info"):
        listed = inside(engine, demo, "/lib64/ld-linux-x86-64.so.2", "--list", path)
        real = {line.split()[0]: line.split()[2] for line in listed.splitlines() if " => " in line}
        with open_image(demo) as image:
            started = Process(image.root, LoaderSettings(library_path="/.singularity.d/libs")).start(path)
        model = {loaded.name: loaded.path for loaded in started.objects[1:] if "ld-linux" not in loaded.name}
        assert model == {name: file for name, file in real.items() if "ld-linux" not in name}


@pytest.mark.core
def test_a_second_build_of_the_same_builds_nothing(demo: Path, tmp_path: Path) -> None:
    result = lumiimg("build", "--recipe", "demo", "-o", tmp_path / "again.sif", "--json")
    assert result.code == 0
    assert result.data["reused_steps"] == result.data["steps"] == 3  # with the files of the base
    assert (tmp_path / "again.sif").read_bytes() == demo.read_bytes()
    assert "kept from an earlier build" in result.err


def test_an_engine_signs_all_of_an_image_and_a_build_knows_it_again(engine: Engine, bare: Path, tmp_path: Path) -> None:
    env = {"APPTAINER_KEYSDIR": str(tmp_path / "keys"), "SINGULARITY_SYPGPDIR": str(tmp_path / "keys")}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [engine.path, *words], env=os.environ | env, check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.stdout.decode()

    run("key", "newpair", "-N", "Ann", "-E", "a@example.org", "-C", "", "-P", "", "--push=false", "--bit-length=2048")
    folder = layer_folder(tmp_path / "layers", "small", LAYER, "echo text >/opt/small\n")
    image = tmp_path / "image.sif"
    words: list[str | Path] = ["build", "--base", bare, "--layers", folder, "--add", "small", "-o", image, "--json"]
    assert lumiimg(*words).code == 0
    run("sign", image)
    entries = json.loads(run("verify", "--local", "--json", image))["SignerKeys"]
    assert len(entries) == len(read_sif_file(image).objects) - 1
    assert all(entry["Signer"]["DataCheck"] for entry in entries)
    before = image.read_bytes()
    assert lumiimg(*words).data["is_new"] is False
    assert image.read_bytes() == before


def test_a_bindings_module_does_not_break_a_build(tmp_path: Path) -> None:
    folder = layer_folder(tmp_path / "l", "bound", LAYER, f"echo {tmp_path.name} >/opt/bound\n")
    bind = {"SINGULARITY_BIND": "/var/spool/slurmd,/opt/cray", "APPTAINER_BIND": "/nowhere", "SINGULARITYENV_X": "leak"}
    argv: list[str | Path] = ["build", "--layers", folder, "--base", "debian-13", "--add", "bound"]
    result = lumiimg(*argv, "-o", tmp_path / "x.sif", env=bind)
    assert result.code == 0, result.err


@pytest.mark.core
def test_a_script_that_fails_is_exit_1_with_the_layer_the_line_and_the_log(tmp_path: Path) -> None:
    # with `false | cat` an engine's own %post goes on; a layer's script does not
    folder = layer_folder(tmp_path / "l", "broken", LAYER, "echo about to fail\nfalse | cat\necho never\n")
    output = tmp_path / "x.sif"
    result = lumiimg("build", "--layers", folder, "--base", "debian-13", "--add", "broken", "-o", output)
    assert result.code == ExitCode.NO
    last = result.err.strip().splitlines()[-1]
    assert last.startswith("lumiimg: layer broken: the build stopped at: about to fail")
    assert f"the whole log: {output}.log" in last
    log = Path(f"{output}.log").read_text()
    assert "about to fail" in log
    assert "\nnever" not in log
    assert not output.exists()
    assert leftovers(tmp_path) == []


def test_a_test_that_fails_fails_the_build(tmp_path: Path) -> None:
    folder = layer_folder(tmp_path / "l", "untrue", LAYER, "true\n", test_sh="echo 'not as promised'\nfalse\n")
    output = tmp_path / "x.sif"
    result = lumiimg("build", "--layers", folder, "--base", "debian-13", "--add", "untrue", "-o", output)
    assert result.code == ExitCode.NO
    assert "not as promised" in result.err
    assert not output.exists()


def test_definitions_are_the_truth_they_build_the_same_image_elsewhere(
    engine: Engine, demo: Path, tmp_path: Path
) -> None:
    """The flat definition, run by the engine alone in its own folder, as the output of --definitions says."""
    folder = tmp_path / "definitions"
    assert lumiimg("build", "--recipe", "demo", "--definitions", folder).code == 0
    engine_builds(engine, folder / "flat.def", folder / "image.sif")
    with open_image(demo) as chained, open_image(folder / "image.sif") as flat:
        ours = {name: value for name, value in chained.labels.items() if name.startswith("lumiimg.")}
        assert {name: value for name, value in flat.labels.items() if name.startswith("lumiimg.")} == ours
        assert flat.environment == chained.environment
        planned, found = read_manifest(flat.root), read_manifest(chained.root)
        assert planned is not None
        assert found is not None
        assert (planned.basis, found.basis) == (Basis.PLAN, Basis.IMAGE)
        assert planned.fabric is found.fabric
        assert tree(flat) == tree(chained)
    assert lumiimg("check", folder / "image.sif").code == ExitCode.NO


def tree(image: Image) -> set[tuple[str, str]]:
    """Names and kinds, without what is noted of the build itself, and the devices that a localimage build drops."""
    passing = (
        "/.lumiimg",
        "/.singularity.d",
        "/dev/",
        "/var/log",
        "/var/cache",
        "/var/lib/dpkg",
        "/var/lib/apt",
        "/usr/share/mime",
        "/root",
    )
    return {
        (entry.path, entry.kind.value)
        for entry in image.root.walk()
        if not entry.path.startswith(passing) and "__pycache__" not in entry.path
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_build_that_is_ended_in_the_middle_leaves_no_half_image_and_the_next_one_works(
    number: signal.Signals, tmp_path: Path
) -> None:
    cache = tmp_path / 'it\'s a "cache"'
    # what was built before, by other names of the same files
    shutil.copytree(real_cache() / "layers", cache / "layers", copy_function=os.link)
    marker = f"sleep {1000 + number}.{os.getpid()}"  # no other run's
    folder = layer_folder(tmp_path / "l", "slow", LAYER, f"echo sleeping\n[ -e /opt/never ] || {marker}\n")
    output = tmp_path / "x.sif"
    argv: list[str | Path] = ["build", "--layers", folder, "--base", "debian-13", "--add", "slow", "-o", output]
    environment = os.environ | {"LUMIIMG_CACHE": str(cache)}
    with subprocess.Popen(
        [sys.executable, "-m", "lumiimg", *map(str, argv)], env=environment, stderr=subprocess.PIPE
    ) as build:
        wait_until(lambda: processes(marker) != [])
        build.send_signal(number)
        build.wait(timeout=patient(60))
    assert build.returncode != 0
    assert not output.exists()
    wait_until(lambda: processes(marker) == [])
    if number != signal.SIGKILL:
        assert leftovers(cache) == []
    (folder / "slow" / "post.sh").write_text("true\n")
    result = lumiimg(*argv, env={"LUMIIMG_CACHE": str(cache)})
    assert result.code == 0, result.err
    assert leftovers(cache) == []
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(demo: Path) -> None:
    small = os.environ.get("LUMIIMG_TEST_SMALL_DISK")
    if not small:
        pytest.skip("LUMIIMG_TEST_SMALL_DISK names no small file system (a tmpfs of 64 MB)")
    output = Path(small) / "x.sif"
    result = lumiimg("build", "--recipe", "demo", "-o", output)
    assert result.code == ExitCode.NO
    assert "No space left on device" in result.err.strip().splitlines()[-1]
    assert [path.name for path in Path(small).iterdir()] in ([], ["x.sif.log"])
    # the scratch full, in the middle of the engine's work
    result = lumiimg(
        "build", "--recipe", "demo", "-o", demo.with_name("y.sif"), env={"LUMIIMG_CACHE": f"{small}/cache"}
    )
    assert result.code == ExitCode.NO
    assert "the build needs about" in result.err.strip().splitlines()[-1]  # told before anything is done
    assert not demo.with_name("y.sif").exists()
    assert leftovers(Path(small)) == []
    shutil.rmtree(Path(small) / "cache", ignore_errors=True)


def real_cache() -> Path:
    return Path(os.environ.get("LUMIIMG_CACHE") or Path.home() / ".cache" / "lumiimg")


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "lumiimg-partial" in path.name]


def processes(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b" ".join(words[:2]).decode(errors="replace") == marker:
            found.append(entry.parent.name)
    return found
