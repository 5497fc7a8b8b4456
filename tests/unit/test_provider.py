"""Which providers libfabric has and allows: the model compared with the output of real builds of libfabric."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from lumiimg.elf import LoaderConfig, Process
from lumiimg.fabric.path import PROVIDER_FILE
from lumiimg.fabric.process import allows, cxi_provider, read_libfabric_conf, why_no_rocr
from lumiimg.image import open_image
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import ROCR, c_library

FIXTURES = Path(__file__).parent.parent / "fixtures"
MEASURED = tomllib.loads((FIXTURES / "provider-path.toml").read_text("utf-8"))
FILTERS = tomllib.loads((FIXTURES / "provider-filter.toml").read_text("utf-8"))
LOOK = "Search for providers in specific path"
FILES = "Optionally any of the dir can be replaced with + followed by the full path to a provider library"
PLACES = {"given": "/opt/given", "default": "/opt/lf/providers", "loader": "/opt/loader"}
OLD = [f"{LOOK}.  Path is like dir1:dir2. (default: {PLACES['default']})", "udp"]
"""Up to 1.20: `+` is a folder name, and the list of providers has no cxi."""
NEW = [f"{LOOK}. {FILES}. (default: {PLACES['default']})", "udp", "cxi"]


def libfabric(root: Path, strings: list[str]) -> None:
    """Put a libfabric with these strings and its C library into a root."""
    c_library(root, 36)
    message = "".join(f'"{text}\\0" ' for text in strings)
    library(root / "opt/lf/libfabric.so.1", source=f'const char said[] = "\\0" {message};')


def finds(root: Path, provider_path: str | None = None) -> str | None:
    """Return where the libfabric of a root gets cxi from, with /opt/loader in LD_LIBRARY_PATH."""
    with open_image(root) as image:
        process = Process(image.root, LoaderConfig(library_path=PLACES["loader"]))
        assert not process.start("/opt/lf/libfabric.so.1").errors
        return cxi_provider(process, image.root, provider_path)


def provider_in(root: Path, folder: str) -> None:
    library(root / folder[1:] / PROVIDER_FILE, source="int fi_prov_ini;")


@pytest.mark.parametrize("build", ["old", "new"])
@pytest.mark.parametrize("place", PLACES)
def test_a_provider_is_found_where_a_real_libfabric_finds_it(tmp_path: Path, place: str, build: str) -> None:
    provider_in(tmp_path, PLACES[place])
    libfabric(tmp_path, NEW if build == "new" else OLD)
    situations: list[dict[str, Any]] = [each for each in MEASURED["situation"] if each["in"] == place]
    assert situations
    for situation in situations:
        value = situation.get("value")
        found = finds(tmp_path, value and value.format(given=PLACES["given"]))
        expected = f"{PLACES[place]}/{PROVIDER_FILE}" if situation[build] else None
        assert (value, found) == (value, expected)


@pytest.mark.parametrize("strings", [[], [f"{LOOK} (default: here)", "cxi", FILES]])
def test_of_a_libfabric_that_says_nothing_of_itself_the_folder_beside_it_is_taken_and_no_more(
    tmp_path: Path, strings: list[str]
) -> None:
    libfabric(tmp_path, strings)
    for folder in PLACES.values():
        provider_in(tmp_path, folder)
    assert finds(tmp_path) is None
    assert finds(tmp_path, f"+{PLACES['given']}/{PROVIDER_FILE}") is None
    assert finds(tmp_path, PLACES["given"]) == f"{PLACES['given']}/{PROVIDER_FILE}"
    provider_in(tmp_path, "/opt/lf/libfabric")
    assert finds(tmp_path) == f"/opt/lf/libfabric/{PROVIDER_FILE}"
    assert finds(tmp_path, "/nowhere") is None


@pytest.mark.parametrize(
    ("source", "need", "runtime", "lacks"),
    [
        ("", None, "libhsa-runtime64.so", "it was built without ROCr"),
        ("", "libhsa-runtime64.so.1", None, None),
        (ROCR, None, "libhsa-runtime64.so", None),
        (ROCR, None, "libhsa-runtime64.so.1", "it opens libhsa-runtime64.so by that name, and does not find it"),
    ],
)
def test_a_libfabric_without_rocr_does_not_know_gpu_memory(
    source: str, need: str | None, runtime: str | None, lacks: str | None, tmp_path: Path
) -> None:
    """As in libfabric 2.5.1 built with --with-rocr, with --enable-rocr-dlopen, and without HSA's headers."""
    c_library(tmp_path, 36)
    for name in filter(None, (need, runtime)):
        library(tmp_path / "opt/loader" / name, f"-Wl,-soname,{name}", source="int hsa_init;")
    needs = [tmp_path / "opt/loader" / need] if need else []
    library(tmp_path / "opt/lf/libfabric.so.1", "-Wl,--no-as-needed", *needs, source=source)
    with open_image(tmp_path) as image:
        process = Process(image.root, LoaderConfig(library_path=PLACES["loader"]))
        assert not process.start("/opt/lf/libfabric.so.1").errors
        assert why_no_rocr(process, image.root) == lacks


