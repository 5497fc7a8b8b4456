"""The machine that an image is for: another processor, or a driver that does not serve its ROCm, is a reasoned no."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.cli.main import main
from tests.shared.fabric_builder import bundled, host, snapshot
from tests.shared.sif_builder import made_sif

if TYPE_CHECKING:
    from pathlib import Path

AARCH64 = (183).to_bytes(2, "little")
OF_SIF = 45
"""Offset of the architecture in the header of a SIF."""


def turned(root: Path) -> Path:
    """Mark every ELF file of an image as one for aarch64."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and (data := path.read_bytes())[:4] == b"\x7fELF":
            path.write_bytes(data[:18] + AARCH64 + data[20:])
    return root


def with_rocm(root: Path, version: str) -> Path:
    (root / "opt/rocm/.info").mkdir(parents=True, exist_ok=True)
    (root / "opt/rocm/.info/version").write_text(f"{version}-1\n")
    return root


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return bundled(tmp_path / "image")


def check(capsys: pytest.CaptureFixture[str], image: Path, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["check", str(image), "--level", "static", "--json", *more])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def finding(document: dict[str, Any], code: str) -> dict[str, Any] | None:
    return next((found for found in document["findings"] if found["id"] == code), None)


@pytest.mark.parametrize("more", [(), ("--site", "lumi"), ("--host",)])
def test_an_image_for_other_processors_is_a_no(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    if more == ("--host",):
        more = ("--host", str(snapshot(host(tmp_path / "node"), host="nid001")))
    assert check(capsys, image, *more)["answer"] == "no-obstacle"
    report = check(capsys, turned(image), *more)
    assert report["answer"] == "no"
    assert report["sentence"] == "NO: this image is built for another CPU architecture than the machine's"
    reported = finding(report, "image.architecture")
    assert reported is not None
    whose = "lumi" if "--site" in more else "nid001" if more else "machines"
    assert "is for aarch64, and " + whose in reported["summary"]
    assert "has x86_64" in reported["summary"] or "have x86_64" in reported["summary"]


def test_an_image_for_other_processors_is_not_asked_for_again(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported = finding(check(capsys, image, "--site", "alps"), "image.architecture")
    assert reported is not None
    assert "alps has aarch64" in reported["summary"]
    assert "amd64" not in "".join(reported["remedy"])


def test_an_image_is_for_what_its_file_says_too(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sif = made_sif(image, tmp_path / "image.sif")
    assert finding(check(capsys, sif, "--site", "lumi"), "image.architecture") is None
    data = bytearray(sif.read_bytes())
    data[OF_SIF : OF_SIF + 2] = b"04"
    sif.write_bytes(data)
    report = check(capsys, sif, "--site", "lumi")
    assert report["answer"] == "no"
    reported = finding(report, "image.architecture")
    assert reported is not None
    assert reported["summary"] == "the image is marked as aarch64, but lumi has x86_64"
    assert main(["job", str(sif), "--site", "lumi", "--", "true"]) == 1
    assert "is marked as aarch64" in capsys.readouterr().err
    assert main(["job", str(sif), "--site", "generic", "--", "true"]) == 1


DRIVERS = [
    ("6.2.4", "lumi", "no-obstacle"),
    ("6.4.4", "lumi", "no-obstacle"),
    ("7.0.2", "lumi", "no-obstacle"),
    ("7.2.0", "lumi", "undecided"),  # February and September disagree
    ("5.7.1", "lumi", "no"),
    ("6.2.4", "alps", "no"),
    ("7.2.0", "generic", "no-obstacle"),
]


def test_the_driver_of_the_site_is_compared_with_the_rocm(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rocm, site, answer in DRIVERS:
        report = check(capsys, with_rocm(image, rocm), "--site", site)
        assert report["answer"] == answer, (rocm, site, report["findings"])
        assert (finding(report, "image.driver") is None) is (site == "generic")
        assert main(["job", str(image), "--site", "lumi", "--", "true"]) == 0
        noted = f"ROCm {rocm} of the image, and the driver of lumi serves" in " ".join(capsys.readouterr().err.split())
        assert noted is (rocm in {"5.7.1", "7.2.0"})
