"""A foreign image as a base: its content is read, reported, and not added again; `adapt` adds what it lacks."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.check.context import ImageInContext
from lumiimg.check.static.files import check_libraries
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.image import open_image
from lumiimg.inventory.components import Inventory
from tests.shared import fabric_builder
from tests.shared.layer_builder import SITE
from tests.shared.oci_builder import digest
from tests.shared.programs import unwrapped
from tests.shared.world import World, serve

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A foreign image for vLLM: ROCm, a venv with torch, RCCL, no plugin."""
    folder = fabric_builder.image(tmp_path / "theirs", glibc=39)
    for name in ("librccl-net.so", "libnccl-net.so", "librccl-net-ofi.so", "libnccl-net-ofi.so"):
        for found in folder.rglob(name):
            found.unlink()
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc" / "os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\nNAME="Ubuntu"\n')
    (folder / "opt/rocm/.info").mkdir(parents=True, exist_ok=True)
    (folder / "opt/rocm/.info/version").write_text("6.4.4-129\n")
    for name, version in (("torch", "2.9.1+rocm6.4"), ("vllm", "0.12.0"), ("Flash_Attn", "2.7.3"), ("bad", "x.y")):
        info = folder / f"opt/venv/lib/python3.12/site-packages/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\n")
    (folder / "usr/lib/python3/dist-packages/pip-24.0.dist-info").mkdir(parents=True)
    (folder / "usr/lib/python3/dist-packages/pip-24.0.dist-info/METADATA").write_text("Name: pip\n")
    return folder


DPKG = "Package: {}\nStatus: {}\nArchitecture: amd64\nVersion: {}\n\n"
INSTALLED = "install ok installed"


def note(text: str, folder: str = "opt/rocm") -> Callable[[Path], None]:
    def put(root: Path) -> None:
        (root / folder / ".info").mkdir(parents=True)
        (root / folder / ".info/version").write_text(text)

    return put


def dpkg(*packages: tuple[str, str, str]) -> Callable[[Path], None]:
    def put(root: Path) -> None:
        (root / "var/lib/dpkg").mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text("".join(DPKG.format(*package) for package in packages))

    return put


def libraries(*names: str, folder: str = "usr/lib64", named: str = "") -> Callable[[Path], None]:
    def put(root: Path) -> None:
        (root / folder).mkdir(parents=True)
        for name in names:
            (root / folder / name).write_bytes(b"\x7fELF\0" + named.encode() + b"\0ncclNetPlugin_v8\0")

    return put


WHEEL = "usr/lib/python3/dist-packages/torch/lib"
ROCM: dict[str, tuple[tuple[Callable[[Path], None], ...], str | None]] = {
    "AMD's note": ((note("6.4.4-129\n"), libraries("librccl.so.1.0.60403")), "6.4.4"),
    "AMD's note in the folder of the libraries": (
        (note("6.4.1\n", "opt/rocm-6.4.1"), libraries("librccl.so.1", folder="opt/rocm-6.4.1/lib")),
        "6.4.1",
    ),
    "AMD's package": ((dpkg(("rocm-core", INSTALLED, "6.2.4.60204-139~22.04")),), "6.2.4"),
    "AMD's package of one release": ((dpkg(("rocm-core6.3.1", INSTALLED, "6.3.1.60301-48~24.04")),), "6.3.1"),
    "a package that was removed": (
        (dpkg(("rocm-core", "deinstall ok config-files", "6.2.4"), ("librocm-core1", INSTALLED, "7.2.4-1~exp1")),),
        "7.2.4",
    ),
    "Debian's HIP": ((dpkg(("libamdhip64-5", INSTALLED, "5.7.1-6")), libraries("libamdhip64.so.5")), "5.7.1"),
    "the number in a name": ((libraries("librocm-core.so.1.0.70204", "libamdhip64.so.7.2.53211"),), "7.2.4"),
    "RCCL's own words": ((libraries("librccl.so.1", named="RCCL version 2.27.7 \0ROCm version : 7.2.4.0-9"),), "7.2.4"),
    "RCCL's own words, older": ((libraries("librccl.so.1", named="RCCL version 2.20.5+hip6.2 "),), "6.2"),
    "RCCL's version": ((libraries("librccl.so.1", named="RCCL version 2.22.3-"),), "6.4"),
    "RCCL's version, of several releases": ((libraries("librccl.so.1", named="RCCL version 2.16.5-"),), None),
    "HIP's version": ((libraries("libamdhip64.so.6.3.42134"),), "6.3"),
    "a soname alone": ((libraries("libamdhip64.so.6"),), None),
    "a build of HIP that is no release": ((libraries("libhsa-runtime64.so.1.14.0"),), None),
}


