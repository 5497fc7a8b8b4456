"""`lumiimg check` and `explain` of several images: equal answers are grouped, worst first; a line of JSON per image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lumiimg.cli.commands import parser_for
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.programs import unwrapped
from tests.shared.validation import validated


@pytest.fixture
def images(tmp_path: Path, clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images: 13 that need the host's libfabric, two without a plugin, two files that are not images."""
    del clean_home
    folder = tmp_path / "images"
    folder.mkdir()
    monkeypatch.chdir(folder)
    fabric_builder.image(tmp_path / "needs-host")
    for number in range(13):
        shutil.copytree(tmp_path / "needs-host", folder / f"needs-host-{number}", symlinks=True)
    fabric_builder.image(folder / "no plugin", plugin=False)
    shutil.copytree(folder / "no plugin", folder / "-no-plugin", symlinks=True)
    (folder / "a.txt").write_text("text")
    (folder / "z.sif").write_bytes(b"SIF_MAGIC")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run(capsys, "check", "--level", "static", *words)


def test_many_images_are_one_screen_with_the_worst_first(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in images.iterdir())
    code, out, _ = check(capsys, "--site", "lumi", "--", *names)
    assert code == ExitCode.NO
    lines = out.splitlines()
    assert lines[0] == "NO for 2 images, 2 cannot be read, CANNOT TELL for 13 (of 17)"
    assert len(lines) <= 24
    assert max(len(line) for line in lines if not line.lstrip().startswith(("do:", "next"))) <= 80
    assert out.index("2 images: NO") < out.index("neither a SIF") < out.index("13 images")
    assert "no net plugin" in unwrapped(out)
    assert "-no-plugin, no plugin" in out


def test_one_that_is_not_an_image_does_not_keep_the_others_from_it(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del images
    code, out, err = check(capsys, "--json", "a.txt", "no plugin", "nowhere", "needs-host-1")
    assert code == ExitCode.NO
    lines = out.splitlines()
    for line in lines:
        validated(line, "check")
    assert [json.loads(line)["image"] for line in lines] == ["no plugin", "needs-host-1"]
    assert "2 cannot be read" in err
    assert "the images there:" in " ".join(err.split()), "as where it is the only one"
    assert check(capsys, "a.txt", "needs-host-1")[0] == ExitCode.BAD_INPUT
    assert check(capsys, "needs-host-2", "needs-host-1")[0] == ExitCode.UNDECIDED
    assert check(capsys, "needs-host-2", "a.txt", "--quiet")[1].count("\n") == 1


def test_many_images_are_explained_on_one_screen_with_the_worst_first(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = str(fabric_builder.snapshot(fabric_builder.host(tmp_path / "node", glibc=38)))
    fabric_builder.image(images / "old", glibc=34)
    names = sorted(path.name for path in images.iterdir() if path.suffix != ".stub")
    code, out, _ = run(capsys, "explain", "--host", node, "--", *names)
    assert code == ExitCode.NO
    lines = out.splitlines()
    assert lines[0] == "NO for 3 images, 2 cannot be read, no obstacle found for 13 (of 18)"
    assert len(lines) <= 24
    loop = next(line for line in out.splitlines() if "lumiimg adapt" in line).partition("for image in ")[2]
    done = subprocess.run(
        ["bash", "-c", f"lumiimg() {{ printf '<%s>' \"$@\"; echo; }}; for image in {loop}"],
        capture_output=True,
        text=True,
        check=True,
    )
    adapted = "<adapt><./{0}><--host><{1}><-o><./{0}-with-plugin.sif>"
    assert [line.replace("<--site><generic>", "") for line in done.stdout.splitlines()] == [
        adapted.format(name, node) for name in ("-no-plugin", "no plugin")
    ]
    assert (
        out.index("1 image: NO: neither the image nor the host has libraries")
        < out.index("neither a SIF")
        < out.index("13 images: no obstacle")
    )
    assert run(capsys, "explain", "needs-host-0", "--host", node, "needs-host-1")[0] == ExitCode.GOOD
    code, out, err = run(capsys, "explain", "needs-host-0", "old", "a.txt", "--json", "--host", node)
    assert (code, "1 cannot be read" in err) == (ExitCode.NO, True)
    output_lines = [validated(line, "explain-image") for line in out.splitlines()]
    assert [(one["image"], one["decision"]) for one in output_lines] == [("needs-host-0", "ok"), ("old", "refused")]


def test_images_of_one_fate_and_two_cures_have_both_and_no_loop_writes_a_file_twice(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        fabric_builder.image(images / name / "same", plugin=False)
    old = fabric_builder.image(images / "old", plugin=False)
    (old / "opt/rocm/.info").mkdir()
    (old / "opt/rocm/.info/version").write_text("5.7.1-1\n")
    _, out, _ = check(capsys, "a/same", "no plugin", "old", "--site", "lumi")
    assert "for image in a/same './no plugin'; do lumiimg adapt " in out
    assert re.search(r"for old:? +lumiimg build --base rocm-\S+ --add aws-ofi-nccl --site lumi -o ", out), out
    (images / "with-plugin.sif").touch()
    assert "-o with-plugin-2.sif" in check(capsys, "a/same", "--site", "lumi")[1]


def test_a_loop_over_images_gives_each_turn_a_file_of_its_own_that_the_command_takes_as_it_is(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a/same", "b/same", str(images / "c d/same"), "-no-plugin", "no plugin", "$x's"]
    for name in (*names[:3], names[-1]):
        fabric_builder.image(images / name, plugin=False)
    for some in (names[:2], names[:3], names[3:], names):
        out = check(capsys, "--site", "lumi", "--", *some)[1]
        loop = next(line.removeprefix("next:  ") for line in out.splitlines() if line.startswith("next:"))
        script = f"lumiimg() {{ printf '%s\\0' \"$@\" $'\\n'; }}; {loop}"
        output = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        turns = [turn.strip("\0").split("\0") for turn in output.split("\n\0") if turn]
        asked = [parser_for(words).parse_args(words) for words in turns]
        assert [(images / one.base).resolve() for one in asked] == [(images / name).resolve() for name in some]
        written = {(images / one.output).resolve() for one in asked}
        assert len(written) == len(some)
        assert not any(file.exists() or not file.parent.is_dir() for file in written)
        next(iter(written)).touch()
        assert "next, for the first of " in check(capsys, "--site", "lumi", "--", *some)[1]
        next(iter(written)).unlink()


@pytest.mark.parametrize("command", ["check --level static", "explain"])
def test_the_page_of_several_images_names_each_with_its_fate(
    command: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command.split(), "needs-host-0", "no plugin", "a.txt", "needs-host-1", "--html", "page.html"])
    page = (images / "page.html").read_text()
    assert capsys.readouterr().out.splitlines()[0] in page
    first, second = (page.index(f">{name}</span>") for name in ("needs-host-0,", "needs-host-1"))
    assert page.index("no plugin<") < page.index("a.txt<") < first < second


def test_an_image_without_rccl_is_not_a_no_among_others(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("plain", "other"):
        (images / name / "usr/bin").mkdir(parents=True)
    code, out, _ = check(capsys, "plain", "needs-host-1", "other")
    assert (code, out.splitlines()[0]) == (ExitCode.UNDECIDED, "CANNOT TELL for 1 image, no RCCL in 2 (of 3)")
    assert check(capsys, "plain")[0] == ExitCode.NO
    assert check(capsys, "plain", "other")[0] == ExitCode.NO
