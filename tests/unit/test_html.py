"""`--html`: one file that fetches and runs nothing, shows foreign text as text, and agrees with the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lumiimg.check.run.log_answer import LogAnswer
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.joblog import read_lines
from lumiimg.report.markup import shown
from lumiimg.report.page import to_page
from lumiimg.report.views.log import log_document
from tests.shared import fabric_builder, pages
from tests.shared.html_page import HOSTILE, Page, judge

LOGS = Path(__file__).parents[1] / "fixtures" / "bandwidth"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    folder, work = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("work")
    return {page.stem: judge(page.read_text()) for page in pages.pages(folder, work)}


def test_every_page_is_whole_fetches_nothing_and_can_be_read_without_seeing_it(written: dict[str, Page]) -> None:
    assert len(written) == 17


VERDICTS = (
    ("check-no", "✗ NO: from its files alone, RCCL would use TCP sockets"),
    ("check-cannot-tell", "? CANNOT TELL from here"),
    ("check-green", "✓ no obstacle found at level probe"),
    ("explain-refused", "✗ NO: neither the image nor the host has libraries by which RCCL could reach Slingshot"),
    ("request-refused", "✗ refused: --base rocm-6.2.4 --add sglang on lumi"),
    ("log-mixed", "✗ mixed: ranks used different networks"),
    ("nodes", "✗ NO on 2 of 64 nodes"),
    ("build", "✓ built in 24 min 43 s"),
)


def test_the_verdict_is_one_sentence_with_its_mark(written: dict[str, Page]) -> None:
    for name, sentence in VERDICTS:
        assert sentence in written[name].words, name


def test_the_same_in_words_stands_beside_each_picture(written: dict[str, Page]) -> None:
    words = written["explain-margins"].words
    for part in (
        "✓ libfabric hostholds (static)FABRIC_1.7/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1",
        "libcxi.so.1 (host) needs GLIBC_2.38 of libc.so.6 (image), which has up to GLIBC_2.41; 3 versions left",
    ):
        assert part in words
    assert "✗ problem: 2 nodes nid[005012-005013]: NO: here the plugin would carry the" in written["nodes"].words
    assert "03-vllm took 21 min 51 s, cpu 156 min 52 s" in written["build"].words
    assert "01-rocm-6.4.4 reused from an earlier build, 4.0 GiB" in written["build"].words


# -- foreign text --


@pytest.mark.threat
def test_a_hostile_log_is_reported_as_it_is(tmp_path: Path) -> None:
    node = "<script>alert(1)</script>"
    lines = [
        f"{text} n1:7:7 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : {text}: cannot open shared object file : when loading {text}"
        for text in HOSTILE
    ]
    lines += [f"n{n}:7:7 [0] NCCL INFO NCCL_NET_PLUGIN set by environment to {text}" for n, text in enumerate(HOSTILE)]
    lines += [f"{node}:7:7 [0] NCCL INFO Using network Socket", "n1:7:7 [0] NCCL INFO Using network <b>"]
    log = tmp_path / "<img src=x onerror=alert(1)>.log"
    log.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    page = tmp_path / "page.html"
    main(["log", str(log), "--html", str(page)])
    assert "<img src=x onerror=alert(1)>.log" in judge(page.read_text()).words


# -- what is on it --


def facts_of(data: dict[str, Any]) -> Iterator[str]:
    for finding in data["findings"]:
        yield from (finding["summary"], *finding["evidence"], *finding["remedy"])
        yield from (finding[name] for name in ("cause", "source", "where") if finding[name])


def test_the_page_says_what_the_json_says(tmp_path: Path, capsys: Capture) -> None:
    image, node = (
        fabric_builder.image(tmp_path / "image"),
        fabric_builder.snapshot(fabric_builder.host(tmp_path / "node", glibc=38)),
    )
    page = tmp_path / "page.html"
    words = ["check", str(image), "--level", "static", "--host", str(node), "--json", "--html", str(page)]
    code = main(words)
    data = json.loads(capsys.readouterr().out)
    shown_words = judge(page.read_text()).words
    assert code == ExitCode.GOOD
    assert data["sentence"] in shown_words
    for fact in facts_of(data):
        assert shown(fact) in shown_words


def test_a_log_of_thousands_of_nodes_makes_a_small_page_that_names_them_all() -> None:
    def line(node: int) -> str:
        return f"nid{node:06}:7:7 [0] NCCL INFO Using network {'Socket' if node % 7 == 0 else 'AWS Libfabric'}"

    report = read_lines("a.log", [line(node) for node in range(3010)])
    text = to_page(log_document(["a.log"], LogAnswer(report)))
    words = judge(text).words
    assert len(text) < 500_000
    assert {group.names in words for group in report.nodes} == {True}
    assert "430 nodes: socket, Socket" in words


def test_what_was_measured_is_drawn_beside_the_figure_of_the_site(tmp_path: Path) -> None:
    page, log = tmp_path / "page.html", LOGS / "rccl-tests-all-reduce.out"
    main(["log", str(log), "--site", "lumi", "--html", str(page)])
    read = judge(page.read_text())
    assert "all_reduce_perf" in read.words
    assert "8 MiB87.43" in read.words
    assert any(svg.get("role") == "img" for svg in read.attributes("svg"))


# -- writing it --


def test_two_results_are_never_one_file(tmp_path: Path, capsys: Capture) -> None:
    log, place = tmp_path / "a.log", tmp_path / "b"
    log.write_text("nothing\n")
    for other in (place, tmp_path / "." / "x" / ".." / "b"):
        assert main(["log", str(log), "--html", str(place), "--junit", str(other)]) == ExitCode.BAD_INPUT
        assert "--html and --junit must name two" in capsys.readouterr().err
    assert not place.exists()


@pytest.mark.parametrize("option", ["--html", "--junit"])
def test_a_result_is_never_written_over_what_is_read_or_where_there_is_no_folder(
    tmp_path: Path, capsys: Capture, option: str
) -> None:
    log = tmp_path / "a.log"
    log.write_text("nothing\n")
    for place, words in (
        (log, "is an input of the command"),
        (tmp_path / "no" / "page", "no such folder"),
        (tmp_path, "is a folder"),
        ("-", f"{option} -: standard output is not a file"),
    ):
        assert main(["log", str(log), option, str(place)]) == ExitCode.BAD_INPUT
        assert words in capsys.readouterr().err
    assert log.read_text() == "nothing\n"


def test_the_bases_that_take_a_layer_have_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "--add", "vllm", "--site", "lumi", "--html", str(page)]) == 0
    assert "rocm-6.2.4" in judge(page.read_text()).words


# -- JUnit --


def test_junit_of_a_check_fails_where_the_answer_is_no(tmp_path: Path) -> None:
    image = fabric_builder.image(tmp_path / "image", plugin=False)
    place = tmp_path / "check.xml"
    assert main(["check", str(image), "--level", "static", "--junit", str(place)]) == 1
    read = ET.parse(place).getroot()  # noqa: S314 - of our own
    assert read.get("failures") == "2"  # the answer, and the finding that made it
    assert read.get("errors") == "0"
    text = read.findtext("testcase[@name='plugin.absent (static)']/failure") or ""
    assert "lumiimg build --base " in text
