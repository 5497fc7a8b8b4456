"""The compatibility rules in isolation: what each says about a stack and a site, number by number."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace
from packaging.requirements import Requirement

from lumiimg.catalog.drivers import Rank
from lumiimg.catalog.launch import SiteVariable
from lumiimg.catalog.layers import Argument, Layer
from lumiimg.catalog.needs import Need
from lumiimg.catalog.releases import Release
from lumiimg.catalog.sites import Site, find_site
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_of_node, driver_window
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.resolve.stack import Chosen, OfferedComponent, Stack, site_variables
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    import pytest

    from lumiimg.host.snapshot import Snapshot

LUMI = find_site("lumi", {"HOME": "/nonexistent"})
assert LUMI.fabric is not None
assert LUMI.driver is not None
NO_GLIBC = replace(LUMI, fabric=replace(LUMI.fabric, glibc=None))
NO_RELEASE = replace(LUMI, fabric=replace(LUMI.fabric, slingshot=None, libfabric=None))
NO_FABRIC = replace(LUMI, fabric=None)
NO_DRIVER = replace(LUMI, driver=None)
SURE = replace(LUMI, driver=replace(LUMI.driver, evidence=(), rank=Rank.MEASURED))
assert SURE.driver is not None
OTHER_VENDOR = replace(LUMI, arch=None, vendor="NVIDIA")


def stack_of(*layers: Chosen, **versions: str | None) -> Stack:
    """Return a stack of components with these versions; `_` stands for `-`."""
    return Stack(
        {name.replace("_", "-"): OfferedComponent(version, "base") for name, version in versions.items()}, layers
    )


def need(text: str) -> Need:
    requirement = Requirement(text)
    return Need(requirement.name, requirement.specifier)


def layer(name: str) -> Layer:
    return Layer(name=name, folder=Path(), summary="", source="a page", date=dt.date(2026, 11, 22))


def id_and_outcome(result: RuleResult | None) -> tuple[str, str] | None:
    return None if result is None else (result.id, result.outcome.value)


def test_the_hosts_fabric_is_taken_only_where_the_c_library_is_new_enough() -> None:
    for glibc, site, asked, fabric, outcome in (
        # the newest version that the host's libraries need is 2.38
        ("2.38", LUMI, None, Fabric.HOST, "ok"),
        ("2.39", LUMI, None, Fabric.HOST, "ok"),
        ("2.37", LUMI, None, Fabric.BUNDLED, "ok"),
        ("2.4", LUMI, None, Fabric.BUNDLED, "ok"),  # a version, not a decimal number
        ("2.37", LUMI, Fabric.HOST, Fabric.HOST, "refused"),
        ("2.38", LUMI, Fabric.HOST, Fabric.HOST, "ok"),
        # a fabric in the image needs nothing of the host
        ("2.38", LUMI, Fabric.BUNDLED, Fabric.BUNDLED, "ok"),
        ("2.31", LUMI, Fabric.BUNDLED, Fabric.BUNDLED, "ok"),
        (None, LUMI, Fabric.BUNDLED, Fabric.BUNDLED, "ok"),
        # an unknown version never gives a host fabric
        (None, LUMI, None, Fabric.BUNDLED, "unknown"),
        (None, LUMI, Fabric.HOST, Fabric.HOST, "refused"),
        ("?", LUMI, None, Fabric.BUNDLED, "unknown"),
        ("2.39", NO_GLIBC, None, Fabric.BUNDLED, "unknown"),
        ("2.39", NO_GLIBC, Fabric.HOST, Fabric.HOST, "refused"),
        (None, NO_GLIBC, None, Fabric.BUNDLED, "unknown"),
    ):
        got, result = rules.glibc_gate(stack_of(glibc=glibc), site, asked=asked)
        assert (got, id_and_outcome(result)) == (fabric, ("glibc-gate", outcome)), (glibc, asked)
        assert result is not None
        if site is NO_GLIBC:
            assert "host scan" in result.because
            assert "None" not in result.need
        elif asked is not Fabric.BUNDLED:
            assert "2.38" in result.need
            assert (glibc or "not known") in result.have
            assert "host scan" not in result.because
            assert ("last confirmed on 2026-09-08" in result.because) == (got is Fabric.HOST and outcome == "ok")
            assert ("are built in the image" in result.because) == (fabric is Fabric.BUNDLED and outcome == "ok")


def test_a_base_with_libfabric_and_libcxi_of_its_own_keeps_them() -> None:
    own: dict[str, str | None] = {"libcxi": None, "libfabric": "1.22.0"}
    for components, fabric in (
        (own, Fabric.BUNDLED),
        ({**own, "rocm": "6.4"}, Fabric.BUNDLED),
        ({"libcxi": None, "glibc": "2.39"}, Fabric.HOST),
        ({"libfabric": "1.15", "glibc": "2.39"}, Fabric.HOST),
    ):
        got, result = rules.glibc_gate(stack_of(**components), LUMI, asked=None)
        assert (got, id_and_outcome(result)) == (fabric, ("glibc-gate", "ok"))
    fabric, result = rules.glibc_gate(stack_of(glibc="2.39"), LUMI, asked=Fabric.NONE)
    assert (fabric, id_and_outcome(result)) == (Fabric.NONE, ("fabric", "warning")), "a user who wants none"


def test_the_driver_of_the_nodes_serves_each_rocm_of_the_image_or_not() -> None:
    both: dict[str, str | None] = {"rocm": "6.4", "torch_rocm": "6.4"}
    rows: tuple[tuple[Site, dict[str, str | None], list[str]], ...] = (
        (LUMI, {"rocm": "6.0.2"}, ["refused"]),
        (SURE, {"rocm": "6.1"}, ["ok"]),
        (SURE, {"rocm": "7.0"}, ["ok"]),
        (SURE, {"rocm": "7.1"}, ["refused"]),
        (LUMI, {"rocm": "7.14"}, ["unknown"]),  # announced, and updates move a window up
        (LUMI, {"rocm": None}, ["unknown"]),
        (LUMI, {"glibc": "2.39"}, []),
        # torch's wheel has its own ROCm; what applies to both is reported once
        (SURE, {"rocm": "6.4", "torch_rocm": "6.3"}, ["ok"]),
        (SURE, {"rocm": "6.4", "torch_rocm": "7.2"}, ["ok", "refused"]),
        (SURE, {"torch_rocm": "7.2"}, ["refused"]),
        (NO_DRIVER, both, ["unknown"]),
        (replace(NO_DRIVER, arch=None), {"rocm": "6.4"}, []),
        (replace(LUMI, arch=None), {"rocm": "6.0.2"}, ["refused"]),
        (OTHER_VENDOR, {"rocm": "6.4"}, ["refused"]),
        (OTHER_VENDOR, {"glibc": "2.39"}, []),
    )
    for site, components, outcomes in rows:
        found = list(driver_window(stack_of(**components), site))
        assert [id_and_outcome(result) for result in found] == [("driver-window", outcome) for outcome in outcomes], (
            components
        )
        message = " ".join(result.have for result in found)
        for version in filter(None, components.values() if outcomes else ()):
            assert f"ROCm {version}" in message


def test_a_torch_that_is_there_is_one_for_rocm_or_refused() -> None:
    for torch, outcomes in (
        ("2.9.1+cu128", ["refused"]),
        ("2.9.1+cpu", ["refused"]),
        ("2.9.1+rocm6.4", []),
        ("2.9.1", []),
        (None, []),
    ):
        found = list(rules.torch_kind(stack_of(torch=torch)))
        assert [id_and_outcome(result) for result in found] == [("torch", outcome) for outcome in outcomes], torch
    assert not list(rules.torch_kind(stack_of()))


def test_rccl_and_the_plugin_have_to_share_a_version_of_the_net_api() -> None:
    for rccl, oldest, newest, outcome, words in (
        ("2.22.3", None, "5", "ok", "both support v5"),
        ("2.22.3", "6", "9", "ok", "both support v8"),
        ("2.26.6", None, "5", "refused", "aws-ofi-nccl"),
        ("2.26.6", None, "6", "ok", "both support v6"),
        ("2.26.6", "11", "12", "refused", "aws-ofi-nccl"),
        ("2.12.0", "6", "9", "refused", "aws-ofi-nccl"),
        ("2.3", None, "5", "unknown", "not in the table"),
        (None, None, "5", "unknown", "is not known"),
    ):
        components = {"rccl": rccl, "net_api": newest} | ({"net_api_oldest": oldest} if oldest else {})
        result = rules.plugin_abi(stack_of(**components))
        assert id_and_outcome(result) == ("plugin-abi", outcome), (rccl, oldest, newest)
        assert result is not None
        assert words in result.because
        assert f"v{newest}" in result.have
        assert ("to" in result.have) == (oldest is not None)
        assert rules.plugin_abi(stack_of(rccl=rccl)) is None
    assert id_and_outcome(rules.plugin_abi(stack_of(rccl="2.22.3", net_api=None))) == ("plugin-abi", "unknown")


def test_a_bundled_fabric_is_of_the_hosts_release_and_has_cxi() -> None:
    rows: tuple[tuple[Fabric, dict[str, str | None], Site, str | None], ...] = (
        (Fabric.BUNDLED, {"libfabric": "1.20.1", "slingshot": "12.0"}, LUMI, "refused"),
        (Fabric.BUNDLED, {"libfabric": "1.21", "slingshot": "12.0"}, LUMI, "ok"),
        (Fabric.BUNDLED, {"libfabric": "2.1", "slingshot": "12.0"}, LUMI, "ok"),
        # an unreadable version is neither new enough nor too old
        (Fabric.BUNDLED, {"libfabric": "main", "slingshot": "12.0"}, LUMI, "ok"),
        (Fabric.BUNDLED, {"slingshot": "12.0"}, LUMI, "ok"),
        (Fabric.BUNDLED, {"libfabric": "2.1", "slingshot": "13.0"}, LUMI, "warning"),
        (Fabric.BUNDLED, {"libfabric": "2.1"}, LUMI, "unknown"),
        (Fabric.BUNDLED, {"libfabric": "2.1", "slingshot": "12.0"}, NO_RELEASE, "unknown"),
        (Fabric.BUNDLED, {"libfabric": "2.1"}, NO_RELEASE, "unknown"),
        (Fabric.HOST, {"libfabric": "1.15"}, LUMI, "ok"),
        (Fabric.HOST, {}, NO_RELEASE, "ok"),
        (Fabric.NONE, {"libfabric": "1.15"}, LUMI, None),
        (Fabric.BUNDLED, {"libfabric": "1.15"}, NO_FABRIC, None),
    )
    for fabric, components, site, outcome in rows:
        result = rules.fabric_versions(stack_of(**components), site, fabric)
        assert id_and_outcome(result) == (None if outcome is None else ("fabric", outcome)), (fabric, components)
        if result is not None:
            assert "None" not in f"{result.need}{result.have}{result.because}"
            if outcome == "unknown":
                assert ("not known" in result.have) == ("slingshot" not in components)


def test_a_variable_is_for_the_stacks_that_need_it() -> None:
    def variable(name: str, given: str = "", unless: str = "") -> SiteVariable:
        met, not_met = ((need(text),) if text else () for text in (given, unless))
        return SiteVariable(name=name, value="1", given=met, unless=not_met, because="", source="")

    variables = (variable("ALWAYS"), variable("OLD", "rocm<7", "mpi"), variable("NEW", "rocm>=7", "mpi"))
    for stack, more in (
        (stack_of(rocm="6.4"), {"OLD"}),
        (stack_of(rocm="7.0"), {"NEW"}),
        # jobs of torch run the ROCm of its wheel
        (stack_of(rocm="7.0", torch_rocm="6.4"), {"OLD"}),
        (stack_of(), set[str]()),
        (stack_of(rocm="6.4", mpi=None), set[str]()),
        (stack_of(rocm="7.0", torch_rocm="6.4", mpi=None), set[str]()),
    ):
        assert {v.name for v in site_variables(stack, replace(LUMI, variables=variables))} == {"ALWAYS", *more}


WHEEL = Release(version="1", wheels=("vllm==1",), source="its notes")
ANY = replace(LUMI, arch=None)


def test_what_is_compiled_is_for_the_gpus_of_the_site() -> None:
    rows: tuple[tuple[Site, str, str | None, Release | None, str | None, str], ...] = (
        (LUMI, "gfx90a", None, None, None, ""),
        (LUMI, "gfx942", None, None, "refused", "needs code for gfx90a, has vllm for gfx942"),
        (LUMI, "gfx90a", "gfx942", None, "refused", "leave out --arg vllm.ARCH, or name gfx90a as well"),
        (LUMI, "gfx942", "gfx90a", None, None, ""),
        (LUMI, "gfx90a", "gfx942;gfx90a", None, None, ""),
        (LUMI, "gfx90a", "gfx90a1", None, "refused", "gfx90a1"),
        (LUMI, "gfx90a", "gfx942", WHEEL, None, ""),  # nothing is compiled
        (LUMI, "x86_64", None, None, None, ""),  # a processor
        (ANY, "gfx90a", None, None, "unknown", "--arg vllm.ARCH=GPU"),
        (ANY, "gfx90a", "gfx942", None, None, ""),  # the user knows the machine
        (OTHER_VENDOR, "gfx90a", None, None, None, ""),  # refused for its ROCm
    )
    for site, default, given, of, outcome, words in rows:
        compiled = replace(layer("vllm"), arguments={"ARCH": Argument(default, "the GPU")})
        arguments = {"vllm.ARCH": given} if given else {}
        found = list(
            rules.compiled_for(stack_of(Chosen(compiled, of, {"ARCH": given or default}, "asked")), site, arguments)
        )
        assert [id_and_outcome(result) for result in found] == ([("layers", outcome)] if outcome else []), (
            default,
            given,
        )
        assert words in " ".join(f"{result.need_and_have} {result.because}" for result in found)
    arch = {"ARCH": Argument("gfx942", "the GPU")}
    both = [
        Chosen(replace(layer(name), arguments=arch), None, {"ARCH": "gfx942"}, "asked") for name in ("vllm", "apex")
    ]
    (result,) = rules.compiled_for(stack_of(*both), LUMI, {})
    assert result.have == "vllm, apex for gfx942", "in one line"


# -- what the driver of a machine serves: facts have a date and a rank, and a contradiction causes doubt --

KERNEL = "6.4.0-150600.23.73_15.0.14-cray_shasta_c"


def judged(rocm: str, **node: str) -> RuleResult:
    """Judge a release of ROCm on LUMI, or on a node of LUMI with a snapshot."""
    site = LUMI
    if node:
        day = dt.date.fromisoformat(node.pop("taken")[:10]) if "taken" in node else None
        seen = cast("Snapshot", SimpleNamespace(host="nid001", day=day, **node))
        site = replace(LUMI, driver=driver_of_node(LUMI.driver, seen))
    (result,) = driver_window(stack_of(rocm=rocm), site)
    return result


def test_the_newest_of_the_highest_rank_decides_and_what_is_contradicted_is_a_doubt() -> None:
    for rocm, outcome, words in (
        ("5.7", "refused", "does not support it"),  # updates move a window up
        (
            "6.2.4",
            "ok",
            "supports it; last confirmed on 2026-02-11. To be sure, add --host with a snapshot of `lumiimg host scan`",
        ),
        ("7.0", "ok", "runs there with ROCm 7.0; last confirmed on 2026-09-29. To be sure"),
        ("7.1", "unknown", "announced, 2026-02-11"),
        ("7.2.4", "unknown", "(published, 2026-09-29), but amdgpu 6.3.60300"),
        ("7.14.0", "unknown", "updates move a driver's window up"),
        ("10.1", "unknown", "updates move a driver's window up"),
    ):
        result = judged(rocm)
        assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_what_was_seen_on_a_node_counts_more_than_the_facts_of_the_site() -> None:
    for rocm, driver, kernel, outcome, words in (
        ("6.2.4", "6.10.5", KERNEL, "ok", "seen on nid001"),
        ("6.2.4", "6.10.5", "another", "ok", "seen on nid001"),  # the module is of the driver that the site names
        ("7.2.4", "6.10.5", KERNEL, "unknown", "measured, 2026-11-20"),  # the site ships an image that runs
        ("7.1", "6.10.5", KERNEL, "unknown", "u24r72"),  # what serves 7.2 may serve 7.1
        ("7.2.4", "6.16.13", "newer", "ok", "AMD's 30.30"),
        ("6.2.4", "6.16.13", "newer", "refused", "does not support it"),
        ("6.2.4", "6.16.13", KERNEL, "refused", "does not support it"),  # a driver was exchanged under the same kernel
        ("6.4.4", "6.99.1", KERNEL, "ok", "seen on nid001"),  # nobody says which release has that module
        ("7.2.4", "6.99.1", "newer", "unknown", "is not known"),
        ("6.4.4", "6.99.1", "newer", "unknown", "is not known"),
    ):
        result = judged(rocm, gpu_driver=driver, kernel=kernel, taken="2026-11-20T10:00:00Z")
        assert (result.outcome, words in result.because) == (RuleOutcome(outcome), True), result


def test_only_what_was_seen_on_a_node_refuses_a_newer_rocm() -> None:
    """What a site published about its driver may be old, and updates move its window up; a snapshot shows it."""
    assert LUMI.driver is not None
    for rank in Rank:
        site = replace(LUMI, driver=replace(LUMI.driver, rank=rank, evidence=()))
        (result,) = driver_window(stack_of(rocm="7.14.0"), site)
        assert result.outcome is (RuleOutcome.REFUSED if rank is Rank.MEASURED else RuleOutcome.UNKNOWN)


def test_whoever_gives_a_snapshot_of_any_age_is_not_sent_for_one() -> None:
    for taken in ("1970-01-01", "2026-02-11", "9999-12-31"):
        for rocm, outcome in (
            ("5.7", "refused"),
            ("6.4.4", "ok"),
            ("7.0", "ok"),
            ("7.2.4", "unknown"),
            ("10.1", "refused"),
        ):
            result = judged(rocm, gpu_driver="6.10.5", kernel=KERNEL, taken=taken)
            assert result.outcome is RuleOutcome(outcome), (rocm, taken)
            assert "host scan" not in result.because
            assert "a snapshot" not in result.because
            assert taken in f"{result.because} {result.source}"
    # a snapshot of a login node, which has no GPU
    for rocm in ("7.2.4", "10.1"):
        seen = judged(rocm, gpu_driver=cast("str", None), kernel=KERNEL, taken="2026-11-20")
        assert seen.because.endswith(": a snapshot that shows the driver decides")


def test_the_driver_that_was_seen_counts_where_no_site_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every command that judges an image with a snapshot, as with `--site generic`, which means no site."""
    image = fabric_builder.bundled(tmp_path / "image")
    info = image / "opt/rocm/.info"
    info.mkdir(parents=True)
    node = fabric_builder.snapshot(
        fabric_builder.host(tmp_path / "node"), gpu_driver="6.16.13", taken="2026-11-20T00:00:00Z"
    )
    for rocm, code in (("6.2.4", ExitCode.NO), ("7.2.1", ExitCode.GOOD), ("7.14.0", ExitCode.NO)):
        (info / "version").write_text(f"{rocm}-1\n")
        for site in ([], ["--site", "generic"]):
            words = ["check", str(image), "--level", "static", "--host", str(node), "--verbose", *site]
            assert (main(words), site) == (code, site)
            assert "AMD's 30.30" in unwrapped(capsys.readouterr().out)
    job = ["job", str(image), "--site", "lumi", "--host", str(node), "-o", str(tmp_path / "job.sh"), "--", "true"]
    assert main(job) == ExitCode.GOOD
    output = unwrapped("".join(capsys.readouterr()))
    assert "AMD's 30.30" in output
    assert "amdgpu 6.3.60300" not in output
