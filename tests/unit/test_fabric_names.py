"""File names on the fabric path: which file is which part."""

from __future__ import annotations

import fnmatch
import itertools
import re

from lumiimg.catalog.folders import shipped_layers
from lumiimg.fabric.path import (
    LAYER_PLUGINS,
    RCCL_OR_PLUGIN,
    Part,
    part_of,
)
from lumiimg.host.node_facts import scan_facts

_STEMS = (
    *("librccl", "libnccl", "librccl-net", "libnccl-net", "librccl-net-ofi", "libnccl-net-ofi", "librccl-net-aws"),
    *("libmccl-net", "librccl-tuner", "mylibrccl", "libfabric", "libcxi", "libcxi-fi", "libfabric-util"),
)
_TAILS = (".so", ".so.1", ".so.1.0.60204", ".so.bak", ".so.1.debug", ".a", ".la", ".txt", "", ".sox")
FILES = ["".join(parts) for parts in itertools.product(_STEMS, _TAILS)]

NUMBERED = (".so", ".so.1", ".so.1.0.60204")
"""Suffixes of an installed library."""
LINKED = (*NUMBERED, ".so.bak", ".sox")
"""Further suffixes of plugins: NCCL_NET_PLUGIN or a link may lead to any name."""


def test_a_file_is_a_part_by_its_name_and_nothing_beside_a_library_is() -> None:
    parts = {name: part for name in FILES if (part := part_of(f"/opt/x/{name}"))}
    plugins = [stem for stem in _STEMS if re.match("lib[nr]ccl-net", stem)]
    assert {name for name in parts if parts[name] is Part.RCCL} == {f"librccl{tail}" for tail in NUMBERED}
    assert {name for name in parts if parts[name] is Part.PLUGIN} == {
        f"{stem}{tail}" for stem in plugins for tail in LINKED
    }
    for part, stem in ((Part.LIBFABRIC, "libfabric"), (Part.LIBCXI, "libcxi")):
        named = {name for name in parts if parts[name] is part}
        assert {f"{stem}{tail}" for tail in NUMBERED} <= named
        assert all(name.startswith(f"{stem}.so") for name in named)
    assert part_of("/opt/librccl.so/readme") is None
    looked_at = {name for name in FILES if RCCL_OR_PLUGIN.fullmatch(name)}
    assert looked_at == {name for name in parts if parts[name] in {Part.RCCL, Part.PLUGIN}}


def test_a_scan_of_a_node_looks_for_the_same_plugins() -> None:
    patterns = next(role.files for role in scan_facts().role if role.name == "net-plugin")
    found = {name for name in FILES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    assert found == {name for name in FILES if part_of(name) is Part.PLUGIN and name.endswith(".so")}


def test_the_layers_install_a_plugin_under_these_names() -> None:
    script = (shipped_layers() / "lib/plugin.sh").read_text()
    names = re.search(r"^plugin_names=\((.*)\)$", script, re.MULTILINE)
    assert names is not None
    assert sorted(names[1].split()) == sorted(LAYER_PLUGINS)
