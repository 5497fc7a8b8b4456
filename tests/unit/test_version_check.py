"""The version check alone: what it calls an error, a warning, or nothing (glibc elf/dl-version.c)."""

from __future__ import annotations

from msgspec.structs import replace

from lumiimg.core.text import numbers_of
from lumiimg.elf import ElfFacts, FoundBy, LoadedObject, LoadResult
from lumiimg.elf.facts import VersionNeed
from lumiimg.elf.refusals import check_versions

FACTS = ElfFacts(machine=62, type=3, is_dynamic=True, needed=("libc.so.6",))
LIBC = replace(FACTS, needed=(), version_definitions=("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.34"))


def loaded(name: str, facts: ElfFacts) -> LoadedObject:
    return LoadedObject(name, f"/lib/{name}", facts, FoundBy.DEFAULT, None, "/lib")


def needing(*needs: tuple[str, str, bool], relr: bool = False) -> LoadedObject:
    wanted = tuple(VersionNeed(*each) for each in needs)
    return loaded("libplug.so", replace(FACTS, version_needs=wanted, has_relr=relr))


def check(
    *objects: LoadedObject, libc: ElfFacts = LIBC, minor: int | None = 34, missing: str = "", warns: bool = True
) -> LoadResult:
    there = {"libc.so.6": loaded("libc.so.6", libc)}
    found = LoadResult(missing_names={missing})
    check_versions(objects, there.get, minor, found, warns=warns)
    return found


def test_versions_are_defined_or_keep_the_file_from_loading_unless_they_are_weak() -> None:
    found = check(needing(("libc.so.6", "GLIBC_2.2.5", False), ("libc.so.6", "GLIBC_2.34", False)))
    assert (found.errors, found.warnings, found.missing_versions) == ([], [], [])
    found = check(needing(("libc.so.6", "GLIBC_2.38", False), ("libc.so.6", "GLIBC_2.39", True)))
    assert [str(version) for version in found.missing_versions] == found.errors
    assert found.errors == ["/lib/libc.so.6: version `GLIBC_2.38' not found (required by /lib/libplug.so)"]
    assert found.warnings == ["/lib/libc.so.6: weak version `GLIBC_2.39' not found (required by /lib/libplug.so)"]
    assert check(needing(("libc.so.6", "GLIBC_2.39", True)), warns=False).warnings == []


def test_relative_relocations_have_to_be_asked_for_from_glibc_2_36_on() -> None:
    needs = ("libc.so.6", "GLIBC_2.34", False)
    libc = replace(LIBC, version_definitions=(*LIBC.version_definitions, "GLIBC_ABI_DT_RELR"))
    asked = needing(needs, ("libc.so.6", "GLIBC_ABI_DT_RELR", False), relr=True)
    for minor, refused in ((35, False), (36, True), (41, True), (None, True)):
        errors = check(needing(needs, relr=True), minor=minor).errors
        assert errors == (["/lib/libplug.so: DT_RELR without GLIBC_ABI_DT_RELR dependency"] if refused else []), minor
        assert check(asked, libc=libc, minor=minor).errors == [], minor
    # of a file with versions of the C library alone
    assert check(needing(relr=True), minor=36).errors == []
    without_libc = replace(needing(needs, relr=True).facts, needed=("libm.so.6",))
    assert check(loaded("libplug.so", without_libc), minor=36).errors == []
    both = replace(without_libc, needed=("libm.so.6", "libc.so.6"))
    assert len(check(loaded("libplug.so", both), minor=36).errors) == 1
    assert check(needing(needs), minor=36).errors == []


def test_the_numbers_of_a_version_are_compared_as_numbers() -> None:
    for version, numbers in (
        ("GLIBC_2.38", (2, 38)),
        ("2.38", (2, 38)),
        ("GLIBCXX_3.4.32", (3, 4, 32)),
        ("JSONC_0.14", (0, 14)),
        ("V_1.2.3.4.5.6", (1, 2, 3, 4, 5, 6)),
        *((none, ()) for none in ("GLIBC_ABI_DT_RELR", "GLIBC_PRIVATE", "", "FABRIC_1.", "V_1.2.3.4.5.6.7")),
        ("V_1234567890", ()),
    ):
        assert numbers_of(version) == numbers
