"""An answer fits a terminal of 24 lines of 80 columns, most important first; one line names --verbose for the rest."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import site_names
from lumiimg.cli.main import main
from tests.shared import fabric_builder
from tests.shared.job_deaths import DEATHS, NETWORKS, died, job
from tests.shared.joblog import job_log
from tests.shared.programs import sampled
from tests.shared.remedies import COMMAND

Capture = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).parents[1] / "fixtures"
MORE = re.compile(r"\((\d+) more lines? with --verbose\)")
MAY_BE_WIDER = re.compile(
    r"""
      \s+>\ .*                                # evidence, as it was printed
    | \s+(do|or):\ \ .*                       # a remedy, to be copied
    | (next|[A-Za-z ,]+)[^:]*:\ \ \S.*           # a command to go on with, to be copied
    | \s+(export|lumiimg|apptainer|module)\ .*  # the same, below its title
    | \s*(\S+\s+)?\S+                         # one long word, behind its title
    """,
    re.VERBOSE,
)


def too_wide(text: str, columns: int = 80) -> list[str]:
    return [line for line in text.splitlines() if len(line) > columns and not MAY_BE_WIDER.fullmatch(line)]


def rows(text: str) -> int:
    """Return the number of lines of a text on a terminal of 80 columns."""
    return sum(-(-len(line) // 80) or 1 for line in text.splitlines())


def printed(argv: list[str], capsys: Capture) -> str:
    with contextlib.suppress(SystemExit):
        main(argv)
    captured = capsys.readouterr()
    assert too_wide(captured.out + captured.err) == [], argv
    return captured.out


def held_to_a_screen(words: list[str], capsys: Capture) -> str:
    """Return the output of a command; assert that it fits a screen with a line for the site and one for the prompt."""
    text = printed(words, capsys)
    if words[0] == "trial":
        shutil.rmtree("trial")
    whole = printed([*words, "--verbose"], capsys)
    assert rows(text) <= 22, text
    if found := MORE.search(text):
        assert text.rstrip().endswith(found[0])
        assert sum(map(bool, whole.splitlines())) == sum(map(bool, text.splitlines())) - 1 + int(found[1]), words
    else:  # an empty line may be left out for room
        assert [*filter(None, text.splitlines())] == [*filter(None, whole.splitlines())], words
    assert not MORE.search(whole)
    return text


@pytest.fixture
def place(clean_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with snapshots, and with images that fit the node or not (tests/shared/fabric_builder.py)."""
    del clean_home
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    fabric_builder.stand_ins(tmp_path)
    fabric_builder.rocm_image(tmp_path / "rocm", "7.2.0")
    command = "FROM rocm/pytorch:latest\nARG A=1\nRUN pip install vllm==0.10.1 "
    (tmp_path / "Dockerfile").write_text(f"{command}{'x' * 90}\n")
    return tmp_path


ANSWERS = (
    "check fits --level static --site lumi",
    "check bare --level static --site lumi",
    "check old --level static --host host.json --site lumi",
    "check rocm --level static --site lumi",
    "explain fits --host host.json",
    "explain old --host host.json",
    "explain bare",
    "explain rocm --site lumi",
    "explain fits old bare rocm --host host.json",
    "explain --base rocm-6.2.4 --add vllm --site lumi",
    "explain --add vllm --site lumi",
    "explain --add sglang==0.4.1 --site lumi",
    "explain --base rocm-6.2.4 --add sglang --site lumi",
    "explain --base rocm-7.2.1 --add pytorch --fabric bundled --site lumi",
    "drift host.json now.json --image fits old bare rocm --site lumi",
    "drift now.json host.json --image fits",
    "build --base rocm-6.4.4 --add vllm --fabric bundled --site lumi --dry-run",
    "adapt bare --site lumi --dry-run",
    "trial run trial fits --site lumi",
)
DOCUMENTS = (
    "bind old --host host.json",
    "ldd fits /usr/lib64/librccl-net.so",
    "ldd old --all --verbose",
    "module fits -o modules --host host.json --site lumi --force",
    "job fits --site lumi --nodes 2 -o job.sh -- python train.py",
    "host scan",
    "draft Dockerfile",
    "draft Dockerfile -o drafts/mine",
    "build --base debian-13 --add netprobe --definitions defs --force",
    "list",
    "cache ls",
    "cache verify",
    "log --signatures",
    "",
    "--help",
)


CLOSED = ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-")


