"""Whatever is wrong with an image, alone or two things at once: it has its answer, and `bind` says the doubt.

The libraries are stand-ins (tests/shared/fabric_builder.py).
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.check.context import open_for_check
from lumiimg.check.pipeline import explain_image
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.fabric.path import Fabric
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from lumiimg.report.views.binds import doubts as doubts_of
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import LOADER, PLUGIN, RCCL, versioned
from tests.shared.programs import tenth_of, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumiimg.host.snapshot import Snapshot

SCRIPT = ".singularity.d/env/91-more.sh"
LIBRARIES = "usr/lib64"


def setting(line: str) -> Callable[[Path], None]:
    def spoil(image: Path) -> None:
        with (image / SCRIPT).open("a") as file:
            file.write(f"{line}\n")

    return spoil


@cache
def linked(name: str, need: str, source: str, *arguments: str) -> bytes:
    """Link a library that needs another one; only once, for all images."""
    with tempfile.TemporaryDirectory() as folder:
        needed = versioned(Path(folder) / need, defines=("FABRIC_1.3",))
        return library(Path(folder) / name, needed, *arguments, source=source).read_bytes()


def plugin_with(source: str = PLUGIN, *arguments: str) -> Callable[[Path], None]:
    def spoil(image: Path) -> None:
        plugin = image / LIBRARIES / "librccl-net.so"
        plugin.write_bytes(linked(plugin.name, "libfabric.so.1", source, *arguments))
        plugin.chmod(0o755)

    return spoil


def without_plugin(image: Path) -> None:
    (image / LIBRARIES / "librccl-net.so").unlink(missing_ok=True)


def plugin_elsewhere(image: Path) -> None:
    if (plugin := image / LIBRARIES / "librccl-net.so").exists():
        (image / "opt/plugin").mkdir(exist_ok=True)
        plugin.rename(image / "opt/plugin" / plugin.name)


def plugin_perhaps_elsewhere(image: Path) -> None:
    plugin_elsewhere(image)
    setting("if [ -d /opt/plugin ]; then export LD_LIBRARY_PATH=/opt/plugin; fi")(image)


def rccl_that_names_nothing(image: Path) -> None:
    versioned(image / "opt/rocm/lib/librccl.so.1", source='const char banner[] = "nothing of use";')


def rccl_that_does_not_load(image: Path) -> None:
    (image / "opt/rocm/lib/librccl.so.1").write_bytes(linked("librccl.so.1", "libamdhip64.so.6", RCCL))


def plugin_cut_off(image: Path) -> None:
    if (plugin := image / LIBRARIES / "librccl-net.so").exists():
        content = plugin.read_bytes()
        plugin.write_bytes(content[: int(len(content) * 0.7)])


def plugin_for_root_alone(image: Path) -> None:
    if (plugin := image / LIBRARIES / "librccl-net.so").exists():
        plugin.chmod(0o600)


def rccl_folder_for_root_alone(image: Path) -> None:
    (image / "opt/rocm").chmod(0o700)


def old_libfabric(image: Path) -> None:
    versioned(image / LIBRARIES / "libfabric.so.1", defines=("FABRIC_1.0",))


def musl(image: Path) -> None:
    (image / LOADER[1:]).unlink()
    (image / "lib").mkdir(exist_ok=True)
    (image / "lib/ld-musl-x86_64.so.1").write_bytes(b"")


SPOILED: dict[str, tuple[Callable[[Path], None], ExitCode]] = {
    "socket": (setting("export NCCL_NET=Socket"), ExitCode.NO),
    "tcp": (setting("export FI_PROVIDER=tcp"), ExitCode.NO),
    "named": (setting("export NCCL_NET_PLUGIN=aws"), ExitCode.NO),
    "condition": (setting("if [ -d /x ]; then export LD_LIBRARY_PATH=/x; fi"), ExitCode.UNDECIDED),
    "old-api": (plugin_with("int ncclNetPlugin_v4;"), ExitCode.NO),
    "symbol": (plugin_with(PLUGIN + "int nowhere(void); int use(void) { return nowhere(); }"), ExitCode.UNDECIDED),
    "leak": (plugin_with(PLUGIN, "-Wl,-rpath,/tmp/build/lib"), ExitCode.UNDECIDED),
    "no-plugin": (without_plugin, ExitCode.NO),
    "elsewhere": (plugin_elsewhere, ExitCode.NO),
    "elsewhere-perhaps": (plugin_perhaps_elsewhere, ExitCode.UNDECIDED),
    "cut-off": (plugin_cut_off, ExitCode.NO),
    "closed": (plugin_for_root_alone, ExitCode.UNDECIDED),
    "closed-folder": (rccl_folder_for_root_alone, ExitCode.UNDECIDED),
    "rccl-silent": (rccl_that_names_nothing, ExitCode.UNDECIDED),
    "rccl-broken": (rccl_that_does_not_load, ExitCode.NO),
    "old-libfabric": (old_libfabric, ExitCode.GOOD),  # the host's takes its place
    "musl": (musl, ExitCode.UNDECIDED),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = fabric_builder.host(tmp_path_factory.mktemp("machine") / "host")
    with open_image(root) as opened:
        return scan_host({}, root=opened.root)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fabric_builder.image(tmp_path_factory.mktemp("healthy") / "image")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a fabric of its own."""
    root = fabric_builder.image(tmp_path_factory.mktemp("bundled") / "image")
    cxi = versioned(root / LIBRARIES / "libcxi.so.1", defines=("LIBCXI_1.4",))
    versioned(root / LIBRARIES / "libfabric.so.1", defines=("FABRIC_1.3",), needs={cxi: ("LIBCXI_1.4",)})
    return root


