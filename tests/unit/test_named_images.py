"""Images whose names say what they have: the next one is a base on the day it appears, and files count more than names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

HOME = {"HOME": "/nonexistent"}
SEPTEMBER = "lumi-multitorch-u24r72f21m50t211-20260929-104918"


NAMES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (SEPTEMBER, SEPTEMBER, {"rocm": "7.2", "torch": "2.11", "libfabric": "2.1", "os": "Ubuntu 24.04"}),
    ("lumi-multitorch-latest", SEPTEMBER, {"rocm": "7.2", "glibc": "2.39", "python": "3.12", "rccl": "2.27.7"}),
    ("/appl/local/laifs/containers/lumi-multitorch-latest.sif", SEPTEMBER, {"rocm": "7.2"}),
    ("lumi-multitorch-u24r72f21m50t211", SEPTEMBER, {}),  # no date: but the beginning of one that is known
    # what nobody has seen yet
    (
        "/elsewhere/lumi-multitorch-u26r714f25m51t215-20270301_010203.sif",
        "lumi-multitorch-u26r714f25m51t215-20270301-010203",
        {"rocm": "7.14", "torch": "2.15", "libfabric": "2.5", "os": "Ubuntu 26.04"},
    ),
    (
        "lumi-multitorch-u24r102f21m50t29-20270301_010203",
        "lumi-multitorch-u24r102f21m50t29-20270301-010203",
        {"rocm": "10.2", "torch": "2.9"},
    ),
    # the members that the catalogue has facts of are those
    ("lumi-multitorch-u24r70f21m50t210-20260415_130625", "lumi-multitorch-u24r70", {"torch": "2.10.0"}),
    (
        "rocm/pytorch:rocm7.14.0_ubuntu24.04_py3.12_pytorch_release_2.14.0",
        "rocm-pytorch-2.14.0-rocm7.14.0-ubuntu24.04-py3.12",
        {"rocm": "7.14.0", "torch": "2.14.0", "python": "3.12", "glibc": "2.39"},
    ),
    ("rocm/vllm:rocm7.2.0_vllm_0.25.0_20260801", "rocm-vllm-0.25.0-rocm7.2.0-20260801", {"vllm": "0.25.0"}),
)
"""What means which base, and what that has."""
NO_NAMES = (
    # a day, and a time, that no calendar has
    "lumi-multitorch-u24r72f21m50t211-20260931_104918",
    # no image of a registry is called so: the file of that name is another
    "docker.io/lumiaifactory/lumi-multitorch:torch-u24r72f21m50t211-20260929-104918",
    "rocm/pytorch:latest",
    "quay.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
    "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_" + "9" * 500,
)


def test_a_name_is_a_base_with_what_it_says_and_one_that_says_less_is_none() -> None:
    catalogue = open_catalogue(HOME)
    for name, base, has in NAMES:
        assert catalogue.meant_by(name) == base
        found = catalogue.base(base)
        assert has.items() <= found.has.items(), name
        assert found.bootstraps, name
    for name in NO_NAMES:
        assert catalogue.meant_by(name) == name
    folder = "/appl/local/laifs/containers"
    name = "u24r70f21m50t210-20260807_115122"
    for flavour in ("torch", "full", "plus"):  # whichever of its folder it is
        path = f"{folder}/lumi-multitorch-{name}/lumi-multitorch-{flavour}-{name}.sif"
        base = f"lumi-multitorch-{name}".replace("_", "-")
        assert catalogue.meant_by(path) == base
        assert catalogue.base(base).bootstraps[0].origin == path.replace(f"-{flavour}-", "-torch-")


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


@pytest.mark.usefixtures("clean_home")
def test_the_newest_is_the_newest_that_is_here_or_what_its_site_calls_so(tmp_path: Path) -> None:
    for images, place in ((tmp_path / "flat", "{0}.sif"), (tmp_path / "folders", "{0}/{0}.sif")):
        for day in ("20270101_000000", "20261201_000000", "99999999_000000"):
            (image := images / place.format(f"stack-r73t212-{day}")).parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(b"")
        file = place.format("stack-r{rocm}{more}t212-{date}_{time}")
        catalogue = open_catalogue(HOME, [family(tmp_path, f"{images}/{file}")])
        assert catalogue.meant_by("stack-latest") == "stack-r73t212-20270101-000000"
        (images / "stack-latest.sif").symlink_to(place.format("stack-r73t212-20261201_000000"))
        assert catalogue.meant_by("stack-latest") == "stack-r73t212-20261201-000000"
        assert catalogue.meant_by("stack-r73") == "stack-r73t212-20270101-000000"
        assert catalogue.base("stack-r73t212-20261201-000000").has == {"rocm": "7.3", "torch": "2.12"}
        assert images / place.format("stack-r73t212-20270101_000000") in catalogue.images_here()


def family(tmp_path: Path, file: str, **other: str) -> Path:
    """A family of a user's own; `other` lines, in TOML, are in the place of those of that key."""
    lines = {
        "patterns": "['stack-r(?P<rocm>[0-9])(?P<more>[0-9])t212-(?P<date>[0-9]{8})[_-](?P<time>[0-9]{6})']",
        "name": '"stack-r{rocm}{more}t212-{date}-{time}"',
        "summary": '"ours"',
        "has": '{ rocm = "{rocm}.{more}", torch = "2.12" }',
        "file": json.dumps(file),
        "latest": '"stack-latest"',
        "source": '"us"',
        "date": "2026-11-24",
        **other,
    }
    layers = tmp_path / "layers"
    (layers / "stack").mkdir(parents=True, exist_ok=True)
    (layers / "stack/post.sh").write_text("true\n")
    (layers / "stack/layer.toml").write_text(
        'kind = "base"\nsummary = "ours"\nsource = "us"\ndate = 2026-11-24\n\n'
        '[[variant]]\nname = "stack-r70"\nsummary = "old"\nagent = "localimage"\nfrom = "/nowhere/stack.sif"\n'
        'has = { rocm = "7.0" }\n\n[named]\n' + "".join(f"{key} = {value}\n" for key, value in lines.items())
    )
    return layers


def test_what_no_name_can_say_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rocm/pytorch:latest", "docker.io/rocm/vllm:rocm7.2_odd", "quay.io/a/b/c:1"):
        assert main(["explain", "--base", name]) == ExitCode.BAD_INPUT
        assert f"{name}: no such file; one of a registry: --base docker://{name}" in unwrapped(capsys.readouterr().err)
    for key, value, fault in (
        ("name", '"x-{rocm.__class__}"', "braces are for names"),
        ("name", '"x-{gpu}"', "holds {gpu}; groups of all patterns: date, more, rocm, time"),
        ("has", '{ torch = "{torch}" }', "key 'named.has.torch' holds {torch}"),
        ("tag", '"x:{}"', "braces are for names"),
        ("patterns", "['(']", "is not a valid regular expression"),
        ("patterns", "[]", "key 'named.patterns' is empty; a pattern at least is needed"),
    ):
        layers = family(tmp_path, "/images/{date}.sif", **{key: value})
        assert main(["show", "stack-r70", "--layers", str(layers)]) == ExitCode.BAD_INPUT
        assert fault in capsys.readouterr().err
