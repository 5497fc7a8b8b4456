"""Directories and entries of the cache for a CPU, of glibc versions that are not the one of this machine.

The orders were asked of the ld.so of Debian 11 (2.31), 12 (2.36) and 13 (2.41), on a CPU of Intel with AVX-512.
"""

from __future__ import annotations

import pytest

from lumiimg.elf.cache import parse_cache
from lumiimg.elf.hwcaps import ZEN3, isa_mask, known_levels, legacy_mask, platform, subdirectories
from tests.shared.elf_builder import loader_cache

_V4 = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def test_legacy_directories_of_intel() -> None:
    found = subdirectories(_V4, 62, 31, intel=True)
    assert found[:4] == (
        "tls/haswell/avx512_1/x86_64/",
        "tls/haswell/avx512_1/",
        "tls/haswell/x86_64/",
        "tls/haswell/",
    )
    assert found[-8:] == (
        "haswell/avx512_1/x86_64/",
        "haswell/avx512_1/",
        "haswell/x86_64/",
        "haswell/",
        "avx512_1/x86_64/",
        "avx512_1/",
        "x86_64/",
        "",
    )
    assert len(found) == 16


def test_legacy_directories_of_other_vendors_know_no_haswell() -> None:
    assert subdirectories(ZEN3, 62, 31) == (
        "tls/x86_64/x86_64/",
        "tls/x86_64/",
        "tls/",
        "x86_64/x86_64/",
        "x86_64/",
        "",
    )


@pytest.mark.parametrize(("minor", "count"), [(32, 6), (33, 8), (36, 8), (37, 3), (43, 3), (None, 3)])
def test_which_versions_have_which_directories(minor: int | None, count: int) -> None:
    assert len(subdirectories(ZEN3, 62, minor)) == count
    assert subdirectories(ZEN3, 183, minor) == ("",)


def test_platform_is_of_the_vendor() -> None:
    assert platform(62, ZEN3, intel=False) == "x86_64"
    assert platform(62, ZEN3, intel=True) == "haswell"
    assert platform(62, ("x86-64-v2",), intel=True) == "x86_64"
    assert platform(183, (), intel=False) == "aarch64"
    assert platform(243, (), intel=False) is None


def test_levels_are_known_since_2_33() -> None:
    assert known_levels(ZEN3, 32) == ()
    assert known_levels(ZEN3, 33) == ZEN3
    assert isa_mask(ZEN3) == 0b111


_X86_64, _AVX512_1, _HASWELL, _TLS = 1 << 1, 1 << 2, 1 << 50, 1 << 63


@pytest.mark.parametrize(
    ("hwcap", "minor", "intel", "taken"),
    [
        (_X86_64, 31, False, True),
        (_X86_64, 39, False, True),
        (_X86_64, 40, False, False),
        (_X86_64, None, False, False),
        (_TLS | _X86_64, 36, False, True),
        (_HASWELL, 36, False, False),
        (_HASWELL, 36, True, True),
        (_HASWELL | _AVX512_1, 36, True, True),
        (_AVX512_1, 36, False, False),
        (1 << 51, 36, True, False),
        (1 << 62, 31, True, False),
    ],
)
def test_legacy_entries_of_a_cache(hwcap: int, minor: int | None, intel: bool, taken: bool) -> None:
    cache = parse_cache(loader_cache([("liba.so", "/lib/special", hwcap), ("liba.so", "/lib/plain", 0)]))
    mask = legacy_mask(_V4, 62, minor, intel=intel)
    assert cache.lookup("liba.so", legacy_hwcaps=mask) == ("/lib/special" if taken else "/lib/plain")