def test_the_rocm_of_an_image_is_read_from_what_there_is(tmp_path: Path) -> None:
    for number, (case, (put, version)) in enumerate(ROCM.items()):
        root = tmp_path / f"{number}"
        for each in put:
            each(root)
        libraries("librccl.so.1.0.50700", "libamdhip64.so.5.7.50700", folder=WHEEL)(root)  # not the image's
        with open_image(root) as opened:
            contents = Inventory(opened)
            assert contents.has.get("rocm") == version, case
            assert "hip" in contents.provides, case
            assert ("rocm" in contents.provides) is (version is None), case


@pytest.mark.usefixtures("clean_home")
def test_the_driver_window_counts_for_an_image_without_amds_note(site: str, tmp_path: Path, capsys: Capture) -> None:
    of_8 = libraries("librccl.so.1", named="RCCL version : 2.30.4-\0ROCm version : 8.1.0.0-9", folder=WHEEL)
    window = "needs rocm>=6.0,<8, has ROCm"
    for number, (put, code, line) in enumerate(
        (
            (libraries("librocm-core.so.1.0.50701"), ExitCode.NO, f"{window} 5.7.1 of the image"),
            (libraries("librocm-core.so.1.0.60204"), ExitCode.GOOD, "ROCm 6.2.4 of the image"),
            (libraries("libamdhip64.so.6"), ExitCode.GOOD, f"not known: {window} ? of the image"),
            (of_8, ExitCode.GOOD, f"{window} 8.1.0 in a wheel"),
            (libraries("libamdhip64.so.7.2.53211", folder=WHEEL), ExitCode.GOOD, "ROCm 7.2 in a wheel"),
            (libraries("libamdhip64.so.6", folder=WHEEL), ExitCode.GOOD, f"not known: {window} ? in a wheel"),
            (libraries("libhsa-runtime64.so.1", folder=WHEEL), ExitCode.GOOD, "no obstacle found"),
        )
    ):
        theirs = tmp_path / f"{number}"
        fabric_builder.c_library(theirs, 39)
        put(theirs)
        libraries("librccl.so.1", folder="opt/theirs", named="RCCL version 2.27.7-")(theirs)  # of 7.1 or 7.2
        assert main(["explain", "--base", str(theirs), "--site", site]) == code, line
        assert line in unwrapped(capsys.readouterr().out)


@pytest.fixture
def site(tmp_path: Path) -> str:
    (tmp_path / "site.toml").write_text(SITE)
    return str(tmp_path / "site.toml")


@pytest.mark.usefixtures("clean_home")
def test_a_plugin_for_the_hosts_libfabric_is_put_before_the_images_own(
    site: str, tmp_path: Path, capsys: Capture
) -> None:
    """`adapt` accepts what `bind` proposes if the image's plugin requires a newer libfabric than the host's."""
    theirs = fabric_builder.image(tmp_path / "theirs", glibc=39, fabric="FABRIC_1.8")
    node = fabric_builder.host(tmp_path / "node")
    snapshot = fabric_builder.snapshot(node)
    assert main(["adapt", str(theirs), "--site", site, "--dry-run"]) == ExitCode.GOOD
    assert "aws-ofi-nccl" not in capsys.readouterr().out
    assert main(["bind", str(theirs), "--host", str(snapshot)]) == ExitCode.NO
    message = unwrapped(capsys.readouterr().err)
    words = f"lumiimg adapt {theirs} --site generic --source host-libfabric=host-libfabric.tar"
    assert words in message
    (tmp_path / "host-libfabric.tar").write_bytes(b"")
    source = f"host-libfabric={tmp_path}/host-libfabric.tar"
    assert main(["adapt", str(theirs), "--site", site, "--source", source, "--dry-run"]) == ExitCode.GOOD
    assert "would build theirs + fabric-host + aws-ofi-nccl" in capsys.readouterr().out


def environment(setting: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / ".singularity.d/env/91-more.sh").write_text(f"export {setting}\n")

    return change


def conf(setting: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / "etc/rccl.conf").write_text(f"{setting}\n")

    return change


PLUGINS: dict[str, tuple[str, tuple[Callable[[Path], None], ...], bool]] = {
    # the plugin of the image, the image's other content, and whether its RCCL opens that plugin
    "a suffix that RCCL's own file names": ("usr/lib64/librccl-net-aws.so", (conf("NCCL_NET_PLUGIN=aws"),), True),
    "ofi, which nothing names": ("usr/lib64/librccl-net-ofi.so", (), False),
    "set to nothing over RCCL's own file": (
        "usr/lib64/librccl-net-aws.so",
        (environment("NCCL_NET_PLUGIN="), conf("NCCL_NET_PLUGIN=aws")),
        False,
    ),
    "a path, which is a suffix to this RCCL": ("opt/p/x.so", (environment("NCCL_NET_PLUGIN=/opt/p/x.so"),), False),
}