def test_a_stream_that_is_closed_changes_no_answer_and_no_file(place: Path) -> None:
    def left(words: str, end: str) -> tuple[int, str, dict[str, bytes]]:
        command = f"{shlex.quote(sys.executable)} -m lumiimg {words} {end}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        files = {path.name: path.read_bytes() for path in [*place.glob("*"), *place.glob("defs/*")] if path.is_file()}
        return done.returncode, re.sub(r"free: .*", "", done.stdout), files  # others write to the disk meanwhile

    commands = [
        words
        for words in (*ANSWERS, *DOCUMENTS)
        if words and not words.startswith(("-", "host scan", "draft", "trial"))
    ]
    cases = sampled(itertools.product(commands, CLOSED), 1)
    for words, end in [("build --base debian-13 --add netprobe --definitions defs --force", "2>&-"), *cases]:
        code, out, files = left(words, "")
        assert left(words, end) == (code, "" if "1>&-" in end else out, files), (words, end)


@pytest.mark.usefixtures("place")
def test_answers_about_images_and_requests_fit_a_screen(capsys: Capture) -> None:
    for words in sampled(ANSWERS, 9):
        held_to_a_screen(words.split(), capsys)
    for words in DOCUMENTS:
        printed(words.split(), capsys)
    catalogue = open_catalogue(os.environ)
    names = [*catalogue.layer_names(), *catalogue.recipe_names(), *site_names(os.environ)]
    for name in sampled(names, 12):
        printed(["show", name], capsys)


def test_answers_about_every_log_fit_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    logs = sorted((*(FIXTURES / "nccl").glob("*.log"), *(FIXTURES / "bandwidth").glob("*.out")))
    assert len(logs) > 50
    for log in sampled(logs, 16):
        monkeypatch.chdir(log.parent)
        held_to_a_screen(["log", log.name], capsys)


def test_of_each_death_verdict_reason_and_one_command_come_first(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, network in sampled(product(DEATHS, NETWORKS), 30):
        Path("job.out").write_text("".join(f"{line}\n" for line in [*job(network, 0, 3, 9), *died(name, 3)]))
        shown = held_to_a_screen(["log", "job.out"], capsys).splitlines()
        assert shown[0].startswith(f"{DEATHS[name].id}: "), (name, network)
        why = next((number for number, row in enumerate(shown) if row.startswith(("why: ", "likely: "))), 0)
        assert any(row[2:].startswith("network: ") for row in shown), (name, network)
        main(["log", "job.out", "--json"])
        captured = capsys.readouterr()
        cause, advice = (json.loads(captured.out)[key] for key in ("causes", "advice"))
        remedies: list[str] = cause[0]["remedy"]
        step = next((remedy for remedy in remedies if remedy.endswith(advice["next"] or "?")), None)
        if step != remedies[0]:  # it has an image, or a script, that the log does not name
            assert any(row.strip() == f"do:  {remedies[0]}" for row in shown), (name, network)
        if step is None:
            assert advice["next"] is None
            continue
        (next_,) = [number for number, row in enumerate(shown) if re.match("next(, [^:]+)?:  ", row)]
        assert why < next_ <= 6, (name, network)
        command = shown[next_].partition(":  ")[2]
        assert COMMAND.match(command), (name, network)
        assert captured.err.count(advice["next"]) == 1, "the first cure is printed once"
        assert (advice["where"] or "") == step.removesuffix(advice["next"]).removesuffix(": "), (name, network)


def test_a_large_job_with_bad_nodes_has_room_and_names_them_first(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    Path("job.out").write_bytes(b"".join(job_log(512, 0, sick=frozenset({3, 17, 18, 19, 40}))))
    text = held_to_a_screen(["log", "job.out"], capsys)
    assert text.index("5 nodes: socket") < text.index("59 nodes: ofi-cxi")
    proof = [row for row in text.splitlines() if row.startswith("    > ")]
    assert "via NET/Socket" in proof[0], "of the lines that decide it that of a bad node comes first"


def test_on_other_terminals_more_or_less_is_shown_and_json_is_whole(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES / "nccl")
    monkeypatch.delenv("COLUMNS", raising=False)
    words = ["log", "rccl-2.16.5-rc38.log"]
    narrow = MORE.search(printed(words, capsys))
    assert narrow
    main([*words, "--json"])
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["causes"][0]["remedy"]) == 7
    assert MORE.search(captured.err)
    monkeypatch.setenv("COLUMNS", "60")
    main(words)
    assert too_wide(capsys.readouterr().out, 60) == []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("LINES", "60")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "dumb")
    main(words)
    wide = capsys.readouterr().out
    more = MORE.search(wide)
    assert more
    assert int(more[1]) < int(narrow[1])
    assert any(80 < len(line) <= 100 and not MAY_BE_WIDER.fullmatch(line) for line in wide.splitlines())
    assert too_wide(wide, 100) == [], "longer lines are hard to read"
