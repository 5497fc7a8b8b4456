"""The decision of `explain IMAGE` out of its rules, the remedies with it, and the margins between two libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lumiimg.check.static.boundary import Boundary, without_ours
from lumiimg.check.static.comparisons import Outcome, Rule, rules_of
from lumiimg.check.static.evidence import StaticResult
from lumiimg.elf.facts import ElfFacts
from lumiimg.elf.objects import FoundBy, LoadedObject
from lumiimg.elf.versions import VersionNeed
from lumiimg.errors import ExitCode
from lumiimg.fabric.names import PRIVATE
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Code, Findings, Level, Severity
from lumiimg.host.carried_account import CarriedAccount
from lumiimg.host.manifest import BindManifest, Loaded, Refusal
from lumiimg.host.margins import Margin, margins_of

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
HOST, NOWHERE = BindManifest(Fabric.HOST), BindManifest(Fabric.NONE)
LOGIN_NODE = BindManifest(Fabric.NONE, host_has_fabric=False)
FACTS = ElfFacts(elf_class=64, little_endian=True, machine=62, type=3, is_dynamic=True)


def boundary(
    manifest: BindManifest | None, *outcomes: Outcome, findings: tuple[tuple[str, Severity], ...] = ()
) -> Boundary:
    rules = tuple(Rule("glibc-gate", outcome, "", "", "", "") for outcome in outcomes)
    found = Findings(Level.STATIC)
    for identity, severity in findings:
        found.add(Code(identity), severity, "", remedy=(f"mend {identity}",))
    static = StaticResult(findings=tuple(found.found))
    return Boundary("image.sif", None, static, None, None, None, manifest, (), (), rules, (), CarriedAccount(None))


@pytest.mark.parametrize(
    ("manifest", "outcomes", "decision", "code"),
    [
        (HOST, [OK, OK], OK, ExitCode.GOOD),
        (HOST, [], OK, ExitCode.GOOD),
        (HOST, [OK, UNKNOWN], UNKNOWN, ExitCode.UNDECIDED),
        (HOST, [OK, UNKNOWN, REFUSED], REFUSED, ExitCode.NO),
        (None, [OK], UNKNOWN, ExitCode.UNDECIDED),  # without a host nobody knows
        (None, [OK, REFUSED], REFUSED, ExitCode.NO),
    ],
)
def test_everything_has_to_load_for_a_yes(
    manifest: BindManifest | None, outcomes: list[Outcome], decision: Outcome, code: ExitCode
) -> None:
    found = boundary(manifest, *outcomes).decision
    assert (found, found.exit_code) == (decision, code)


@pytest.mark.parametrize(
    ("manifest", "outcome", "asked"),
    [(None, OK, True), (LOGIN_NODE, UNKNOWN, True), (HOST, UNKNOWN, False), (HOST, OK, False), (None, REFUSED, False)],
)
def test_a_snapshot_of_a_compute_node_is_asked_for_where_it_would_decide(
    manifest: BindManifest | None, outcome: Outcome, asked: bool
) -> None:
    assert any("host scan" in remedy for remedy in boundary(manifest, outcome).remedies) == asked


def test_remedies_are_those_of_what_is_wrong_each_once() -> None:
    found = boundary(
        HOST,
        REFUSED,
        findings=(
            ("plugin.api", Severity.PROBLEM),
            ("plugin.api", Severity.PROBLEM),
            ("plugin.symbols", Severity.UNKNOWN),
            ("bind.refused", Severity.PROBLEM),
            ("image.binds", Severity.UNKNOWN),
            ("rccl.found", Severity.INFO),
        ),
    )
    assert found.remedies == ("mend plugin.api", "mend plugin.symbols")
    assert boundary(HOST, OK).remedies == ()


def test_a_refusal_by_the_c_library_says_what_mends_it_only_where_nothing_loads() -> None:
    refusal = Refusal("the host's", "libcxi.so.1", "GLIBC_2.38 of libc.so.6", "there is 2.35", ("a",), "words")
    nowhere = replace(NOWHERE, refusals=(refusal,))
    assert any("a base with glibc 2.38" in remedy for remedy in boundary(nowhere, REFUSED).remedies)
    assert boundary(nowhere, OK).remedies == ()
    assert boundary(replace(HOST, refusals=(refusal,)), REFUSED).remedies == ()


def test_a_search_path_of_an_earlier_manifest_is_left_out() -> None:
    ours = {"SINGULARITYENV_LD_LIBRARY_PATH": f"{PRIVATE}:/usr/lib", "APPTAINERENV_LD_LIBRARY_PATH": PRIVATE}
    kept = {"SINGULARITYENV_LD_LIBRARY_PATH": f"/usr/lib:{PRIVATE}", "PATH": PRIVATE, "A_ENV_LD_LIBRARY_PATH": ""}
    assert without_ours(ours | {"HOME": "/root"}) == {"HOME": "/root"}
    assert without_ours(kept) == kept


def item(name: str, *needs: tuple[str, str], defines: tuple[str, ...] = (), host: str | None = None) -> Loaded:
    wanted = tuple(VersionNeed(file, version, weak=False) for file, version in needs)
    facts = replace(FACTS, version_needs=wanted, version_definitions=defines, soname=name)
    return Loaded(LoadedObject(name, f"/lib/{name}", facts, FoundBy.DEFAULT, None, "/lib"), host)


def test_a_margin_is_the_newest_that_is_needed_and_the_newest_that_is_there() -> None:
    libc = item("libc.so.6", defines=("libc.so.6", "GLIBC_2.9", "GLIBC_2.41", "GLIBC_2.38", "GLIBC_PRIVATE"))
    needs = [
        ("libc.so.6", "GLIBC_2.9"),
        ("libc.so.6", "GLIBC_2.38"),
        ("libc.so.6", "GLIBC_2.17"),
        ("libm.so.6", "GLIBC_2.2"),
    ]
    cxi = item("libcxi.so.1", *needs, ("libc.so.6", "GLIBC_PRIVATE"), host="/usr/lib64/libcxi.so.1")
    (margin,) = margins_of([cxi, libc])
    assert margin == Margin("libcxi.so.1", True, "libc.so.6", False, "GLIBC", "2.38", "2.41")
    assert (margin.library_side, margin.provider_side) == ("libcxi.so.1 (host)", "libc.so.6 (image)")
    assert margin.crosses
    (within,) = margins_of([replace(cxi, host_path=None), libc])
    assert not within.crosses
    assert within.library_side == "libcxi.so.1 (image)"


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


def test_a_library_is_known_by_the_name_it_was_asked_for_and_by_its_soname() -> None:
    libc = item("libc.so.6", defines=("GLIBC_2.41",))
    other = replace(libc.object, name="libc.so", facts=replace(libc.object.facts, soname="libc.so.6"))
    for name in ("libc.so", "libc.so.6"):
        (margin,) = margins_of([item("libcxi.so.1", (name, "GLIBC_2.38")), Loaded(other, None)])
        assert (margin.provider, margin.have) == (name, "2.41")
    unnamed = item("libcxi.so.1", ("libc.so.6", "GLIBC_2.38")).object
    plain = Loaded(replace(unnamed, facts=replace(unnamed.facts, soname=None)), None)
    renamed = Loaded(replace(unnamed, name="libcxi.so"), None)
    assert [margin.library for margin in margins_of([plain, renamed, libc])] == ["libcxi.so.1", "libcxi.so.1"]


@pytest.mark.parametrize(("finding", "outcome"), [("image.partly-read", UNKNOWN), ("plugin.symbols", UNKNOWN)])
def test_what_was_not_seen_keeps_the_decision_from_being_a_yes(finding: str, outcome: Outcome) -> None:
    static = boundary(HOST, findings=((finding, Severity.UNKNOWN),)).static
    assert {rule.outcome for rule in rules_of(static, HOST, (), (), ())} == {outcome}


@pytest.mark.parametrize(("manifest", "outcomes"), [(NOWHERE, [REFUSED]), (LOGIN_NODE, [UNKNOWN, UNKNOWN])])
def test_a_host_without_the_fabric_refuses_nothing(manifest: BindManifest, outcomes: list[Outcome]) -> None:
    refusal = Refusal("the host's", "libcxi.so.1", "GLIBC_2.38 of libc.so.6", "there is 2.35", ("a",), "words")
    rules = list(rules_of(StaticResult(), replace(manifest, refusals=(refusal,)), (), (), ()))
    assert [rule.outcome for rule in rules] == outcomes
    assert rules[0].id == "glibc-gate"
