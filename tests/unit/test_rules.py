"""The compatibility rules by themselves: what each says of a stack and a site, number by number."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from packaging.requirements import Requirement

from lumiimg.catalog.drivers import Rank
from lumiimg.catalog.launch import SiteVariable
from lumiimg.catalog.layers import Argument, Layer
from lumiimg.catalog.needs import Need
from lumiimg.catalog.releases import Release
from lumiimg.catalog.sites import Site, find_site
from lumiimg.fabric.path import Fabric
from lumiimg.resolve import rules
from lumiimg.resolve.driver_rule import driver_window
from lumiimg.resolve.stack import Chosen, OfferedComponent, Stack, site_variables

if TYPE_CHECKING:
    from lumiimg.resolve.rules import RuleResult

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
    """A stack of components by their versions; `_` stands for `-`."""
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
        # the newest that the host's libraries ask for is 2.38
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
        # what is not known is never a host fabric
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
        # torch's wheel has a ROCm of its own; what is true of both is reported once
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
        ("2.22.3", None, "5", "ok", "they meet at v5"),
        ("2.22.3", "6", "9", "ok", "they meet at v8"),
        ("2.26.6", None, "5", "refused", "aws-ofi-nccl"),
        ("2.26.6", None, "6", "ok", "they meet at v6"),
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
        # a version that cannot be read is not new enough nor too old
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