@pytest.mark.usefixtures("clean_home")
def test_adapt_adds_a_plugin_only_where_rccl_asks_for_none_that_is_there(
    image: Path, tmp_path: Path, site: str, capsys: Capture
) -> None:
    """As in `check`: a plugin that RCCL finds counts, whatever NCCL_NET_PLUGIN of the image calls it."""
    for number, (case, (file, changes, is_asked_for)) in enumerate(PLUGINS.items()):
        theirs = tmp_path / f"{number}/theirs"
        shutil.copytree(image, theirs, symlinks=True)
        for change in changes:
            change(theirs)
        libc = theirs / "lib64/libc.so.6"
        fabric_builder.versioned(theirs / file, needs={libc: ("GLIBC_2.14",)}, source=fabric_builder.PLUGIN)
        with open_image(theirs) as opened:
            found = check_libraries(ImageInContext(theirs, opened, opened, {})).static.path.plugin
            assert (found == f"/{file}") is is_asked_for, case
        assert main(["adapt", str(theirs), "--site", site, "--dry-run"]) == ExitCode.GOOD, case
        assert ("+ aws-ofi-nccl" not in unwrapped(capsys.readouterr().out)) is is_asked_for, case
        main(["explain", "--base", str(theirs), "--site", site, "--json"])
        assert (json.loads(capsys.readouterr().out)["plugin"] == "theirs") is is_asked_for, case


@pytest.mark.usefixtures("clean_home")
def test_adapt_names_the_variables_of_the_image_that_block_the_network(
    image: Path, site: str, tmp_path: Path, capsys: Capture
) -> None:
    """An added layer does not remove the variables; RCCL would ignore the added plugin."""
    other, path = "[plugin.other-name]", "makes RCCL look only for librccl-net-aws.so"
    sockets = ("NCCL_NET=Socket", "[network.forced]", "FI_PROVIDER=tcp", "[provider.excluded]", "env -u NCCL_NET")
    for change, expected in (
        (environment("A=b"), ()),
        (environment("NCCL_NET=Socket FI_PROVIDER=tcp"), sockets),
        (environment("NCCL_NET_PLUGIN=aws"), (other, path, "env -u NCCL_NET_PLUGIN")),
        (environment("NCCL_NET_PLUGIN=ofi"), ()),
        (conf("NCCL_NET_PLUGIN=aws"), (other, "take NCCL_NET_PLUGIN out of the image's /etc/rccl.conf")),
    ):
        (image / ".singularity.d/env/91-more.sh").unlink(missing_ok=True)
        change(image)
        assert main(["adapt", str(image), "--site", site, "--dry-run"]) == ExitCode.GOOD
        error = unwrapped(capsys.readouterr().err)
        assert [part for part in expected if part not in error] == []
        assert expected or not [part for part in (other, "sets that, too") if part in error]
    whole = fabric_builder.bundled(tmp_path / "whole")
    environment("NCCL_NET=Socket")(whole)
    assert main(["adapt", str(whole), "--site", site, "--json"]) == ExitCode.NO
    assert "NCCL_NET=Socket" in json.loads(capsys.readouterr().out)["doubts"][0]


@pytest.mark.usefixtures("clean_home")
def test_what_the_image_has_is_a_constraint(image: Path, site: str, capsys: Capture) -> None:
    assert main(["build", "--base", str(image), "--add", "pytorch==2.7.1", "--site", site, "--dry-run"]) == ExitCode.NO
    assert "rocm 6.4.4" in capsys.readouterr().err
    (image / "opt/rocm/.info/version").write_text("5.7.1\n")
    assert main(["explain", "--base", str(image), "--site", site]) == ExitCode.NO
    assert "ROCm 5.7.1 of the image" in capsys.readouterr().out


@pytest.mark.usefixtures("clean_home")
def test_an_image_whose_own_files_do_not_load_is_not_called_complete(
    tmp_path: Path, site: str, capsys: Capture
) -> None:
    """As in `check`, if no layer would change that."""
    for number, spoil in enumerate((plugin_elsewhere, libfabric_without_its_libcxi, libfabric_without_cxi)):
        image = fabric_builder.bundled(tmp_path / str(number))
        identity, code = spoil(image)
        assert main(["adapt", str(image), "--site", site]) == code
        assert f"[{identity}]" in unwrapped(capsys.readouterr().err)


def plugin_elsewhere(image: Path) -> tuple[str, ExitCode]:
    (image / "opt/p").mkdir()
    (image / "usr/lib64/librccl-net.so").rename(image / "opt/p/librccl-net.so")
    return "plugin.not-on-path", ExitCode.NO


