"""Odd requests, and files that must not be lost: each gets one clear answer, and nothing is replaced."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.resolve.request import Request, RequestOptions, options_of, request_of
from lumiimg.resolve.requirements import read_own
from tests.shared import fabric_builder
from tests.shared.layer_builder import LAYER, MakeLayer
from tests.shared.programs import sampled, unwrapped

Capture = pytest.CaptureFixture[str]
DRY = ["build", "--dry-run"]


@pytest.fixture(autouse=True)
def _clean(clean_home: Path) -> None:
    del clean_home


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return fabric_builder.image(tmp_path / "theirs", glibc=39)


def answer(words: list[str], capsys: Capture) -> tuple[int, str]:
    """Return the exit code and all output."""
    code = main(words)
    out, err = capsys.readouterr()
    return code, out + err


# bases and versions


def test_layers_alone_are_answered_with_the_bases_that_take_them(capsys: Capture) -> None:
    assert main(["explain", "--add", "vllm", "--site", "lumi", "--json"]) == ExitCode.GOOD
    out, err = capsys.readouterr()
    data = json.loads(out)
    bases = {entry["base"]: entry for entry in data["bases"]}
    assert data["schema"] == 1
    assert "vllm 0.10.1" in bases["rocm-6.2.4"]["answer"]
    assert "vllm 0.22.1" in bases["rocm-7.0"]["answer"]
    doubts = [entry["doubts"] for entry in data["bases"]]
    assert doubts == sorted(doubts), "those without doubts first"
    assert "rocm-6.3" not in bases
    assert data["newer"]["recipe"] == "lumi-vllm"
    assert "next, newer, vllm 0.18.0 on rocm-7.0:  lumiimg explain --recipe lumi-vllm" in err
    assert (
        "more about one:  lumiimg explain --base"
        in answer(["explain", "--add", "pytorch", "--site", "lumi"], capsys)[1]
    )
    code, report = answer(["explain", "--add", "sglang", "--site", "lumi"], capsys)
    assert (code, "no base in the catalogue works with sglang on lumi" in report) == (ExitCode.NO, True)
    both = ["--add", "vllm==0.18.0", "--add", "transformers==5.23.0"]  # which do not go together
    code, report = answer(["explain", *both, "--site", "lumi"], capsys)
    expected = "no base in the catalogue works with vllm==0.18.0 + transformers==5.23.0 on lumi"
    assert (code, expected in report) == (ExitCode.NO, True)
    assert re.search(rf"why not:  lumiimg explain --base \S+ {' '.join(both)} --site lumi\n", report)


def test_software_for_gpus_without_a_machine_is_warned_of(capsys: Capture) -> None:
    for words, warned in (
        (["--base", "rocm-6.2.4", "--add", "pytorch"], True),
        (["--base", "rocm-6.2.4", "--add", "pytorch", "--add", "aws-ofi-nccl"], False),
        (["--base", "rocm-6.2.4", "--add", "pytorch", "--site", "lumi"], False),
    ):
        code, report = answer([*DRY, *words], capsys)
        assert code == ExitCode.GOOD
        assert ("no machine is named: no net plugin is added" in unwrapped(report)) is warned
    code, report = answer(["explain", "--base", "rocm-6.4.4", "--add", "vllm"], capsys)
    assert code == ExitCode.GOOD
    assert report.startswith("no obstacle found among the layers")
    assert "driver and network were not checked" in report


def test_a_fabric_on_the_command_line_wins_over_that_of_a_recipe(tmp_path: Path, capsys: Capture) -> None:
    recipe = tmp_path / "mine.toml"
    text = 'summary = "Of the tests"\nbase = "rocm-6.4.4"\nadd = ["netprobe"]\nsite = "lumi"\n'
    recipe.write_text(f'{text}fabric = "bundled"\n')
    for words, fabric in (
        ([], "bundled"),
        (["--fabric", "auto"], "bundled"),
        (["--fabric", "host"], "host"),
        (["--fabric", "none"], "none"),
        (["--add", "fabric-host"], "host"),
        (["--add", "fabric-bundled"], "bundled"),
    ):
        assert main([*DRY, "--recipe", str(recipe), *words, "--json"]) == ExitCode.GOOD, words
        plan = json.loads(capsys.readouterr().out)["plan"]
        assert plan["fabric"] == fabric, words
        layers = {layer["name"] for layer in plan["layers"]}
        assert layers & {"fabric-host", "fabric-bundled"} == ({f"fabric-{fabric}"} - {"fabric-none"}), words
    for wrong in ('"bundles"', '""', "true", '["host"]'):
        recipe.write_text(f"{text}fabric = {wrong}\n")
        code, report = answer([*DRY, "--recipe", str(recipe)], capsys)
        assert (code, "fabric" in report) == (ExitCode.BAD_INPUT, True), wrong
        assert f"{recipe}: " in unwrapped(report), wrong


def test_a_version_of_a_layer_without_releases_is_an_argument_or_refused(capsys: Capture) -> None:
    words = [*DRY, "--base", "rocm-6.4.4", "--json", "--add"]
    assert main([*words, "mpi4py==4.0.3"]) == ExitCode.GOOD
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert next(e for e in plan["layers"] if e["name"] == "mpi4py")["arguments"]["VERSION"] == "4.0.3"
    code, report = answer([*words, "netprobe==9"], capsys)
    assert (code, "only one version: leave the version out" in report) == (ExitCode.NO, True)


def test_what_contradicts_itself_is_one_line(image: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    of_rocm = ["--base", "rocm-6.4.4"]
    for words, fault in (
        (["--base", "debian-13", "--add", "debian-13"], "is not a layer"),
        (["--base", "debian-13", "--fabric", "host"], "--fabric host: no machine is named"),
        ([*of_rocm, "--fabric", "bundled", "--site", "generic"], "no machine is named"),
        ([*of_rocm, "--site", "lumi", "--add", "fabric-host", "--fabric", "bundled"], "name one of them"),
        ([*of_rocm, "--add", "vllm==" + "9" * 5000], "is not a layer"),
        ([*of_rocm, "--add", "vllm,deepspeed"], "one --add for each layer"),
        ([*of_rocm, "--site", "LUMI"], "did you mean lumi?"),
        (["--base", str(tmp_path / "empty")], "holds no root file system"),
        (["--base", "/etc/passwd"], "/etc/passwd: "),
        (["--base", "rocm-6.2.5"], "did you mean rocm-6.2.4"),
        (["--base", "docker://host.org/../a"], "is not a valid image reference"),
        (["--base", f"docker://me:hunter2@host.org/a@sha256:{'a' * 64}"], "an address with a password"),
        (["--base", "rocm-6.2.4", "--add", "vllm=x"], "is not a layer"),
        (["--base", "vllm"], "write --add vllm"),
        (["--base", "rocm-6.2.4", "--host", "h.json"], "h.json"),
    ):
        for command in (["explain"], DRY):
            code, report = answer([*command, *words], capsys)
            assert (code, report.count("\n"), fault in report) == (ExitCode.BAD_INPUT, 1, True), report
            assert (len(report) < 4000, "hunter2" in report) == (True, False), report
    for words, fault in (
        ([], "no image and no request is named"),
        ([str(image), "--base", "rocm-6.4.4"], "an image and a request cannot"),
    ):
        code, report = answer(["explain", *words], capsys)
        assert (code, fault in report) == (ExitCode.BAD_INPUT, True)
    for words in (["--mirror", "a=b"], ["--fabric", "host"], ["--layers", "."]):
        code, report = answer(["explain", str(image), *words], capsys)
        assert (code, "has no effect on a finished image" in report) == (ExitCode.BAD_INPUT, True)
    # an unknown network is no reason to call an image whole
    (tmp_path / "plain/etc").mkdir(parents=True)
    for site in ("aurora", "alps", "generic"):
        code, report = answer(["adapt", str(tmp_path / "plain"), "--site", site], capsys)
        assert (code, "does not know" in unwrapped(report)) == (ExitCode.UNDECIDED, True)


# files of the user's that are odd


def test_one_odd_file_of_the_user_does_not_stop_the_list(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    user = Path.home() / ".config" / "lumiimg"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(user.parent))
    for folder, name in (("sites", "my_cluster"), ("sites", "hole"), ("recipes", "My_Demo"), ("layers/big", "layer")):
        (user / folder).mkdir(parents=True, exist_ok=True)
        (user / folder / f"{name}.toml").write_text(f"title = {'9' * 5000}\n")
    (user / "sites" / "hole.toml").unlink()
    (user / "sites" / "hole.toml").symlink_to("nowhere")
    code, report = answer(["list"], capsys)
    assert code == ExitCode.GOOD
    broken = report.partition("\nbroken\n")[2]
    assert all(name in broken for name in ("my_cluster", "hole", "My_Demo", "big"))
    assert "rocm-6.4.4" in report
    assert "a number of more than 1000 characters" in re.sub(r"\s+", " ", broken)


# what must not be lost or written


@pytest.mark.threat
def test_a_lock_is_of_the_layers_that_one_has(
    tmp_path: Path, image: Path, layers: Path, make_layer: MakeLayer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.tar").write_text("an archive")
    fields = 'files = ["tool.c"]\n[sources.src]\noptional = true\nfile = "t.tar"\nsource = "the tests"\n'
    folder = make_layer("b", LAYER + fields, tool_c="int x;\n", test_sh="true\n")
    words = ["--base", str(image), "--add", "b", "--layers", str(layers), "--source", "src=mine.tar"]
    assert answer(["lock", *words], capsys)[0] == ExitCode.GOOD
    locked = ["build", "--locked", "--trust-lock", "--dry-run", "--layers", str(layers)]
    for file in ("layer.toml", "post.sh", "test.sh", "tool.c"):
        before = (folder / file).read_text()
        (folder / file).write_text(f"{before}# another\n")
        code, report = answer(locked, capsys)
        assert (code, "the layer b is not the one that was locked" in report) == (ExitCode.NO, True), report
        (folder / file).write_text(before)
    assert answer(locked, capsys)[0] == ExitCode.GOOD


def test_a_lock_reports_a_changed_base_and_is_read_from_any_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fabric_builder.image(tmp_path / "box", glibc=39)
    (tmp_path / "mine.toml").write_text('title = "mine"\nsource = "the tests"\ndate = 2026-11-21\n')
    words = ["lock", "--base", "./box", "--add", "netprobe", "--site", "./mine.toml", "-o", "a.lock"]
    assert main(words) == ExitCode.GOOD
    (tmp_path / "box" / "etc" / "os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copy("../a.lock", "../b.lock")
    code, report = answer(["lock", "--upgrade", "all", "-o", "../b.lock"], capsys)
    assert (code, "os of the base: " in report) == (ExitCode.GOOD, True), report
    words = ["build", "--locked", "--trust-lock", "--lock", "../b.lock", "--site", "../mine.toml", "--dry-run"]
    assert answer(words, capsys)[0] == ExitCode.GOOD


def test_of_two_values_none_is_taken_in_silence(image: Path, capsys: Capture) -> None:
    request = ["--base", "rocm-6.4.4", "--add", "vllm", "--site", "lumi"]
    for option, one, other, named in (
        ("--arg", "vllm.ARCH=gfx90a", "vllm.ARCH=gfx942", "--arg vllm.ARCH"),
        ("--source", "aws-ofi-nccl=a.tar.gz", "aws-ofi-nccl=b.tar.gz", "--source aws-ofi-nccl"),
        ("--mirror", "debian=https://a.test", "debian=https://b.test", "--mirror debian"),
    ):
        for words in (["explain", *request], ["adapt", str(image), *request[2:]]):
            code, report = answer([*words, option, one, option, other], capsys)
            assert (code, f"{named} is given twice, with two values" in report) == (ExitCode.BAD_INPUT, True), words


def test_a_recipe_is_changed_by_options_next_to_it_and_the_options_stay_as_they_were(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    text = 'summary = "s"\nbase = "rocm-6.2.4"\nadd = ["netprobe", "vllm==0.9.0"]\nfabric = "host"\n'
    for site, chosen in (('site = "lumi"\n', "lumi"), ("", "frontier")):
        recipe.write_text(text + site)
        for add, expected, fabric in (
            ([], ("netprobe", "vllm==0.9.0"), "host"),
            (["vllm=0.10.1"], ("netprobe", "vllm==0.10.1"), "host"),
            (["jax", "vllm==0.9.0"], ("netprobe", "vllm==0.9.0", "jax"), "host"),
            (["fabric-bundled"], ("netprobe", "vllm==0.9.0", "fabric-bundled"), "auto"),
        ):
            options = RequestOptions(recipe=str(recipe), add=add)
            asked = request_of(options, open_catalogue({}), lambda: "frontier", ())
            assert (asked.base, asked.add, asked.fabric, asked.site) == ("rocm-6.2.4", expected, fabric, chosen)
            assert options == RequestOptions(recipe=str(recipe), add=add)


def test_a_request_is_read_back_from_the_options_that_it_is_written_as(tmp_path: Path) -> None:
    """A proposed command is planned from its arguments, like a typed one."""
    (tmp_path / "a b.txt").write_text("einops==0.8.1\n")
    own = read_own([str(tmp_path / "a b.txt")], ["pip:rich>=14"], replaced=["numpy==2.1.0"])
    values: dict[str, tuple[object, object]] = {
        "base": ("rocm-6.4.4", "./it's an image.sif"),
        "add": ((), ("aws-ofi-nccl", "vllm==0.12.0")),
        "own": ((), own),
        "arguments": ({}, {"aws-ofi-nccl.PREFIX": "/opt/$x"}),
        "sources": ({}, {"host-libfabric": "a.tar"}),
        "mirrors": ((), ("docker.io=mirror.test",)),
        "layers": ((), (Path("mine"), Path("yours"))),
        "fabric": ("auto", "bundled"),
        "site": ("generic", "lumi"),
        "host": ("", "host.json"),
    }
    for chosen in sampled(list(itertools.product(*values.values())), 200):
        request = Request(**dict(zip(values, chosen, strict=True)))  # type: ignore[arg-type]
        request = structs.replace(request, own_files=(str(tmp_path / "a b.txt"),) if request.own else ())
        options = RequestOptions.from_words(shlex.split(options_of(request)))
        assert request_of(options, open_catalogue({}), lambda: None, ()) == request
    assert RequestOptions.from_words(["-r", "a.txt", "-o", "x.sif"]) == RequestOptions(requirements=("a.txt",))
