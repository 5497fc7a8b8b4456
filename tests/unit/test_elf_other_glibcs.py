"""The behaviour of other glibc versions than this machine's: their roots contain a stand-in that names its version.

Neighbouring tests compare the model with the loader of this machine. Where a rule changed is known from glibc's source,
which each test names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf import FoundBy, LoaderConfig, Process
from lumiimg.image import open_image
from tests.shared.elf_builder import LOADER, exe, loader_cache, patched, runpath, so
from tests.shared.fabric_builder import c_library, versioned

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.elf import LoadResult


def started(root: Path, minor: int) -> LoadResult:
    """Start /prog with the loader of glibc 2.<minor>."""
    c_library(root, minor)
    with open_image(root) as image:
        return Process(image.root).start("/prog")


@pytest.mark.parametrize(("minor", "ends"), [(38, True), (39, False)])
def test_up_to_2_38_a_path_through_a_file_ends_its_list(tmp_path: Path, minor: int, ends: bool) -> None:
    """open_path continues after ENOENT and EACCES, and after ENOTDIR from 2.39 on (glibc elf/dl-load.c)."""
    liba = so(tmp_path / "opt/b/liba.so")
    exe(tmp_path / "prog", liba, *runpath("/opt/a:/opt/b"))
    (tmp_path / "opt/a").mkdir()
    (tmp_path / "opt/file").touch()
    (tmp_path / "opt/a/liba.so").symlink_to("/opt/file/liba.so")
    outcome = started(tmp_path, minor)
    assert outcome.ok is not ends
    # only that list ends: the default directories are still searched
    so(tmp_path / "usr/lib64/liba.so")
    again = started(tmp_path, minor)
    assert again.ok
    assert (again.objects[1].found_by is FoundBy.DEFAULT) is ends


@pytest.mark.parametrize("text", ["/opt/$PLATFORM", "$PLATFORM"])
def test_what_names_a_platform_that_is_not_known_is_no_directory(text: str, tmp_path: Path) -> None:
    """On a machine whose platform is unknown, such as RISC-V; the library is where an empty expansion would lead."""
    c_library(tmp_path, 41)
    for path in (so(tmp_path / "liba.so"), exe(tmp_path / "prog", tmp_path / "liba.so", *runpath(text))):
        patched(path, 18, b"\xf3\0")
    patched(tmp_path / LOADER[1:], 18, b"\xf3\0")
    with open_image(tmp_path) as image:
        outcome = Process(image.root).start("/prog")
    assert outcome.errors == ["liba.so: cannot open shared object file: No such file or directory"]


@pytest.mark.parametrize(("minor", "crashes"), [(35, True), (36, False)])
def test_relative_relocations_are_a_crash_where_glibc_does_not_know_them(
    tmp_path: Path, minor: int, crashes: bool
) -> None:
    """Seen with the libc6 of Debian 11 and 12: 2.31 dies of SIGSEGV, 2.36 does not; `ld.so --list` reports nothing."""
    source = "static int v = 7; int *p = &v;"
    liba = so(tmp_path / "opt/a/liba.so", "-z", "pack-relative-relocs", source=source)
    exe(tmp_path / "prog", liba, *runpath("/opt/a"))
    assert started(tmp_path, minor).ok
    with open_image(tmp_path) as image:
        outcome = Process(image.root).start("/prog", exec_start=True)
    assert any("the process crashes" in error for error in outcome.errors) is crashes


@pytest.mark.parametrize(("minor", "ends"), [(35, False), (36, True)])
def test_relative_relocations_are_asked_for_by_who_asks_for_a_version_of_the_c_library(
    tmp_path: Path, minor: int, ends: bool
) -> None:
    """From 2.36 on (glibc elf/dl-version.c)."""
    c_library(tmp_path, minor)
    asked = ("GLIBC_2.14", "GLIBC_ABI_DT_RELR")
    libc = versioned(tmp_path / "parts/libc.so.6", defines=asked)
    other = versioned(tmp_path / "opt/a/libother.so", defines=("V1",))
    source = "static int v = 7; int *p = &v;"
    needs = "int memcpy(void); int use(void) { return memcpy(); }"
    asks = "int s_GLIBC_ABI_DT_RELR(void); int ask(void) { return s_GLIBC_ABI_DT_RELR(); }"
    of_other = "int s_V1(void); int use(void) { return s_V1(); }"
    fine = {"lone": (libc, ""), "asking": (libc, needs + asks), "elsewhere": (other, of_other)}
    for name, (linked, parts) in {"silent": (libc, needs), **fine}.items():
        so(tmp_path / f"opt/a/lib{name}.so", linked, "-z", "pack-relative-relocs", source=source + parts)
    exe(tmp_path / "prog", *(tmp_path / "opt/a").glob("*.so"), *runpath("/opt/a"))
    errors = started(tmp_path, minor).errors
    assert ("/opt/a/libsilent.so: DT_RELR without GLIBC_ABI_DT_RELR dependency" in errors) is ends
    assert not any(name in error and "DT_RELR without" in error for error in errors for name in fine)


def test_the_object_of_the_kernel_is_in_every_process(tmp_path: Path) -> None:
    """Seen with glibc 2.31, 2.36, 2.41 and 2.43: a need of that name is met, and no file of that name is opened."""
    vdso = so(tmp_path / "opt/a/linux-vdso.so.1")
    exe(tmp_path / "prog", vdso)
    outcome = started(tmp_path, 41)
    assert outcome.ok
    assert outcome.closure["linux-vdso.so.1"] == "linux-vdso.so.1"
    assert "linux-vdso.so.1" not in [loaded.name for loaded in outcome.objects]


# CPU-specific searches that are reported, but not followed


def test_levels_are_tried_first_where_glibc_knows_them_and_the_platform_is_of_the_vendor() -> None:
    zen3, old = LoaderConfig(hwcaps=("x86-64-v3", "x86-64-v2")), LoaderConfig(hwcaps=("x86-64-v2",), intel=True)
    for minor, machine, is_known in (
        (36, 62, True),
        (33, 62, True),
        (None, 62, True),
        (32, 62, False),
        (43, 183, False),
    ):
        assert zen3.levels(machine, minor) == (zen3.hwcaps if is_known else ())
    assert zen3.platform(62) == old.platform(62) == "x86_64"
    assert replace(zen3, intel=True).platform(62) == "haswell"
    assert (zen3.platform(183), zen3.platform(243)) == ("aarch64", None)


def test_what_a_glibc_may_look_at_and_the_model_does_not_is_reported(tmp_path: Path) -> None:
    """Folders and cache entries for CPU types, up to 2.36 and 2.39, and filters."""
    libraries = [so(tmp_path / "opt/a/liba.so"), so(tmp_path / "opt/b/libb.so", "-f", "libx.so", *runpath("/"))]
    exe(tmp_path / "prog", *libraries, *runpath("/opt/a"))
    so(tmp_path / "opt/a/haswell/liba.so")
    (tmp_path / "etc").mkdir()
    entries = [("libb.so", "/opt/haswell/libb.so", 1 << 50), ("libb.so", "/opt/b/libb.so", 0)]
    (tmp_path / "etc/ld.so.cache").write_bytes(loader_cache(entries))
    of_cache = "/etc/ld.so.cache: entries for CPU types (tls, haswell), which lumiimg ignores"
    of_filter = "/opt/b/libb.so: filters libx.so, which lumiimg does not model"
    of_folder = "/opt/a/haswell/: glibc up to 2.36 may look there first; lumiimg does not"
    reported = {of_cache, of_filter, of_folder}
    for minor, warnings in (
        (36, reported),
        (37, reported - {of_folder}),
        (39, reported - {of_folder}),
        (40, {of_filter}),
    ):
        outcome = started(tmp_path, minor)
        assert [loaded.path for loaded in outcome.objects[1:3]] == ["/opt/a/liba.so", "/opt/b/libb.so"]
        assert set(outcome.warnings) == warnings, minor
