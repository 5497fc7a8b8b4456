"""The version check by itself: what it calls an error, a warning, or nothing (glibc elf/dl-version.c)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lumiimg.elf.facts import ElfFacts
from lumiimg.elf.objects import FoundBy, LoadedObject, Report
from lumiimg.elf.version_check import check_versions
from lumiimg.elf.versions import VersionNeed, numbers_of

FACTS = ElfFacts(elf_class=64, little_endian=True, machine=62, type=3, is_dynamic=True, needed=("libc.so.6",))
LIBC = replace(FACTS, needed=(), version_definitions=("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.34"))


def loaded(name: str, facts: ElfFacts) -> LoadedObject:
    return LoadedObject(name, f"/lib/{name}", facts, FoundBy.DEFAULT, None, "/lib")


def needing(*needs: tuple[str, str, bool], relr: bool = False) -> LoadedObject:
    wanted = tuple(VersionNeed(*each) for each in needs)
    return loaded("libplug.so", replace(FACTS, version_needs=wanted, has_relr=relr))


def check(*objects: LoadedObject, libc: ElfFacts = LIBC, minor: int | None = 34, missing: str = "") -> Report:
    there = {"libc.so.6": loaded("libc.so.6", libc)}
    found = Report(missing_names={missing})
    check_versions(objects, there.get, minor, found, warns=True)
    return found


def test_versions_that_are_defined_are_no_trouble() -> None:
    found = check(needing(("libc.so.6", "GLIBC_2.2.5", False), ("libc.so.6", "GLIBC_2.34", False)))
    assert (found.errors, found.warnings, found.missing_versions) == ([], [], [])


def test_a_version_that_is_not_defined_keeps_the_file_from_loading_unless_it_is_weak() -> None:
    found = check(needing(("libc.so.6", "GLIBC_2.38", False), ("libc.so.6", "GLIBC_2.39", True)))
    assert [str(version) for version in found.missing_versions] == found.errors
    assert found.errors == ["/lib/libc.so.6: version `GLIBC_2.38' not found (required by /lib/libplug.so)"]
    assert found.warnings == ["/lib/libc.so.6: weak version `GLIBC_2.39' not found (required by /lib/libplug.so)"]


def test_a_library_without_versions_is_warned_of_once() -> None:
    needs = [
        ("libc.so.6", "GLIBC_2.2.5", False),
        ("libm.so.6", "GLIBC_2.2.5", False),
        ("libc.so.6", "GLIBC_2.3", False),
    ]
    found = check(needing(*needs), libc=replace(LIBC, version_definitions=()), missing="libm.so.6")
    assert found.warnings == ["/lib/libc.so.6: no version information available (required by /lib/libplug.so)"]
    assert (found.errors, found.missing_versions) == ([], [])


def test_versions_of_a_library_that_nothing_asked_for_end_the_loader_and_are_told_once() -> None:
    needs = [("libz.so.1", "ZLIB_1.2", False), ("libc.so.6", "GLIBC_2.34", False), ("libz.so.1", "ZLIB_1.3", False)]
    assert len(check(needing(*needs)).errors) == 1
    # one that is missing is told by whoever looked for it
    assert check(needing(*needs), missing="libz.so.1").errors == []


@pytest.mark.parametrize(
    ("minor", "refused"), [(35, False), (36, True), (41, True), (None, True)], ids=["2.35", "2.36", "2.41", "unknown"]
)
def test_relative_relocations_have_to_be_asked_for_from_glibc_2_36_on(minor: int | None, refused: bool) -> None:
    plain = needing(("libc.so.6", "GLIBC_2.34", False), relr=True)
    errors = check(plain, minor=minor).errors
    assert errors == (["/lib/libplug.so: DT_RELR without GLIBC_ABI_DT_RELR dependency"] if refused else [])
    libc = replace(LIBC, version_definitions=(*LIBC.version_definitions, "GLIBC_ABI_DT_RELR"))
    asked = needing(("libc.so.6", "GLIBC_2.34", False), ("libc.so.6", "GLIBC_ABI_DT_RELR", False), relr=True)
    assert check(asked, libc=libc, minor=minor).errors == []


def test_only_a_file_with_versions_of_the_c_library_has_to_ask_for_relative_relocations() -> None:
    assert check(needing(relr=True), minor=36).errors == []
    without_libc = replace(needing(("libc.so.6", "GLIBC_2.34", False), relr=True).facts, needed=("libm.so.6",))
    assert check(loaded("libplug.so", without_libc), minor=36).errors == []
    both = replace(without_libc, needed=("libm.so.6", "libc.so.6"))
    assert len(check(loaded("libplug.so", both), minor=36).errors) == 1
    assert check(needing(("libc.so.6", "GLIBC_2.34", False)), minor=36).errors == []


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("GLIBC_2.38", (2, 38)),
        ("2.38", (2, 38)),
        ("GLIBC_ABI_DT_RELR", ()),
        ("GLIBCXX_3.4.32", (3, 4, 32)),
        ("JSONC_0.14", (0, 14)),
        ("GLIBC_PRIVATE", ()),
        ("", ()),
        ("FABRIC_1.", ()),
        ("V_1.2.3.4.5.6", (1, 2, 3, 4, 5, 6)),
        ("V_1.2.3.4.5.6.7", ()),
        ("V_1234567890", ()),
    ],
)
def test_the_numbers_of_a_version_are_compared_as_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert numbers_of(version) == numbers