def test_fi_provider_lets_through_what_real_libfabrics_list() -> None:
    names = ("tcp", "udp", "sockets")
    listed = {row["value"]: [name for name in names if allows(row["value"], name)] for row in FILTERS["filter"]}
    assert listed == {row["value"]: row["listed"] for row in FILTERS["filter"]}


LONG = "x" * 2045
CONF = [
    ("FI_PROVIDER=tcp", {}, "tcp"),
    ("FI_PROVIDER=tcp", {"FI_PROVIDER": "udp"}, "udp"),
    ("FI_PROVIDER=tcp", {"FI_PROVIDER": ""}, ""),
    ("FI_PROVIDER=tcp\nFI_PROVIDER=udp\n", {}, "tcp"),
    ("FI_PROVIDER=\n", {}, ""),
    ("FI_PROVIDER= tcp ", {}, " tcp "),
    ("FI_PROVIDER=tcp=udp\0,shm", {}, "tcp=udp"),
    ("FI_PROVIDER", {}, None),
    (" FI_PROVIDER=tcp", {}, None),
    ("FI_PROVIDER =tcp", {}, None),
    ("fi_provider=tcp", {}, None),
    ("\0FI_PROVIDER=tcp", {}, None),
    (f"A={LONG}FI_PROVIDER=tcp", {}, "tcp"),
    (f"A={LONG}xFI_PROVIDER=tcp", {}, None),
    ("FI_PREFER_SYSCONFIG=on\nFI_PROVIDER=tcp", {"FI_PROVIDER": "udp"}, "tcp"),
    ("FI_PREFER_SYSCONFIG=on\nFI_PROVIDER=tcp", {"FI_PROVIDER": "udp", "FI_PREFER_SYSCONFIG": ""}, "udp"),
    ("FI_PREFER_SYSCONFIG=2\nFI_PROVIDER=tcp", {"FI_PROVIDER": "udp"}, "udp"),
    ("FI_PROVIDER=tcp", {"FI_PROVIDER": "udp", "FI_PREFER_SYSCONFIG": "True"}, "tcp"),
    ("FI_PREFER_SYSCONFIG=1", {"FI_PROVIDER": "udp"}, "udp"),
]
"""A libfabric.conf, variables, and the resulting FI_PROVIDER, as shown by what the real 2.1.0 listed."""


def test_what_the_file_of_libfabric_sets_counts_where_no_variable_does(tmp_path: Path) -> None:
    libfabric(tmp_path, ["/etc/fabric/libfabric.conf"])
    path = tmp_path / "etc/fabric/libfabric.conf"
    path.parent.mkdir(parents=True)
    for text, variables, expected in CONF:
        path.write_text(text)
        with open_image(tmp_path) as image:
            process = Process(image.root, LoaderConfig())
            process.start("/opt/lf/libfabric.so.1")
            conf = read_libfabric_conf(process, image.root)
        assert conf.path == "/etc/fabric/libfabric.conf"
        given = variables.get("FI_PROVIDER")
        found = conf.values["FI_PROVIDER"] if conf.decides("FI_PROVIDER", variables.get) else given
        assert (text, variables, found) == (text, variables, expected)
