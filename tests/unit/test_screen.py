"""An answer has room on a screen of 24 lines of 80 columns; --verbose has the rest, and one line says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lumiimg.cli.main import main
from lumiimg.report.console import Priority, _fitting, _Text
from tests.shared import fabric_builder
from tests.shared.job_deaths import DEATHS, died, job
from tests.shared.joblog import job_log

Capture = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).parents[1] / "fixtures"
MORE = re.compile(r"\((\d+) more lines? with --verbose\)")


def rows(text: str) -> int:
    """Return how many lines of a terminal of 80 columns a text takes."""
    return sum(-(-len(line) // 80) or 1 for line in text.splitlines())


def held_to_a_screen(words: list[str], capsys: Capture) -> str:
    """Return what a command prints, which must have room on a screen with a line for the prompt."""
    main(words)
    text = capsys.readouterr().out
    assert rows(text) <= 23, text
    main([*words, "--verbose"])
    whole = capsys.readouterr().out
    if found := MORE.search(text):
        assert text.rstrip().endswith(found[0])
        assert rows(whole) > 23
        assert len(whole.splitlines()) > len(text.splitlines())
    assert not MORE.search(whole)
    return text


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_what_is_said_of_every_log_has_room_on_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    logs = sorted((*(FIXTURES / "nccl").glob("*.log"), *(FIXTURES / "bandwidth").glob("*.out")))
    for log in logs:
        monkeypatch.chdir(log.parent)
        held_to_a_screen(["log", log.name], capsys)


@pytest.mark.parametrize("network", ["cxi", "tcp", "none"])
def test_what_is_said_of_every_death_has_room_on_a_screen(
    network: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in DEATHS:
        Path("job.out").write_text("".join(f"{line}\n" for line in [*job(network, 0, 3, 9), *died(name, 3)]))
        text = held_to_a_screen(["log", "job.out"], capsys)
        assert "\nwhy: " in text
        assert "\nnext" in text


def test_a_large_job_with_bad_nodes_has_room_and_names_them_first(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.out").write_bytes(b"".join(job_log(512, 1 << 20, sick=frozenset({3, 17, 18, 19, 40}))))
    text = held_to_a_screen(["log", "job.out"], capsys)
    assert text.index("5 nodes  socket") < text.index("59 nodes  ofi-cxi")


@pytest.mark.parametrize(
    "words",
    [
        "check fits --level static --site lumi",
        "check bare --level static --site lumi",
        "check old --level static --host host.json --site lumi",
        "check rocm --level static --site lumi",
        "explain fits --host host.json",
        "explain old --host host.json",
        "explain bare",
        "explain fits",
        "explain rocm --site lumi",
        "explain fits old bare rocm --host host.json",
        "explain --base rocm-6.2.4 --add vllm --site lumi",
        "explain --add vllm --site lumi",
        "explain --add sglang==0.4.1 --site lumi",
        "explain --base rocm-6.2.4 --add sglang --site lumi",
        "explain --base rocm-7.2.1 --add pytorch --fabric bundled --site lumi",
        "drift host.json now.json --image fits old bare rocm --site lumi",
        "drift now.json host.json",
        "build --base rocm-6.4.4 --add vllm --fabric bundled --site lumi --dry-run",
        "adapt bare --site lumi --dry-run",
    ],
)
@pytest.mark.usefixtures("clean_home")
def test_what_is_said_of_images_and_requests_has_room_on_a_screen(
    words: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, glibc in (("host", 38), ("now", 41)):
        host = fabric_builder.host(tmp_path / f"{name}-root", glibc=glibc, needs_glibc=glibc)
        fabric_builder.snapshot(host, name=name).rename(tmp_path / f"{name}.json")
    fabric_builder.image(tmp_path / "fits")
    fabric_builder.image(tmp_path / "old", glibc=28)
    fabric_builder.image(tmp_path / "bare", plugin=False)
    fabric_builder.rocm_image(tmp_path / "rocm", "7.2.0")
    held_to_a_screen(words.split(), capsys)


def test_on_a_higher_terminal_more_is_shown(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "nccl")
    log = "rccl-2.16.5-rc38.log"
    main(["log", log])
    small = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("LINES", "60")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    main(["log", log])
    high = capsys.readouterr().out
    assert MORE.search(small)
    assert not MORE.search(high)


def test_json_is_whole(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "nccl")
    main(["log", "rccl-2.16.5-rc38.log", "--json"])
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["causes"][0]["remedy"]) == 7
    assert MORE.search(captured.err)


TEXTS = st.lists(
    st.builds(
        lambda text, priority, rows: _Text(text, None, priority, rows if text else 1),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(Priority),
        st.integers(1, 4),
    ),
    max_size=60,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(held=TEXTS, room=st.integers(2, 30))
def test_what_counts_most_is_left_out_last(held: list[_Text], room: int) -> None:
    shown, left = _fitting(held, room)
    always = [one for one in held if one.text and one.priority is Priority.ALWAYS]
    assert [one for one in shown if one.priority is Priority.ALWAYS and one.text] == always
    total = sum(one.rows for one in held if one.text)
    assert left == total - sum(one.rows for one in shown if one.text)
    gone = {
        p: sum(o.priority is p for o in held if o.text) - sum(o.priority is p for o in shown if o.text)
        for p in Priority
    }
    if left:
        assert sum(one.rows for one in shown) < room or not any(one.priority for one in shown if one.text)
        worst = min(priority for priority, number in gone.items() if number)
        assert not [one for one in shown if one.text and one.priority > worst]
