"""`lumiimg explain --base … --add …`: what is chosen or refused, and by which rule; each case with its reason."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.planner import decide, possible_bases
from lumiimg.resolve.request import AUTO, Request
from lumiimg.resolve.rules import RuleOutcome
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    import pytest

    from lumiimg.resolve.plan import Plan

HOME = {"HOME": "/nonexistent"}


class Case(NamedTuple):
    asked: str
    """Base and layers; `@` precedes a site other than lumi, `%` the fabric."""
    answer: str
    """Fabric, torch, releases of layers; or the rule that refuses, and the nearest request that is accepted."""
    why: str


CASES = [
    # the C library decides where the fabric comes from
    Case("rocm-6.2.4 pytorch", "bundled torch=2.7.1+rocm6.2.4", "Ubuntu 22.04 has glibc 2.35, the host asks for 2.38"),
    Case("rocm-6.4.4 pytorch", "host torch=2.9.1+rocm6.4", "Ubuntu 24.04 has glibc 2.39, and with its libfabric 1.17 the plugin was built"),
    Case("rocm-6.2.4 pytorch %host", "refused glibc-gate -> rocm-6.2.4 pytorch", "asked for what the gate forbids"),
    Case("lumi-multitorch-u24r64 pytorch %host", "refused glibc-gate -> lumi-multitorch-u24r64 pytorch", "the base has its own"),
    Case("rocm-6.4.4 pytorch %bundled", "bundled torch=2.9.1+rocm6.4", "a fabric of its own works on any base"),
    Case("rocm-6.4.4 pytorch %none", "none torch=2.9.1+rocm6.4 warning=fabric", "the user wants no fabric"),
    Case("debian-rocm", "bundled unknown=driver-window", "its libfabric is newer than the host's, and the plugin would ask for that"),
    Case("debian-rocm %host", "host warning=fabric unknown=driver-window", "who names the host's fabric has it, with that doubt"),
    Case("debian-rocm fabric-host", "host warning=fabric unknown=driver-window", "as a layer, too"),
    Case("rocm-6.4.4 pytorch @generic", "none torch=2.9.1+rocm6.4", "no machine, so no fabric is put in"),
    Case("lumi-multitorch-u24r64", "bundled torch=2.9.1 warning=fabric", "a fabric of its own, past which its torch goes"),
    # the driver of the site
    Case("rocm-5.7 pytorch", "refused driver-window -> rocm-6.1.2 pytorch", "amdgpu 6.3 serves 6.1 to 7.0"),
    Case("rocm-6.1.2 pytorch", "bundled torch=2.6.0+rocm6.1", "the oldest that the driver serves, by February's word"),
    Case("rocm-7.0 pytorch", "host torch=2.10.0+rocm7.0", "served, and images that the site ships run with it"),
    Case("rocm-7.2.4 pytorch", "host torch=2.14.1+rocm7.2 unknown=driver-window", "February's window ends at 7.0, and September's image has 7.2: a doubt, never a refusal"),
    Case("rocm-7.2.4 pytorch @generic", "none torch=2.14.1+rocm7.2", "no driver to fit"),
    Case("rocm-6.4.4 pytorch @frontier", "bundled torch=2.9.1+rocm6.4 unknown=glibc-gate warning=fabric", "no page says which glibc its libraries ask for"),
    Case("rocm-6.2.4 pytorch @frontier", "bundled torch=2.7.1+rocm6.2.4 unknown=glibc-gate warning=fabric unknown=driver-window", "AMD's matrix ends at 6.3, OLCF's default is 6.2.4"),
    # a layer that another one depends on comes first, whatever the requested order
    Case("debian-rocm jax debian-rocm-libraries @generic", "none jax=0.9.1", "JAX's plugin needs the mathematical libraries; 0.9.2 needs four that Debian lacks"),
    # torch, ROCm, Python
    Case("rocm-6.2.4 pytorch==2.5.1", "bundled torch=2.5.1+rocm6.2", "its index is rocm6.2, which 6.2.4 is of"),
    Case("rocm-6.2.4 pytorch==2.6.0", "bundled torch=2.6.0+rocm6.2.4 warning=torch", "NaN from triton, mended in 2.7.1"),
    Case("rocm-6.3 pytorch", "host torch=2.9.1+rocm6.3", "the newest torch that has wheels for 6.3"),
    Case("rocm-6.4.4 vllm transformers", "host torch=2.9.1+rocm6.4 vllm=0.12.0 transformers=4.57.6", "vLLM 0.12 is for transformers 4"),
    Case("rocm-6.4.4 vllm transformers==5.23.0", "refused layers -> rocm-6.4.4 vllm transformers", "and says so"),
    Case("rocm-6.4.4 pytorch==2.7.1", "refused torch -> rocm-6.4.4 pytorch", "2.7.1 has wheels for 6.3 and 6.2.4"),
    Case("debian-13 pytorch @generic", "refused torch -> rocm-5.7 pytorch", "a base without ROCm"),
    Case("lumi-pytorch-6.2.4 vllm", "refused layers -> lumi-pytorch-6.2.4", "it has vLLM already"),
    Case("rocm-6.4.4 pytorch==2.11.0", "refused torch -> rocm-6.4.4 pytorch", "2.11 has wheels for 7.2 only"),
    Case("rocm-6.4.4 pytorch==9.9", "host torch=9.9 unknown=torch", "without an index nobody knows that there is no such torch"),
    Case("rocm-6.4.4 bitsandbytes==9.9", "refused layers -> rocm-6.4.4 bitsandbytes", "its sources are those of its rows"),
    # the plugin's API and RCCL's
    Case("rocm-6.2.4 pytorch aws-ofi-rccl", "bundled torch=2.7.1+rocm6.2.4 warning=fabric", "v5 is taken; hangs with libfabric 2"),
    Case("rocm-6.4.4 pytorch aws-ofi-rccl", "host torch=2.9.1+rocm6.4 warning=fabric", "hangs with the host's libfabric 1.22"),
    Case("rocm-7.0 pytorch aws-ofi-rccl", "refused plugin-abi -> rocm-7.0 pytorch", "RCCL 2.26 takes v6 and later"),
    Case("rocm-7.2.4 pytorch @generic aws-ofi-nccl", "none torch=2.14.1+rocm7.2", "v10; libnccl-net.so is one of its names"),
    Case("rocm-6.4.4 aws-ofi-nccl==1.18.0", "host warning=plugin-abi", "hangs on large broadcasts"),
    Case("rocm-6.4.4 aws-ofi-nccl==1.19.2", "host warning=plugin-abi unknown=layers", "no facts of this release"),
    Case("rocm-6.4.4 aws-ofi-nccl==1.17.3", "refused plugin-abi -> rocm-6.4.4 aws-ofi-nccl", "no ROCm before 1.18"),
    Case("rocm-6.4.4 aws-ofi-nccl aws-ofi-rccl", "refused layers -> rocm-6.4.4 aws-ofi-nccl", "one plugin an image"),
    # vLLM and SGLang
    Case("rocm-6.2.4 vllm", "bundled torch=2.7.1+rocm6.2.4 vllm=0.10.1", "as in AMD's last image for LUMI"),
    Case("rocm-6.4.4 vllm", "host torch=2.9.1+rocm6.4 vllm=0.12.0", "as LUMI AI Factory built it"),
    Case("rocm-7.0 vllm", "host torch=2.10.0+rocm7.0 vllm=0.22.1 warning=layers", "as in LUMI AI Factory's image of August"),
    Case("rocm-7.0 vllm==0.25.0", "refused layers -> rocm-7.0 vllm", "from 0.23 on it needs torch 2.11"),
    Case("rocm-6.3 vllm", "refused layers -> rocm-6.2.4 vllm", "nobody is known to have built it on 6.3"),
    Case("rocm-6.3 vllm==0.12.0", "refused layers -> rocm-6.4.2 vllm==0.12.0", "the same software on the nearest base, before other software here"),
    Case("debian-rocm vllm", "refused layers -> rocm-7.2.4 vllm", "the same"),
    Case("rocm-6.2.4 vllm==0.18.0", "refused layers -> rocm-6.2.4 vllm", "its wheels want ROCm 7.0 and Python 3.12"),
    Case("rocm-6.2.4 vllm pytorch==2.6.0", "refused layers -> rocm-6.2.4 vllm pytorch", "vLLM 0.10.1 is for torch 2.7.1"),
    Case("rocm-6.2.4 sglang", "refused layers -> rocm-6.2.4 vllm", "sgl-kernel is for gfx942 and gfx950"),
    Case("rocm-6.4.4 vllm==0.12.0 transformers==5.23.0 aws-ofi-nccl==1.21.1", "refused layers -> rocm-6.4.4 vllm==0.12.0 transformers aws-ofi-nccl==1.21.1", "the version at fault alone is left out"),
    Case("debian-rocm jax", "refused layers -> debian-rocm debian-rocm-libraries jax", "what JAX does not run without is put in"),
    Case("debian-13 sglang", "refused driver-window -> rocm-6.2.4 vllm", "another server, on another base: what is asked for works on none"),
    Case("rocm-6.3 vllm sglang", "refused layers -> rocm-6.2.4 vllm", "one of both, and where it works"),
    Case("rocm-sglang-0.5.5", "refused layers", "SGLang's images are for MI300 and MI350"),
    Case("rocm-6.4.4 vllm sglang", "refused layers -> rocm-6.4.4 vllm", "one server an image, and no layer twice"),
    Case("rocm-6.2.4 flash-attn", "bundled torch=2.7.1+rocm6.2.4", "FlashAttention 2.7.3, as AMD built it for LUMI"),
    Case("rocm-7.0 flash-attn", "host torch=2.10.0+rocm7.0 warning=torch", "LUMI AI Factory takes a later commit than 2.8.3 there"),
    Case("rocm-6.2.4 xformers", "refused layers -> rocm-6.3 xformers", "xformers is for torch 2.9 and 2.10"),
    Case("rocm-6.4.4 fabric-bundled", "bundled", "the fabric that is named is the one that is taken"),
    Case("rocm-6.4.4 vllm @alps", "refused driver-window", "Alps has NVIDIA GPUs"),
    # a base of which more is known only after reading it
    Case("rocm-vllm-0.10.1", "bundled torch=2.7.0 unknown=glibc-gate", "its tag does not tell the distribution"),
    Case("rocm-vllm-0.10.1 bitsandbytes", "bundled torch=2.7.0 unknown=glibc-gate unknown=layers", "nor which Python it has"),
    Case("rocm-vllm-0.8.5 apex %bundled", "bundled unknown=layers", "which torch it has is not known, and apex is for one"),
    # releases of 2026, and what they are made for
    Case("rocm-7.2.4 jax", "host jax=0.9.2 unknown=driver-window", "0.12.0 is made for ROCm 7.14, and 0.9.2 for this one"),
    Case("rocm-7.0 jax==0.13.0", "refused layers -> rocm-7.14.0 jax==0.13.0", "0.12.0 is made for ROCm 7.14: what is newer takes no older one"),
    Case("rocm-7.2.4 jax==0.12.0", "refused layers -> rocm-7.2.4 jax", "it is made for ROCm 7.14, or 10"),
    Case("debian-rocm debian-rocm-libraries jax==0.9.2 @generic", "refused layers -> debian-rocm debian-rocm-libraries jax", "the same, named"),
    Case("rocm-7.14.0 pytorch", "host torch=2.14.1+rocm7.14 unknown=driver-window warning=torch", "its ROCm is in AMD's Python packages, which a lock does not get"),
    Case("rocm-10.0.0 pytorch", "host torch=2.13.0+rocm10.0.0 unknown=driver-window warning=torch", "AMD's own index alone has one"),
    Case("rocm-7.2.4 vllm", "host torch=2.12.0+git6bbd260 vllm=0.30.0 unknown=driver-window", "ready wheels with their own torch"),
    Case("rocm-7.2.4 vllm pytorch==2.11.0", "host torch=2.11.0+rocm7.2 vllm=0.25.0 warning=layers unknown=driver-window", "its CMakeLists.txt names torch 2.11"),
    # for which GPU
    Case("rocm-6.4.4 apex @generic", "none torch=2.9.1+rocm6.4 unknown=layers", "any machine, any GPU"),
    Case("rocm-7.0 vllm @generic", "none torch=2.10.0+rocm7.0 vllm=0.22.1 warning=layers unknown=layers", "built from source, for a GPU that nobody named"),
]  # fmt: skip


@cache
def context_of(site: str) -> PlanContext:
    return PlanContext(open_catalogue(HOME), site=find_site(site, HOME))


@cache
def plan_of(asked: str) -> Plan:
    base, *words = asked.split()
    fabric: Any = next((word[1:] for word in words if word.startswith("%")), AUTO)
    site = next((word[1:] for word in words if word.startswith("@")), "lumi")
    add = tuple(word for word in words if word[0] not in "@%")
    return decide(Request(base, add, fabric=fabric), context_of(site))


def answer_of(plan: Plan) -> str:
    if plan.refused:
        rule = next(rule.id for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
        nearest = plan.nearest.asked if plan.nearest else None
        return f"refused {rule}" + (f" -> {' '.join((nearest.base, *nearest.add))}" if nearest else "")
    shown = [f"torch={plan.torch}"] if plan.torch else []
    chosen = plan.stack.layers if plan.stack else ()
    shown += [f"{c.layer.name}={c.version}" for c in chosen if c.layer.name in {"jax", "vllm", "transformers"}]
    for outcome in (RuleOutcome.WARNING, RuleOutcome.UNKNOWN):
        shown += [f"{outcome}={rule}" for rule in dict.fromkeys(r.id for r in plan.rules if r.outcome is outcome)]
    return " ".join((plan.fabric.value, *shown))


def test_a_request_is_decided_for_its_reason_and_each_rule_names_need_have_and_source() -> None:
    for case in CASES:
        plan = plan_of(case.asked)
        answer, expected = answer_of(plan).split(), case.answer.split()
        assert (answer[0], set(answer)) == (expected[0], set(expected)), f"{case.asked}: {case.why}"
        for rule in plan.rules:
            assert all((rule.need, rule.have, rule.because, rule.source)), (case.asked, rule)


def test_no_plan_is_free_of_doubts_while_a_version_that_a_layer_needs_is_not_known() -> None:
    clean = 0
    for layer, site in itertools.product(("apex", "bitsandbytes", "deepspeed", "jax", "vllm"), ("lumi", "generic")):
        request = Request("", (layer,), fabric="bundled" if site == "lumi" else AUTO)
        for plan in possible_bases(request, context_of(site)).bases:
            if plan.is_doubtful or plan.stack is None:
                continue
            clean += 1
            for chosen in plan.stack.layers:
                for need in (*chosen.layer.requires, *(chosen.release.requires if chosen.release else ())):
                    assert need.holds_for(plan.stack.version(need.component)), f"{plan.base.name} {layer}: {need}"
    assert clean


def refused_by(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["build", *words, "--site", "lumi", "--dry-run"]) == ExitCode.NO
    return capsys.readouterr().err


def test_an_argument_that_the_user_gives_is_judged_too(capsys: pytest.CaptureFixture[str]) -> None:
    old = ["--base", "rocm-6.2.4", "--arg", "fabric-bundled.LIBFABRIC_VERSION=1.15.2"]
    assert "cxi provider from 1.21 on" in refused_by(old, capsys)
    assert (
        main(["build", "--base", "rocm-7.0", "--site", "lumi", "--arg", "aws-ofi-nccl.VERSION=1.18.0", "--dry-run"])
        == 0
    )
    assert "aws-ofi-nccl 1.18.0" in capsys.readouterr().out
    no_such = ["--base", "rocm-6.4.4", "--fabric", "bundled", "--arg", "fabric-bundled.LIBFABRIC_VERSION=2.5.0"]
    assert "cxil_svc_get_netns" in refused_by(no_such, capsys)
    both = ["build", "--base", "rocm-6.4.4", "--add", "vllm==0.12.0", "--arg", "vllm.VERSION=0.10.1", "--dry-run"]
    assert main(both) == ExitCode.BAD_INPUT
    assert "name one of them" in capsys.readouterr().err


def test_what_is_known_of_a_layer_is_known_of_the_sources_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    unseen = "0" * 40
    bundled = ["--base", "rocm-6.4.4", "--fabric", "bundled"]
    for words, argument, expected in (
        (bundled, f"fabric-bundled.LIBCXI={unseen}", "the Slingshot release of the image's libcxi is not known"),
        (bundled, f"fabric-bundled.CXI_DRIVER={unseen}", "the Slingshot release of the image's libcxi is not known"),
        (bundled, "fabric-bundled.LIBCXI_PREFIX=/opt/x", ""),
        (["--base", "rocm-6.2.4", "--add", "apex"], f"apex.COMMIT={unseen}", "about this release with another COMMIT"),
        (
            ["--base", "rocm-6.2.4", "--add", "aws-ofi-rccl"],
            f"aws-ofi-rccl.COMMIT={unseen}",
            "the net API versions",
        ),
    ):
        explain = ["explain", *words, "--site", "lumi", "--verbose"]
        assert main(explain) == ExitCode.GOOD
        plain = unwrapped(capsys.readouterr().out)
        assert not expected or expected not in plain
        assert main([*explain, "--arg", argument]) == ExitCode.GOOD
        out = unwrapped(capsys.readouterr().out)
        assert expected in out
        assert not expected or out.startswith("no obstacle found, with doubts")
        if words is bundled:
            assert ("libcxi and driver are from the same release" in out) is not bool(expected)


VLLM = ["--base", "rocm-6.4.4", "--add", "vllm", "--fabric", "bundled"]


def test_code_for_other_gpus_is_refused_with_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*VLLM, "--arg", "vllm.ARCH=gfx942"]
    error = refused_by(words, capsys)
    assert "needs code for gfx90a, has vllm for gfx942" in error
    nearest = "lumiimg build --base rocm-6.4.4 --add vllm --fabric bundled --site lumi"
    assert f"the nearest that works, without --arg vllm.ARCH: {nearest}\n" in error
    assert main(["explain", *words, "--site", "lumi"]) == ExitCode.NO
    assert "the nearest that works, without --arg vllm.ARCH:" in capsys.readouterr().out
    assert main(["explain", *VLLM, "--arg", "vllm.ARCH=gfx942;gfx90a", "--site", "lumi"]) == ExitCode.GOOD
