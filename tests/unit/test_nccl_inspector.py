"""What RCCL's Inspector wrote of a real job: the bandwidth of its own collectives, beside the site's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.nccl.reader import LogReader

Capture = pytest.CaptureFixture[str]


def record(bandwidth: object, size: object = 128 << 20, coll: object = "AllReduce", **header: object) -> str:
    """Return a line as inspector_json.cc writes it (format v4.0)."""
    of: dict[str, object] = {
        "id": "0x7f8c496ae9f661",
        "comm_name": "unknown",
        "rank": 2,
        "n_ranks": 16,
        "nnodes": 2,
        **header,
    }
    metadata: dict[str, object] = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
    }
    metadata |= {"dump_timestamp_us": 1748030377748202, "hostname": "nid005101", "pid": 1639453}
    perf: dict[str, object] = {"coll": coll, "coll_sn": 1407, "coll_msg_size_bytes": size, "coll_exec_time_us": 61974}
    perf |= {"coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 27.7, "coll_busbw_gbs": bandwidth}
    return json.dumps({"header": of, "metadata": metadata, "coll_perf": perf}, separators=(",", ":"))


def ask(tmp_path: Path, capsys: Capture, *lines: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "nid005101-pid1639453.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    code = main(["log", str(file), "--site", "lumi", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_each_kind_of_collective_has_its_bandwidth(tmp_path: Path, capsys: Capture) -> None:
    lines = [
        record(70.5),
        record(81.5),
        record(0.2, 4096),
        record(40.0, coll="AllGather"),
        record(9.0, nnodes=1, n_ranks=8),
    ]
    _, answer = ask(tmp_path, capsys, *lines)
    seen = [(m["name"], m["ranks"], m["nodes"], m["best_gb_s"], m["average_gb_s"]) for m in answer["measurements"]]
    assert seen == [
        ("the job's own AllGather", 16, 2, 40.0, 40.0),
        ("the job's own AllReduce", 8, 1, 9.0, 9.0),
        ("the job's own AllReduce", 16, 2, 81.5, 76.0),
    ]


@pytest.mark.parametrize(("bandwidth", "severity"), [(84.0, "ok"), (20.0, "info")])
def test_it_is_held_against_the_site_and_a_busy_job_is_no_slow_network(
    bandwidth: float, severity: str, tmp_path: Path, capsys: Capture
) -> None:
    code, answer = ask(tmp_path, capsys, record(bandwidth))
    (finding,) = answer["findings"]
    assert (code, finding["severity"]) == (ExitCode.UNDECIDED, severity)
    assert "a healthy network gives" in finding["summary"]
    assert bool(finding["remedy"]) == (severity == "info")


@pytest.mark.parametrize(
    "line",
    [
        record("84"),
        record(float("nan")),
        record(1e12),
        record(-1),
        record(84, 1 << 60),
        record(84, True),
        record(84, coll="a b"),
        record(84, coll=["AllReduce"]),
        record(84, n_ranks=0),
        record(84, nnodes="2"),
        record(84)[:-9],
        record(84).replace("metadata", "other"),
        f"  {record(84)}",
        f"The inspector prints {record(84)}",
        '{"header":' * 20_000,
        '{"header":{}}',
        '{"header":{"n_ranks":2,"nnodes":1},"dump_stats":{}}',
    ],
)
def test_another_object_or_a_quoted_one_is_no_measurement(line: str, tmp_path: Path, capsys: Capture) -> None:
    code, answer = ask(tmp_path, capsys, line)
    assert code == ExitCode.UNDECIDED
    assert [m for m in answer["measurements"] if m["best_gb_s"] != 84.0] == []
    if line.startswith('{"header"') and '"84"' not in line:
        assert answer["measurements"] == []


def test_kinds_are_bounded() -> None:
    reader = LogReader()
    reader.feed("a", "".join(f"{record(50, n_ranks=n)}\n" for n in range(1, 300)).encode())
    assert len(reader.report().measurements) == 64


def test_several_readers_come_to_what_one_does() -> None:
    lines = [record(30.0 + n % 50, (1 + n % 7) << 20, n_ranks=2 + n % 3) for n in range(200)]
    whole, first, second = LogReader(), LogReader(), LogReader()
    whole.feed("a", "".join(f"{line}\n" for line in lines).encode())
    first.begin("a", 0)
    first.feed("a", "".join(f"{line}\n" for line in lines[:90]).encode())
    second.begin("a", 1)
    second.feed("a", "".join(f"{line}\n" for line in lines[90:]).encode())
    first.state.absorb(second.state)
    assert first.report().measurements == whole.report().measurements
