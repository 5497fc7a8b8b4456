"""The rules of `explain IMAGE`, and the margins between two libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lumiimg.check.static.host_fit import without_ours
from lumiimg.check.static.process import StaticResult
from lumiimg.elf.facts import ElfFacts
from lumiimg.elf.objects import FoundBy, LoadedObject
from lumiimg.elf.versions import VersionNeed
from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Finding, Level, Severity
from lumiimg.host.manifest import BindManifest, Loaded, Refusal
from lumiimg.host.margins import margins_of
from lumiimg.resolve.rules import RuleOutcome
from tests.shared.node_answers import FILES

REFUSED, UNKNOWN = RuleOutcome.REFUSED, RuleOutcome.UNKNOWN
HOST, NOWHERE = BindManifest(Fabric.HOST), BindManifest(Fabric.NONE)
NEEDS = "GLIBC_2.38 of libc.so.6", "libjson-c.so.5"
FACTS = ElfFacts(elf_class=64, little_endian=True, machine=62, type=3, is_dynamic=True)


def test_a_search_path_of_an_earlier_manifest_is_left_out() -> None:
    ours = {"SINGULARITYENV_LD_LIBRARY_PATH": f"{PRIVATE}:/usr/lib", "APPTAINERENV_LD_LIBRARY_PATH": PRIVATE}
    kept = {"SINGULARITYENV_LD_LIBRARY_PATH": f"/usr/lib:{PRIVATE}", "PATH": PRIVATE, "A_ENV_LD_LIBRARY_PATH": ""}
    assert without_ours(ours | {"HOME": "/root"}) == {"HOME": "/root"}
    assert without_ours(kept) == kept


def item(name: str, *needs: tuple[str, str], defines: tuple[str, ...] = (), host: str | None = None) -> Loaded:
    wanted = tuple(VersionNeed(file, version, weak=False) for file, version in needs)
    facts = replace(FACTS, version_needs=wanted, version_definitions=defines, soname=name)
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


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("severity", list(Severity))
def test_each_finding_that_counts_is_a_rule_of_the_same_weight(code: Code, severity: Severity) -> None:
    found = Finding(code, severity, Level.STATIC, "what was found")
    rules = replace(FILES, static=StaticResult(findings=(found,)), manifest=HOST).rules
    if severity is Severity.INFO or code is Code.BIND_REFUSED:  # of no weight; each attempt is a rule of its own
        assert not rules
    else:
        assert [(rule.id, rule.outcome.severity, rule.have) for rule in rules] == [(code, severity, found.summary)]


@pytest.mark.parametrize(("host_has_fabric", "outcome"), [(True, REFUSED), (False, UNKNOWN)])
def test_each_attempt_at_binds_is_a_rule_with_what_is_needed_and_what_there_is(
    host_has_fabric: bool, outcome: RuleOutcome
) -> None:
    tried = tuple(Refusal("the host's", "/lib/a.so", need, "there is none", ("a.so",), "") for need in NEEDS)
    manifest = replace(NOWHERE, refusals=tried, host_has_fabric=host_has_fabric)
    rules = replace(FILES, manifest=manifest).rules
    named = [("glibc-gate", NEEDS[0]), ("library", NEEDS[1])]
    assert [(rule.id, rule.need) for rule in rules[:2]] == named
    assert {rule.outcome for rule in rules} == {outcome}
    assert [rule.id for rule in rules[2:]] == ([] if host_has_fabric else ["host-fabric"])
