"""What is searched for a CPU, by glibc versions that are not the one of this machine; and what is said, not followed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lumiimg.elf.hwcaps import ZEN3, platform, subdirectories
from lumiimg.elf.loader import Process
from lumiimg.image import open_image
from tests.shared.elf_builder import exe, loader_cache, new_runpath, so
from tests.shared.fabric_builder import c_library


def test_levels_are_tried_first_where_glibc_knows_them() -> None:
    assert subdirectories(ZEN3, 62, 36) == ("glibc-hwcaps/x86-64-v3/", "glibc-hwcaps/x86-64-v2/", "")
    assert subdirectories(ZEN3, 62, 32) == subdirectories(ZEN3, 183, 43) == ("",)
    assert subdirectories(ZEN3, 62, None) == subdirectories(ZEN3, 62, 43)


def test_platform_is_of_the_vendor() -> None:
    assert platform(62, ZEN3, intel=False) == "x86_64"
    assert platform(62, ZEN3, intel=True) == "haswell"
    assert platform(62, ("x86-64-v2",), intel=True) == "x86_64"
    assert platform(183, (), intel=False) == "aarch64"
    assert platform(243, (), intel=False) is None


@pytest.mark.parametrize(("minor", "is_said"), [(36, True), (37, False)])
def test_a_legacy_folder_that_a_glibc_may_look_into_is_said(minor: int, is_said: bool, tmp_path: Path) -> None:
    c_library(tmp_path, minor)
    exe(tmp_path / "prog", so(tmp_path / "opt/a/liba.so"), *new_runpath("/opt/a"))
    so(tmp_path / "opt/a/haswell/liba.so")
    with open_image(tmp_path) as image:
        outcome = Process(image.root).start("/prog")
    assert outcome.objects[1].path == "/opt/a/liba.so"
    assert outcome.warnings == ("/opt/a/haswell/: glibc up to 2.36 may look there first; lumiimg does not",) * is_said


@pytest.mark.parametrize(("minor", "is_said"), [(39, True), (40, False)])
def test_legacy_entries_of_a_cache_are_passed_over_and_that_is_said(minor: int, is_said: bool, tmp_path: Path) -> None:
    c_library(tmp_path, minor)
    exe(tmp_path / "prog", so(tmp_path / "opt/a/liba.so"))
    (tmp_path / "etc").mkdir()
    entries = [("liba.so", "/opt/haswell/liba.so", 1 << 50), ("liba.so", "/opt/a/liba.so", 0)]
    (tmp_path / "etc/ld.so.cache").write_bytes(loader_cache(entries))
    with open_image(tmp_path) as image:
        outcome = Process(image.root).start("/prog")
    assert outcome.objects[1].path == "/opt/a/liba.so"
    warned = "/etc/ld.so.cache: entries for kinds of CPU (tls, haswell), which lumiimg passes over"
    assert outcome.warnings == (warned,) * is_said


def test_a_cache_of_the_old_format_alone_is_said(tmp_path: Path) -> None:
    c_library(tmp_path, 31)
    exe(tmp_path / "prog", so(tmp_path / "opt/a/liba.so"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(struct.pack("<12sI", b"ld.so-1.7.0", 0))
    with open_image(tmp_path) as image:
        (warning,) = Process(image.root).start("/prog").warnings
    assert "the loader may find libraries there" in warning


def test_a_filter_is_said(tmp_path: Path) -> None:
    c_library(tmp_path, 41)
    exe(tmp_path / "prog", so(tmp_path / "opt/a/liba.so", "-f", "libx.so", *new_runpath("/")), *new_runpath("/opt/a"))
    with open_image(tmp_path) as image:
        outcome = Process(image.root).start("/prog")
    assert outcome.warnings == ("/opt/a/liba.so: filters libx.so, which lumiimg does not follow",)
