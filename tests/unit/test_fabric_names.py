"""Names of the fabric path: one set of patterns, beside the expressions that six modules had before, and how they differ."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable

import pytest

from lumiimg.catalog.folders import shipped_layers
from lumiimg.fabric.names import (
    LAYER_PLUGINS,
    LIBCXI,
    LIBFABRIC,
    LIBRCCL,
    PLUGIN_FILES,
    PROVIDER_FILE,
    RCCL_OR_PLUGIN,
    net_api,
    net_symbol,
    newest_interface,
    part_of,
)
from lumiimg.fabric.path import Part
from lumiimg.host.scan_facts import known

_STEMS = (
    *("librccl", "libnccl", "librccl-net", "libnccl-net", "librccl-net-ofi", "libnccl-net-ofi", "librccl-net-aws"),
    *("libmccl-net", "librccl-tuner", "mylibrccl", "libfabric", "libcxi", "libcxi-fi", "libfabric-util"),
)
_TAILS = (".so", ".so.1", ".so.1.0.60204", ".so.bak", ".so.1.debug", ".a", ".la", ".txt", "", ".sox")
FILES = ["".join(parts) for parts in itertools.product(_STEMS, _TAILS)]

Judge = Callable[[str], bool]


def matching(pattern: str) -> Judge:
    return lambda name: re.fullmatch(pattern, name) is not None


def among(*parts: Part) -> Judge:
    return lambda name: part_of(f"/opt/x/{name}") in parts


NUMBERED = "a file with the number of its build is the library, and links lead to it"
NO_LIBRARY = "no library: an archive, a note, the linker's own file"
SUFFIX = "NCCL_NET_PLUGIN may name any suffix; whether RCCL asks for it, fabric/rccl.py says"
BACKUP = "a link may lead to any name; whether RCCL asks for it, fabric/rccl.py says"
DEBUG = "separate debugging information: it cannot be loaded"

BEFORE: dict[str, tuple[Judge, Judge, dict[str, str]]] = {
    # name: (what the old expression took, what is taken now, the differences with the reason for each)
    "check/static/files.py, to be looked for": (
        matching(r"(librccl\.so|lib[nr]ccl-net).*"),
        lambda name: RCCL_OR_PLUGIN.fullmatch(name) is not None,
        {
            **{f"librccl.so{tail}": "no library of that name is loaded" for tail in (".bak", "x")},
            **{
                f"{stem}{tail}": NO_LIBRARY
                for stem in _STEMS
                if re.match("lib[nr]ccl-net", stem)
                for tail in (".a", ".la", ".txt", "")
            },
            **{f"{stem}.so.1.debug": DEBUG for stem in _STEMS if re.match("lib[nr]ccl-net|librccl$", stem)},
        },
    ),
    "check/static/plugin.py and check/probe, a plugin": (
        matching(r"lib[nr]ccl-net[^/]*\.so[^/]*"),
        among(Part.PLUGIN),
        {f"{stem}.so.1.debug": DEBUG for stem in _STEMS if re.match("lib[nr]ccl-net", stem)},
    ),
    "check/static/rccl.py, an RCCL": (matching(r"librccl\.so(\.\d+)*"), among(Part.RCCL), {}),
    "resolve/inventory.py, an RCCL": (
        matching(r"librccl\.so(\.1)?"),
        among(Part.RCCL),
        {"librccl.so.1.0.60204": NUMBERED},
    ),
    "resolve/inventory.py, a plugin": (
        matching(r"lib[rn]ccl-net(-ofi)?\.so"),
        among(Part.PLUGIN),
        {
            "librccl-net-aws.so": SUFFIX,
            **{
                f"{stem}{tail}": BACKUP
                for stem in _STEMS
                if re.match("lib[nr]ccl-net", stem)
                for tail in (".so.1", ".so.1.0.60204", ".so.bak", ".sox")
            },
        },
    ),
    "fabric/rccl_strings.py, a name in RCCL's bytes": (
        matching(r"lib[nr]ccl-net\.so"),
        PLUGIN_FILES.__contains__,
        {},
    ),
    "check/probe/judgement.py, libfabric": (
        lambda name: re.search(r"/libfabric\.so", f"/opt/x/{name}") is not None,
        among(Part.LIBFABRIC),
        {},
    ),
    "check/steps.py, libcxi": (lambda name: name.startswith("libcxi.so"), among(Part.LIBCXI), {}),
}


@pytest.mark.parametrize("module", BEFORE)
def test_one_set_of_patterns_differs_from_each_former_one_only_as_listed(module: str) -> None:
    before, now, differences = BEFORE[module]
    assert {name for name in FILES if before(name) != now(name)} == differences.keys()


def test_a_part_is_known_by_the_last_part_of_a_path() -> None:
    assert part_of("/opt/librccl.so/readme") is None
    assert part_of("/opt/aws/librccl-net-aws.so.0.0.0") is Part.PLUGIN
    assert [part_of(name) for name in (*LIBRCCL, *PLUGIN_FILES, LIBFABRIC, LIBCXI, PROVIDER_FILE)] == [
        *(Part.RCCL, Part.RCCL, Part.PLUGIN, Part.PLUGIN, Part.LIBFABRIC, Part.LIBCXI),
        None,
    ]


def test_a_scan_of_a_node_looks_for_the_same_plugins() -> None:
    patterns = next(role.files for role in known().role if role.name == "net-plugin")
    found = {name for name in FILES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    assert found == {name for name in FILES if part_of(name) is Part.PLUGIN and name.endswith(".so")}


def test_the_layers_install_a_plugin_under_these_names() -> None:
    script = (shipped_layers() / "aws-ofi-nccl/plugin.sh").read_text()
    names = re.search(r"^plugin_names=\((.*)\)$", script, re.MULTILINE)
    assert names is not None
    assert sorted(names[1].split()) == sorted(LAYER_PLUGINS)


def test_the_net_api_of_a_plugin_is_in_its_symbols() -> None:
    assert net_api(map(net_symbol, (5, 10, 8))) == (10, 8, 5)
    others = ("ncclCollNetPlugin_v6", "ncclNetPlugin_v", "ncclNetPlugin_v123", "ncclNetPlugin_v6x", "ncclNet_v6")
    assert net_api(others) == ()


NEWEST = [
    ("/lib/libfabric.so.1.27.0", ("FABRIC_1.9", "FABRIC_1.10", "GLIBC_2.99"), "FABRIC_1.10"),
    ("libcxi.so.1", ("LIBCXI_1.0", "FABRIC_1.8"), "LIBCXI_1.0"),
    ("libcxi.so.1", ("FABRIC_1.8",), None),
    ("librccl.so.1", ("FABRIC_1.8",), None),
    ("libm.so.6", ("GLIBC_2.38",), None),
]


def test_the_newest_interface_is_of_the_librarys_own_family() -> None:
    for file, versions, newest in NEWEST:
        assert newest_interface(file, versions) == newest, (file, versions, newest)
