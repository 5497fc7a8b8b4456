"""Images whose names say what they have: the next one is a base on the day it appears, and files count more than names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.layers import NAME
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

HOME = {"HOME": "/nonexistent"}
SEPTEMBER = "lumi-multitorch-u24r72f21m50t211-20260929-104918"


NAMES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (SEPTEMBER, SEPTEMBER, {"rocm": "7.2", "torch": "2.11", "libfabric": "2.1", "os": "Ubuntu 24.04"}),
    (SEPTEMBER.replace("-104918", "_104918"), SEPTEMBER, {"glibc": "2.39", "python": "3.12", "rccl": "2.27.7"}),
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
        "docker.io/lumiaifactory/lumi-multitorch:torch-u24r70f21m50t210-20260415_130625",
        "lumi-multitorch-u24r70",
        {"torch": "2.10.0"},
    ),
    (
        "rocm/pytorch:rocm7.14.0_ubuntu24.04_py3.12_pytorch_release_2.14.0",
        "rocm-pytorch-rocm7.14.0-ubuntu24.04-py3.12-pytorch-release-2.14.0",
        {"rocm": "7.14.0", "torch": "2.14.0", "python": "3.12", "glibc": "2.39"},
    ),
    ("rocm/vllm:rocm7.2.0_vllm_0.25.0_20260801", "rocm-vllm-rocm7.2.0-vllm-0.25.0-20260801", {"vllm": "0.25.0"}),
)
"""What means which base, and what that has."""
NO_NAMES = (
    "lumi-multitorch-u24r72f21m50t211",
    "/elsewhere/lumi-multitorch-full-u24r72f21m50t211-20260929_104918.sif",
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
        assert NAME.fullmatch(base), "a lock can have it"
    for name in NO_NAMES:
        assert catalogue.meant_by(name) == name
    assert SEPTEMBER in catalogue.base_names()
    places = [one.origin for one in catalogue.base(SEPTEMBER).bootstraps]
    folder = "/appl/local/laifs/containers/lumi-multitorch-u24r72f21m50t211-20260929_104918"
    assert places == [
        f"{folder}/lumi-multitorch-torch-u24r72f21m50t211-20260929_104918.sif",
        "docker.io/lumiaifactory/lumi-multitorch:torch-u24r72f21m50t211-20260929_104918",
    ]


@pytest.mark.usefixtures("clean_home")
def test_a_base_by_its_name_is_a_doubt_and_where_the_file_is_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.bundled(tmp_path / "lumi-multitorch-u24r72f21m50t211-20260929_104918.sif")
    (image / "opt/rocm/.info").mkdir(parents=True, exist_ok=True)
    (image / "opt/rocm/.info/version").write_text("7.0.2-1\n")
    for base, rocm in ((SEPTEMBER, "7.2"), (str(image), "7.0.2")):
        main(["explain", "--base", base, "--site", "lumi", "--verbose"])
        said = unwrapped(capsys.readouterr().out)
        assert f"rocm {rocm}" in said or f"ROCm {rocm}" in said
        assert ("by its name, and what follows from that, it has rocm 7.2" in said) == (base == SEPTEMBER)


@pytest.mark.usefixtures("clean_home")
def test_the_images_of_this_machine_are_found_the_newest_first(tmp_path: Path) -> None:
    for place in ("{0}.sif", "{0}/{0}.sif"):
        images = tmp_path / f"images{len(place)}"
        for age, name in enumerate(("stack-r73t212", "stack-r72t212")):
            (image := images / place.format(name)).parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(b"")
            os.utime(image, (0, 1000 - age))
        file = f"{images}/{place.format('stack-r{rocm}{more}t212')}"
        found = open_catalogue(HOME, [family(tmp_path, file)]).images_here()
        assert found == [images / place.format(name) for name in ("stack-r73t212", "stack-r72t212")]


def family(tmp_path: Path, file: str, **other: str) -> Path:
    """A family of a user's own; `other` lines, in TOML, are in the place of those of that key."""
    lines = {
        "pattern": "'stack-r(?P<rocm>[0-9])(?P<more>[0-9])t212'",
        "summary": '"ours"',
        "has": '{ rocm = "{rocm}.{more}", torch = "2.12" }',
        "file": json.dumps(file),
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
        ("summary", '"x-{rocm.__class__}"', "holds {rocm.__class__}, which is not a group of the pattern"),
        ("has", '{ torch = "{torch}" }', "key 'named.has.torch' holds {torch}"),
        ("tag", '"x:{}"', "key 'named.tag' holds {}"),
        ("pattern", "'('", "is not a valid regular expression"),
        ("known", '["Mine"]', "key 'named.known[0]' is 'Mine'"),
    ):
        layers = family(tmp_path, "/images/{date}.sif", **{key: value})
        assert main(["show", "stack-r70", "--layers", str(layers)]) == ExitCode.BAD_INPUT
        assert fault in capsys.readouterr().err