def libfabric_without_its_libcxi(image: Path) -> tuple[str, ExitCode]:
    (image / "opt/p").mkdir()
    (image / "usr/lib64/libcxi.so.1").rename(image / "opt/p/libcxi.so.1")
    return "plugin.needs-host", ExitCode.UNDECIDED


def libfabric_without_cxi(image: Path) -> tuple[str, ExitCode]:
    libc = image / "lib64/libc.so.6"
    fabric_builder.versioned(image / "usr/lib64/libfabric.so.1", defines=("FABRIC_1.3",), needs={libc: ("GLIBC_2.14",)})
    return "provider.no-cxi", ExitCode.UNDECIDED


@pytest.mark.usefixtures("clean_home")
def test_what_is_no_fabric_or_no_torch_for_rocm_is_not_taken_for_one(
    tmp_path: Path, site: str, capsys: Capture
) -> None:
    image = fabric_builder.image(tmp_path / "hollow", glibc=39)
    (image / "usr/lib").mkdir(parents=True, exist_ok=True)
    (image / "usr/lib/libcxi.so.1").write_bytes(b"")
    assert main(["adapt", str(image), "--site", site, "--dry-run"]) == ExitCode.GOOD
    assert "fabric-host" in capsys.readouterr().out
    info = image / "opt/venv/lib/python3.12/site-packages/torch-2.9.1+cu128.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\n")
    assert main(["explain", "--base", str(image), "--site", site]) == ExitCode.NO
    assert "torch 2.9.1+cu128" in capsys.readouterr().out


@pytest.mark.usefixtures("clean_home")
def test_an_image_in_a_registry_is_fetched_once_and_read(image: Path, site: str, capsys: Capture) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(image, ".")
    with serve(World(image=content.getvalue())) as world:
        words = ["adapt", "docker://them/vllm:v1", "--site", site, *world.mirrors, "--dry-run"]
        assert main(words) == ExitCode.GOOD
        out, err = capsys.readouterr()
        assert "vllm 0.12.0" in err
        assert "fetching" in err
        assert "would build vllm-v1 + fabric-host + aws-ofi-nccl" in out
        lock = str(image.parent / "their.lock")
        base = ["--base", "docker://them/vllm:v1", "--add", "netprobe"]
        assert main(["lock", *base, *world.mirrors, "-o", lock]) == ExitCode.GOOD
        document = tomllib.loads(Path(lock).read_text())
        assert document["base"]["from"].startswith("them/vllm:v1@sha256:")
        assert document["base"]["from"].endswith(document["base"]["digest"])
        assert document["base"]["image"]["has"]["vllm"] == "0.12.0"
        assert main(["build", "--locked", "--trust-lock", "--lock", lock, *world.mirrors, "--dry-run"]) == ExitCode.GOOD
        world.asked.clear()
        assert main(words) == ExitCode.GOOD
        assert not [path for path in world.asked if "/blobs/" in path and digest(world.image) in path]


@pytest.mark.usefixtures("clean_home")
def test_a_system_that_is_called_as_a_component_is_not_that_component(image: Path) -> None:
    for name in ("net-plugin", "rocm", "debian"):
        (image / "etc/os-release").write_text(f"ID={name}\n")
        with open_image(image) as opened:
            found = Inventory(opened)
            assert (name in found.provides, "os" in found.has) == (name == "debian", name == "debian")


@pytest.mark.usefixtures("clean_home")
def test_a_plugin_that_asks_for_a_newer_libfabric_than_the_nodes_is_no_quiet_yes(
    tmp_path: Path, capsys: Capture
) -> None:
    """Otherwise, `adapt` would build what `bind` refuses with `adapt` as the remedy."""
    host = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"), host="nid005001")
    for name, interface, refused in (("newer", "FABRIC_1.9", True), ("fits", "FABRIC_1.3", False)):
        theirs = fabric_builder.image(tmp_path / name, fabric=interface)
        (theirs / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
        words = ["adapt", str(theirs), "--site", "lumi", "--host", str(host), "--dry-run"]
        assert main(words) == (ExitCode.NO if refused else ExitCode.GOOD)
        output = unwrapped("".join(capsys.readouterr()))
        assert ("nothing was built: " in output) is refused
        assert ("no set of binds of nid005001 loads: FABRIC_1.9" in output) is refused
        assert (f"adapt {theirs} --site lumi --source host-libfabric=" in output) is refused
        assert main(["bind", str(theirs), "--host", str(host)]) == (ExitCode.NO if refused else ExitCode.GOOD)
        capsys.readouterr()
        # none is compiled here, so nothing is reported about the libfabric to compile with
        assert "compiled against" not in output
        assert "pack it there" not in output
        # what the C library prevents works with a bundled fabric
        assert main([*words, "--fabric", "bundled"]) == ExitCode.GOOD
        assert "no set of binds" not in unwrapped("".join(capsys.readouterr()))
