"""Which machine is meant where nobody names one, and what each command takes by itself; the card's own line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lumiimg
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped

CARD = ["--base", "rocm-6.2.4", "--add", "vllm"]
SIGNS = ("LUMIIMG_SITE", "SLURM_CLUSTER_NAME", "LUMI_STACK_NAME", "LMOD_SYSTEM_NAME", "CLUSTER_NAME")


@pytest.fixture(autouse=True)
def _nothing_names_a_machine(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del clean_home
    for name in SIGNS:
        monkeypatch.delenv(name, raising=False)


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    return code, unwrapped(out), unwrapped(err)


def test_the_cards_line_plans_the_plugin_and_the_fabric_for_lumi(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["build", *CARD, "--dry-run"], capsys)
    assert code == ExitCode.GOOD
    assert "would build rocm-6.2.4 + fabric-bundled + aws-ofi-nccl + pytorch + vllm for lumi, fabric bundled" in out
    assert err == "lumiimg: for lumi, because nothing here names another machine (--site NAME)"
    code, out, err = said(["explain", *CARD], capsys)
    assert (code, "fabric bundled, plugin aws-ofi-nccl" in out, "for lumi" in err) == (ExitCode.GOOD, True, True)


def test_the_option_comes_first_then_the_settings_the_machine_and_lumi(
    clean_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = clean_home / ".config/lumiimg/config.toml"
    config.parent.mkdir(parents=True)
    nothing = "because nothing here names another machine"
    for variables, settings, words, site, because in (
        ({}, "", [], "lumi", nothing),
        ({"SLURM_CLUSTER_NAME": "frontier"}, "", [], "frontier", "as SLURM_CLUSTER_NAME is frontier"),
        ({"LMOD_SYSTEM_NAME": "frontier"}, "", [], "frontier", "as LMOD_SYSTEM_NAME is frontier"),
        # signs of two machines are none
        ({"LMOD_SYSTEM_NAME": "frontier", "LUMI_STACK_NAME": "LUMI"}, "", [], "lumi", nothing),
        ({"SLURM_CLUSTER_NAME": "lumi"}, "frontier", [], "frontier", "config.toml says"),
        ({"LUMIIMG_SITE": "generic"}, "frontier", [], "generic", "as LUMIIMG_SITE says"),
        ({"LUMIIMG_SITE": "generic"}, "frontier", ["--site", "lumi"], "lumi", ""),
    ):
        config.write_text(f'site = "{settings}"\n' if settings else "")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code, out, err = said(["explain", "--base", "rocm-6.4.4", "--fabric", "auto", *words], capsys)
        assert (code, f"on {site}" in out) == (ExitCode.GOOD, True), because
        assert (because in err) if because else not err


def test_a_site_of_the_users_own_is_recognised_and_a_broken_one_hides_none(
    clean_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = clean_home / ".config/lumiimg/sites"
    folder.mkdir(parents=True)
    identity = '[identity]\nvariables = ["CENTRE=ours"]\nnodes = ["ours[0-9]*"]\nsource = "us"\n'
    (folder / "ours.toml").write_text(f'title = "Ours"\nsource = "us"\ndate = 2026-11-24\narch = "gfx90a"\n{identity}')
    (folder / "broken.toml").write_text("title = 1\n")
    monkeypatch.setenv("CENTRE", "ours")
    assert "lumiimg: for ours, as CENTRE is ours" in said(["explain", "--base", "rocm-6.4.4"], capsys)[2]


def test_what_is_there_is_judged_for_no_machine_that_nothing_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LUMI's driver must not make a no, or a yes, of an image on another machine."""
    image = fabric_builder.bundled(tmp_path / "image")
    (image / "opt/rocm/.info").mkdir(parents=True)
    (image / "opt/rocm/.info/version").write_text("5.7.0-1\n")
    words = ["check", str(image), "--level", "static"]
    code, out, err = said(words, capsys)
    assert (code, err, "image.driver" in out) == (ExitCode.GOOD, "", False)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "lumi")
    code, out, err = said(words, capsys)
    assert (code, "does not support it" in out) == (ExitCode.NO, True)
    assert err == "lumiimg: for lumi, as SLURM_CLUSTER_NAME is lumi (--site NAME)"
    # a snapshot is of another node than this
    node = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"), host="x1")
    assert "for lumi" not in said([*words, "--host", str(node)], capsys)[2]


def test_a_short_name_is_the_newest_of_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for short, base in (("rocm-7.2", "rocm-7.2.4"), ("rocm-6", "rocm-6.4.4"), ("rocm-7.0", "rocm-7.0")):
        main(["explain", "--base", short, "--json"])
        assert json.loads(capsys.readouterr().out)["base"] == base
    main(["explain", "--base", "rocm-6.4.4", "--add", "vllm=0.12.0", "--json"])  # one equals sign is two
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert ("vllm", "0.12.0") in [(layer["name"], layer["version"]) for layer in layers]


OF_A_MACHINE = r"lumiimg (?:adapt|bind|build|explain) [^`]*"


def test_every_command_that_is_proposed_is_for_the_machine_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the machine was named; a file of a site by a path that holds in another folder, or as it was written."""
    file = tmp_path / "ours.toml"
    file.write_text((Path(lumiimg.__file__).parent / "catalog/sites/frontier.toml").read_text())
    old, bare = fabric_builder.image(tmp_path / "old", glibc=37), fabric_builder.image(tmp_path / "bare", plugin=False)
    then = fabric_builder.snapshot(fabric_builder.host(tmp_path / "then", glibc=36))
    host = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"))
    monkeypatch.setenv("LUMIIMG_SITE", "frontier")
    for line in (
        ["explain", "--base", "rocm-7.0", "--add", "pytorch"],
        ["explain", "--base", "rocm-7.2.4", "--add", "vllm", "--fabric", "bundled"],
        ["explain", "--add", "lightning", "--offline"],
        ["check", str(old), "--level", "static", "--host", str(host)],
        ["check", str(bare), "--level", "static"],
        ["drift", str(then), str(host), "--image", str(old), "--site", "frontier"],
    ):
        for site, words in (("frontier", []), (str(file), ["--site", str(file)])):
            out = said([*line, *words], capsys)[1]
            proposed = re.findall(OF_A_MACHINE, out)
            assert proposed, out
            for one in proposed:
                assert (f"--site {site}" in one, "IMAGE" in one) == (True, False), one


def test_settings_that_name_a_site_that_is_not_there_are_named(
    clean_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean_home / ".config/lumiimg").mkdir(parents=True)
    (clean_home / ".config/lumiimg/config.toml").write_text('site = "nosuch"\n')
    code, _, err = said(["explain", "--base", "rocm-6.4.4"], capsys)
    assert (code, "config.toml: names a site 'nosuch', which does not exist; known: alps" in err) == (2, True)