def spoiled(good: Path, folder: Path, *kinds: str) -> Path:
    image = folder / "-".join(kinds)
    shutil.copytree(good, image, symlinks=True)
    for kind in kinds:
        SPOILED[kind][0](image)
    return image


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of whoever runs the tests are those of a stranger."""
    monkeypatch.setattr("os.geteuid", lambda: 0)


def answers(image: Path, host: Snapshot | None) -> tuple[ExitCode, list[str]]:
    """Return what the check of the files answers, and what bind says of doubts."""
    with open_for_check(image, {}, host) as context:
        report = explain_image(context)
        boundary = report.files
    doubts = [doubt.text for doubt in doubts_of(boundary)] if boundary.fabric is not Fabric.NONE else ["refused"]
    return report.answer.exit_code, doubts


def test_each_fault_has_its_answer(healthy: Path, bundled: Path, host: Snapshot, tmp_path: Path) -> None:
    for kind, (_, expected) in SPOILED.items():
        answer, doubts = answers(spoiled(healthy, tmp_path, kind), host)
        assert answer == expected, kind
        assert bool(doubts) == (answer is not ExitCode.GOOD), kind
        answer, doubts = answers(spoiled(bundled, tmp_path / "bundled", kind), host)
        assert bool(doubts) == (answer is not ExitCode.GOOD), kind
    for image in (healthy, bundled):
        assert answers(image, host) == (ExitCode.GOOD, [])
    assert answers(healthy, None)[0] is ExitCode.UNDECIDED


def test_of_two_faults_at_once_none_is_lost(healthy: Path, bundled: Path, host: Snapshot, tmp_path: Path) -> None:
    pairs = [*itertools.combinations(SPOILED, 2)]
    chosen = random.Random(2026).sample(pairs, tenth_of(len(pairs)))  # noqa: S311 - the same each time
    for number, kinds in enumerate(chosen):
        image = spoiled(bundled if number % 2 else healthy, tmp_path, *kinds)
        answer, doubts = answers(image, host)
        assert bool(doubts) == (answer is not ExitCode.GOOD), kinds
        shutil.rmtree(image)


def test_what_an_image_sets_is_told_by_all_that_explain_writes(
    healthy: Path, host: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = spoiled(healthy, tmp_path, "socket", "tcp")
    snapshot, page = tmp_path / "host.json", tmp_path / "page.html"
    write_snapshot(host, snapshot)
    words = [str(image), "--host", str(snapshot)]
    assert main(["explain", *words, "--json", "--html", str(page)]) == ExitCode.NO
    out, err = capsys.readouterr()
    data = json.loads(out)
    refused = {finding["id"] for finding in data["findings"] if finding["severity"] == "problem"}
    assert refused == {"network.forced", "provider.excluded"}
    assert any("env -u NCCL_NET" in remedy for remedy in data["remedies"])
    assert ": NO: " in unwrapped(err)
    assert page.read_text().count("[network.forced, static]") == 1
    told = "with these binds RCCL would not use the fabric: NCCL_NET=Socket"
    for command in (["bind", *words, "--json"], ["bind", *words], ["job", *words, "--site", "lumi", "--", "true"]):
        assert main(command) == ExitCode.GOOD
        out, err = capsys.readouterr()
        assert told in unwrapped(out + err), command[0]
