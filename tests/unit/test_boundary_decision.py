"""What `explain IMAGE` shows beside its findings: attempts at binds, and the margins between two libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from lumiimg.core.findings import Severity
from lumiimg.elf import ElfFacts, FoundBy, LoadedObject
from lumiimg.elf.facts import VersionNeed
from lumiimg.fabric.names import HOST_LIB_DIR
from lumiimg.fabric.path import Fabric
from lumiimg.host.bind import SolvedManifest
from lumiimg.host.container_view import without_ours
from lumiimg.host.manifest import Loaded, Refusal, margins_of
from lumiimg.report.views.binds import attempts
from tests.shared.node_answers import FILES

NEEDS = "GLIBC_2.38 of libc.so.6", "libjson-c.so.5"
FACTS = ElfFacts(machine=62, type=3, is_dynamic=True)


def test_a_search_path_of_an_earlier_manifest_is_left_out() -> None:
    ours = {"SINGULARITYENV_LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:/usr/lib", "APPTAINERENV_LD_LIBRARY_PATH": HOST_LIB_DIR}
    kept = {
        "SINGULARITYENV_LD_LIBRARY_PATH": f"/usr/lib:{HOST_LIB_DIR}",
        "PATH": HOST_LIB_DIR,
        "A_ENV_LD_LIBRARY_PATH": "",
    }
    assert without_ours(ours | {"HOME": "/root"}) == {"HOME": "/root"}
    assert without_ours(kept) == kept


def item(name: str, *needs: tuple[str, str], defines: tuple[str, ...] = (), host: str | None = None) -> Loaded:
    wanted = tuple(VersionNeed(file, version, weak=False) for file, version in needs)
    facts = structs.replace(FACTS, version_needs=wanted, version_definitions=defines, soname=name)
    return Loaded(LoadedObject(name, f"/lib/{name}", facts, FoundBy.DEFAULT, None, "/lib"), host)


def test_each_family_of_versions_has_a_margin_of_its_own() -> None:
    fabric = item("libfabric.so.1", defines=("FABRIC_1.0", "FABRIC_1.7", "ABI_2.0"), host="/usr/lib64/libfabric.so.1")
    plugin = item(
        "librccl-net.so",
        ("libfabric.so.1", "FABRIC_1.3"),
        ("libfabric.so.1", "ABI_1.1"),
        ("libfabric.so.1", "GONE_1.0"),
    )
    assert [(m.family, m.need, m.have, m.crosses) for m in margins_of([plugin, fabric])] == [
        ("FABRIC", "1.3", "1.7", True),
        ("ABI", "1.1", "2.0", True),
    ]


def test_a_version_that_a_library_would_only_like_to_have_makes_no_margin_smaller() -> None:
    """The loader goes past a weak need (VER_FLG_WEAK)."""
    libc = item("libc.so.6", defines=("GLIBC_2.34", "GLIBC_2.38"))
    plugin = item("librccl-net.so", ("libc.so.6", "GLIBC_2.34"))
    weak = VersionNeed("libc.so.6", "GLIBC_2.39", weak=True)
    facts = structs.replace(plugin.object.facts, version_needs=(*plugin.object.facts.version_needs, weak))
    softer = replace(plugin, object=replace(plugin.object, facts=facts))
    assert [margin.sentence for margin in margins_of([softer, libc])] == [
        margin.sentence for margin in margins_of([plugin, libc])
    ]


@pytest.mark.parametrize("host_has_fabric", [True, False])
def test_each_attempt_at_binds_is_shown_with_what_is_needed_and_what_there_is(*, host_has_fabric: bool) -> None:
    tried = tuple(Refusal("the host's", "/lib/a.so", need, "there is none", ("a.so",), "") for need in NEEDS)
    manifest = SolvedManifest(Fabric.NONE, refusals=tried, host_has_fabric=host_has_fabric)
    fit = replace(FILES, host="nid1", manifest=manifest)
    lacks = [] if host_has_fabric else ["the snapshot of nid1 has no libfabric with the cxi provider"]
    severity = Severity.PROBLEM if host_has_fabric else Severity.UNKNOWN
    shown = [*lacks, *(f"the host's: a.so needs {need}; there is none" for need in NEEDS)]
    assert [(item.severity, item.text) for item in attempts(fit)] == [(severity, text) for text in shown]
    assert fit.refusals == tried
    assert replace(fit, manifest=replace(manifest, fabric=Fabric.HOST)).refusals == ()
