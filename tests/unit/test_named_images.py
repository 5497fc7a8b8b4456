"""Images whose names say what they have: the next one is a base on the day it appears, and files count more than names."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.named_images import unpacked
from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped
from tests.shared.world import World, serve

HOME = {"HOME": "/nonexistent"}
SEPTEMBER = "lumi-multitorch-u24r72f21m50t211-20260929-104918"


@pytest.mark.parametrize(
    ("name", "base", "has"),
    [
        (SEPTEMBER, SEPTEMBER, {"rocm": "7.2", "torch": "2.11", "libfabric": "2.1", "os": "Ubuntu 24.04"}),
        ("lumi-multitorch-u24r72f21m50t211-20260929_104918", SEPTEMBER, {"rocm": "7.2"}),
        ("lumi-multitorch-latest", SEPTEMBER, {"rocm": "7.2", "glibc": "2.39", "python": "3.12", "rccl": "2.27.7"}),
        ("/appl/local/laifs/containers/lumi-multitorch-latest.sif", SEPTEMBER, {"rocm": "7.2"}),
        # what nobody has seen yet
        (
            "/elsewhere/lumi-multitorch-u26r714f25m51t215-20270301_010203.sif",
            "lumi-multitorch-u26r714f25m51t215-20270301-010203",
            {"rocm": "7.14", "torch": "2.15", "libfabric": "2.5", "os": "Ubuntu 26.04"},
        ),
        # the members that the catalogue has facts of are those
        ("lumi-multitorch-u24r70f21m50t210-20260415_130625", "lumi-multitorch-u24r70", {"torch": "2.10.0"}),
        (
            "rocm/pytorch:rocm7.14.0_ubuntu24.04_py3.12_pytorch_release_2.14.0",
            "rocm-pytorch-2.14.0-rocm7.14.0-ubuntu24.04-py3.12",
            {"rocm": "7.14.0", "torch": "2.14.0", "python": "3.12", "glibc": "2.39"},
        ),
        ("rocm/vllm:rocm7.2.0_vllm_0.25.0_20260801", "rocm-vllm-0.25.0-rocm7.2.0-20260801", {"vllm": "0.25.0"}),
    ],
)
def test_a_name_is_a_base_with_what_it_says(name: str, base: str, has: dict[str, str]) -> None:
    catalogue = open_catalogue(HOME)
    assert catalogue.meant_by(name) == base
    found = catalogue.base(base)
    assert has.items() <= found.has.items()
    assert found.bootstraps


@pytest.mark.parametrize(
    "name",
    [
        "lumi-multitorch-u24r72f21m50t211",  # no date: but the beginning of one that is known
        "lumi-multitorch-u24r72f21m50t211-20260931_104918",  # a day, and a time, that no calendar has
        "lumi-multitorch-u24r72f21m50t211-00000000_000000",
        "rocm/pytorch:latest",
        "quay.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
        "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_" + "9" * 500,
    ],
)
def test_a_name_that_says_less_is_none_of_these(name: str) -> None:
    meant = open_catalogue(HOME).meant_by(name)
    assert meant == (SEPTEMBER if name.endswith("t211") else name)


def test_digits_are_versions() -> None:
    found = {digits: unpacked("rocm", digits) for digits in ("64", "72", "714", "100", "102")}
    assert found == {"64": "6.4", "72": "7.2", "714": "7.14", "100": "10.0", "102": "10.2"}
    assert (unpacked("torch", "29"), unpacked("torch", "211"), unpacked("ubuntu", "24")) == ("2.9", "2.11", "24.04")


def test_explain_says_that_only_the_name_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["explain", "--base", "lumi-multitorch-latest", "--add", "transformers", "--site", "lumi", "--verbose"])
        == 0
    )
    said = unwrapped(capsys.readouterr().out)
    assert f"--base {SEPTEMBER} --add transformers on lumi" in said
    assert "by its name, and what follows from that, it has rocm 7.2, libfabric 2.1, torch 2.11" in said


@pytest.mark.usefixtures("clean_home")
def test_an_image_by_its_name_is_locked_and_built_from_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(tmp_path / "lumiimg.lock")
    tag = "rocm7.0.2_ubuntu24.04_py3.12_pytorch_release_2.8.0"
    with serve(World()) as world:
        words = ["--base", f"rocm/pytorch:{tag}", "--site", "lumi", *world.mirrors]
        assert main(["lock", *words, "-o", lock]) == ExitCode.GOOD
        assert main(["build", "--locked", "--lock", lock, *world.mirrors, "--dry-run"]) == ExitCode.GOOD
    base = tomllib.loads(Path(lock).read_text())["base"]
    assert base["from"] == f"docker.io/rocm/pytorch:{tag}"
    assert base["digest"].startswith("sha256:")
    assert "would build rocm-pytorch-2.8.0-rocm7.0.2-ubuntu24.04-py3.12" in capsys.readouterr().out


def test_known_images_are_listed_with_their_days(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == ExitCode.GOOD
    names = {entry["name"]: entry["summary"] for entry in json.loads(capsys.readouterr().out)["entries"]}
    assert names[SEPTEMBER].endswith("of 2026-09-29: by its name")
    # of each image that is known the day is in `show`
    assert main(["show", SEPTEMBER]) == ExitCode.GOOD
    assert "lumi-multitorch-torch-u24r72f21m50t211-20260929_104918.sif" in "".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("clean_home")
def test_where_the_file_is_it_is_read_and_held_against_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.bundled(tmp_path / "lumi-multitorch-u24r72f21m50t211-20260929_104918.sif")
    for path, text in (("opt/rocm/.info/version", "7.0.2-1\n"), ("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')):
        (image / path).parent.mkdir(parents=True, exist_ok=True)
        (image / path).write_text(text)
    main(["explain", "--base", str(image), "--site", "lumi"])
    said = unwrapped(capsys.readouterr().out)
    assert "its name says rocm 7.2, and its files have 7.0.2" in said
    assert "its name says os" not in said
    (newest := tmp_path / "lumi-multitorch-latest.sif").symlink_to(image.name)
    main(["explain", "--base", str(newest), "--site", "lumi"])
    assert "its name says rocm 7.2, and its files have 7.0.2" in unwrapped(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["rocm/pytorch:latest", "docker.io/rocm/vllm:rocm7.2_odd", "quay.io/a/b/c:1"])
def test_an_image_of_a_registry_that_is_not_called_one_is_said_how_to_call(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--base", name]) == ExitCode.BAD_INPUT
    assert f"{name}: no such file; one of a registry: --base docker://{name}" in unwrapped(capsys.readouterr().err)


@pytest.mark.usefixtures("clean_home")
def test_the_newest_is_the_newest_that_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make_layer_of: Path
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for day in ("20270101_000000", "20261201_000000", "99999999_000000"):
        (folder / f"stack-r73t212-{day}.sif").write_bytes(b"")
    catalogue = open_catalogue(HOME, [make_layer_of])
    assert catalogue.meant_by("stack-latest") == "stack-r73t212-20270101-000000"
    (folder / "stack-latest.sif").symlink_to("stack-r73t212-20261201_000000.sif")
    assert catalogue.meant_by("stack-latest") == "stack-r73t212-20261201-000000"  # as its site has it
    assert catalogue.meant_by("stack-r73") == "stack-r73t212-20270101-000000"
    assert catalogue.base("stack-r73t212-20261201-000000").has == {"rocm": "7.3", "torch": "2.12"}
    capsys.readouterr()


@pytest.mark.parametrize("flavour", ["torch", "full", "plus"])
def test_a_path_of_lumi_names_the_image_whichever_of_its_folder_it_is(flavour: str) -> None:
    name = "u24r70f21m50t210-20260807_115122"
    path = f"/appl/local/laifs/containers/lumi-multitorch-{name}/lumi-multitorch-{flavour}-{name}.sif"
    base = f"lumi-multitorch-{name}".replace("_", "-")
    catalogue = open_catalogue(HOME)
    assert catalogue.meant_by(path) == base
    assert catalogue.base(base).bootstraps[0].origin == path.replace(f"-{flavour}-", "-torch-")


@pytest.mark.usefixtures("clean_home")
def test_images_in_folders_of_their_own_are_found_and_so_is_the_newest_by_its_link(
    tmp_path: Path, make_layer_of: Path
) -> None:
    layer = make_layer_of / "stack" / "layer.toml"
    text = layer.read_text().replace("/images/stack-r", "/images/stack-r{rocm}t{torch}-{date}_{time}/stack-r")
    layer.write_text(text)
    for day in ("20270101_000000", "20261201_000000"):
        folder = tmp_path / "images" / f"stack-r73t212-{day}"
        folder.mkdir(parents=True)
        (folder / f"stack-r73t212-{day}.sif").write_bytes(b"")
    catalogue = open_catalogue(HOME, [make_layer_of])
    assert catalogue.meant_by("stack-latest") == "stack-r73t212-20270101-000000"
    link = tmp_path / "images" / "stack-latest.sif"
    link.symlink_to("stack-r73t212-20261201_000000/stack-r73t212-20261201_000000.sif")
    assert catalogue.meant_by("stack-latest") == "stack-r73t212-20261201-000000"


@pytest.fixture
def make_layer_of(tmp_path: Path) -> Path:
    """A family of a user's own, whose images lie in a folder of the test."""
    layers = tmp_path / "layers"
    (layers / "stack").mkdir(parents=True)
    (layers / "stack/post.sh").write_text("true\n")
    (layers / "stack/layer.toml").write_text(
        'kind = "base"\nsummary = "ours"\nsource = "us"\ndate = 2026-11-24\n\n'
        '[[variant]]\nname = "stack-r70"\nsummary = "old"\nagent = "localimage"\nfrom = "/nowhere/stack.sif"\n'
        'has = { rocm = "7.0" }\n\n'
        '[named]\nname = "stack-r{rocm}t{torch}-{date}-{time}"\nforms = ["stack-r{rocm}t{torch}-{date}_{time}"]\n'
        f'packed = true\nfile = "{tmp_path}/images/stack-r{{rocm}}t{{torch}}-{{date}}_{{time}}.sif"\n'
        'latest = "stack-latest"\nsource = "us"\n'
    )
    return layers


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('forms = ["x-{rocm.__class__}"]', "braces are for names"),
        ('forms = ["x-{gpu}"]', "holds {gpu}"),
        ('tag = "x:{}"', "braces are for names"),
    ],
)
def test_a_form_that_no_name_can_have_is_refused(
    line: str, fault: str, make_layer_of: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = make_layer_of / "stack/layer.toml"
    key = line.partition(" =")[0]
    kept = [text for text in toml.read_text().splitlines() if not text.startswith(f"{key} =")]
    toml.write_text("\n".join([*kept, line, ""]))
    assert main(["show", "stack-r70", "--layers", str(make_layer_of)]) == ExitCode.BAD_INPUT
    assert fault in capsys.readouterr().err
