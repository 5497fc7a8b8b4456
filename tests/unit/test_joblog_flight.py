"""Dumps of PyTorch's flight recorder show the rank that the others wait for, and no pickle is executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode
from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReader
from lumiimg.joblog.files import blocks
from lumiimg.joblog.flight import FlightDump, _Unpickler, parsed, stalled
from tests.shared.job_deaths import job
from tests.shared.programs import patient

FIXTURES = Path(__file__).parents[1] / "fixtures/flight"
"""Written by torch 2.15.0: three ranks of Gloo, of which rank 2 does not begin the seventh collective."""
DUMPS = sorted(FIXTURES.glob("nccl_trace_rank_?"))
Capture = pytest.CaptureFixture[str]


def test_a_real_pickle_is_read_as_python_reads_it() -> None:
    for dump in DUMPS:
        data = dump.read_bytes()
        assert _Unpickler(io.BytesIO(data)).load() == pickle.loads(data), dump  # noqa: S301 - our own


@pytest.mark.parametrize(("suffix", "line"), [("", " (/scratch/train.py:15)"), (".json", "")])
def test_the_rank_that_the_others_wait_for_is_named_with_the_call(suffix: str, line: str, capsys: Capture) -> None:
    names = [f"{dump}{suffix}" for dump in DUMPS]
    assert main(["log", *names, "--json"]) == ExitCode.UNDECIDED
    answer = json.loads(capsys.readouterr().out)
    assert answer["stall"] == {
        "ranks": "2",
        "reason": f"did not begin collective 7 of process group 0 (default_pg), gloo:all_reduce{line}, although the others did",
        "differs": False,
    }
    by_rank = {(one["rank"], one["group"]): one for one in answer["progress"]}
    assert by_rank[2, "0 (default_pg)"] == {
        "rank": 2,
        "group": "0 (default_pg)",
        "begun": 6,
        "completed": 6,
        "waits_in": None,
    }
    assert by_rank[0, "0 (default_pg)"]["waits_in"] == f"gloo:all_reduce{line}"


def test_a_folder_of_dumps_beside_a_log_is_one_job(tmp_path: Path, capsys: Capture) -> None:
    for dump in DUMPS:
        (tmp_path / dump.name).write_bytes(dump.read_bytes())
    (tmp_path / "job.out").write_text("n1:1:1 [0] NCCL INFO Using network Socket\n")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [0.5]}))
    assert main(["log", str(tmp_path)]) == ExitCode.NO
    shown = capsys.readouterr()
    assert shown.out.startswith("socket: ")
    assert "the stall began with rank 2" in shown.out
    assert shown.err == ""


def _dump(rank: int, *calls: str, done: int, members: str = "", begun: int = 0, size: int = 0) -> FlightDump:
    entries = [
        {
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": n,
            "profiling_name": call,
            "is_p2p": False,
            "input_sizes": [[size, 2]],
        }
        for n, call in enumerate(calls, 1)
    ]
    status = {"0": {"last_enqueued_collective": str(begun or len(calls)), "last_completed_collective": str(done)}}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": members}}
    data = json.dumps({"entries": entries, "pg_config": config, "pg_status": status, "version": "2.10"})
    return parsed(data.encode(), f"nccl_trace_rank_{rank}")


def stall_of(*dumps: FlightDump) -> tuple[str, str] | None:
    stall = stalled(dumps)
    return (stall.ranks, stall.reason) if stall else None


def test_the_rank_that_differs_never_began_or_wrote_no_dump_is_named() -> None:
    reduce, gather, ranks = "nccl:all_reduce", "nccl:all_gather", "[0, 1, 2]"
    same = [_dump(rank, reduce, reduce, done=1) for rank in (0, 1, 3)]
    assert stall_of(*same, _dump(2, reduce, gather, done=1)) == (
        "2",
        "called nccl:all_gather as collective 2 of process group 0 (default_pg), others nccl:all_reduce",
    )
    waiting = [_dump(rank, reduce, done=0, members=ranks) for rank in (0, 1)]
    assert stall_of(*waiting, _dump(2, done=0, members=ranks)) == (
        "2",
        "did not begin collective 1 of process group 0 (default_pg), nccl:all_reduce, although the others did",
    )
    assert stall_of(*waiting) == ("2", "wrote no dump of the flight recorder, although the others did")
    # neither a running job has a stall, nor one whose ranks enqueued more or fewer calls after the hanging one
    assert stall_of(*(_dump(rank, *[reduce] * 9, done=5, begun=9 + rank) for rank in range(3))) is None
    assert stall_of(_dump(0, *[reduce] * 9, done=9), _dump(1, *[reduce] * 7, done=7)) is None
    assert stall_of(_dump(0, *[reduce] * 9, done=9), _dump(1, *[reduce] * 9, done=9)) is None


def test_a_rank_that_gave_another_size_is_named_where_the_call_has_not_ended_and_the_sizes_must_agree() -> None:
    gather, done = "nccl:_all_gather_base", (0, 0, 1)
    assert stall_of(*(_dump(rank, gather, done=done[rank], size=(64, 64, 16)[rank]) for rank in range(3))) == (
        "2",
        "called nccl:_all_gather_base with 32 elements as collective 1 of process group 0 (default_pg), others with 128",
    )
    assert stall_of(*(_dump(rank, gather, done=1, size=rank) for rank in range(3))) is None, "NCCL let it pass"
    for call in ("nccl:all_to_all", "nccl:gather", "nccl:coalesced", "nccl:send 0->1"):
        assert stall_of(*(_dump(rank, call, done=0, size=rank) for rank in range(3))) is None, call


def test_beside_the_log_of_a_fast_network_dumps_leave_a_green_answer_only_where_all_had_ended() -> None:
    lines = "".join(f"{line}\n" for line in job("cxi", 0, 1))
    ranks = "[0, 1, 2]"
    ended = [_dump(rank, "nccl:all_reduce", done=1, members=ranks) for rank in (0, 1, 2)]
    waiting = [_dump(rank, "nccl:all_reduce", done=0, members=ranks) for rank in (0, 1, 2)]
    for dumps, answer, cause in (
        (ended, Severity.OK, None),
        (waiting, Severity.UNKNOWN, "collective-not-ended"),
        ([*waiting[:2], _dump(2, done=0, members=ranks)], Severity.UNKNOWN, "rank-behind"),
    ):
        reader = LogReader()
        reader.feed("job.out", lines.encode())
        for dump in dumps:
            reader.take_dump(dump)
        report = reader.report()
        assert (report.verdict, report.severity) == ("ofi-cxi", answer)
        assert (report.causes[0].id if report.causes else None) == cause


HEAD = b"\x80\x02}(X\x07\0\0\0version"
"""The beginning by which a recorder's pickle is recognized."""


class _Calls:
    """What a hostile pickle would do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.mark.threat
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_of_a_pickle_is_executed(protocol: int, tmp_path: Path) -> None:
    made, dump = tmp_path / "made", tmp_path / "nccl_trace_rank_0"
    python = pickle.dumps({"version": _Calls(made)}, protocol)
    for data in (python, HEAD + python[2:], HEAD + python[python.find(b"}") + 1 :]):
        dump.write_bytes(data)
        assert main(["log", str(dump)]) in {ExitCode.BAD_INPUT, ExitCode.UNDECIDED}
        assert not made.exists()


_TEXT = b"X" + struct.pack("<I", 2) + b"ls"
HOSTILE = {
    "GLOBAL and REDUCE": b"cos\nsystem\n(" + _TEXT + b"tR.",
    "text longer than the file": b"X\xff\xff\xff\xff.",
    "number of 255 bytes": b"\x8a\xff" + b"\xff" * 255 + b".",
    "huge LONG4": b"\x8b\xff\xff\xff\x7f.",
    "key that is a list": b"}(]K\x01u.",
    "deep tuple as key": b"}()" + b"\x85" * 200_000 + b"K\x01u.",
    "deep lists": b"]" * 300_000 + b"(" * 10 + b".",
    "too many values": b"(" + b"]" * 1_200_000 + b"t.",
    "two values left": b"NN.",
    "cut off": b"}(X\x07\x00\x00\x00vers",
    **{
        f"code {code:#x}": b"}" + bytes([code]) + b"1\n1\n}}." for code in range(256) if code not in _Unpickler.dispatch
    },
}


@pytest.mark.threat
def test_a_hostile_pickle_is_refused_in_one_line_and_soon() -> None:
    for body in HOSTILE.values():
        begun = time.process_time()
        with pytest.raises(BadInputError) as refused:
            parsed(HEAD + body, "dump")
        assert str(refused.value).isprintable(), body
        assert time.process_time() - begun < patient(5), body


@pytest.mark.threat
def test_a_dump_that_names_its_parts_over_and_over_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"X\x11\0\0\0collective_seq_idK\1X\6\0\0\0frames"
    entries = b"](}q\1(" + key + b"](}q\2" + b"h\2" * 3000 + b"eu" + b"h\1" * 3000 + b"e"
    data = b"\x80\x02}(X\x07\0\0\0entries" + entries + b"u."
    begun = time.process_time()
    assert parsed(data, "nccl_trace_rank_0").groups.keys() == {""}
    assert time.process_time() - begun < 1
    monkeypatch.setattr("lumiimg.joblog.flight._CODES", 6000)
    with pytest.raises(BadInputError):
        parsed(data, "nccl_trace_rank_0")


@pytest.mark.threat
def test_a_number_whose_hash_can_be_chosen_is_not_a_key() -> None:
    for key in (b"\x8a\x08" + (2**61 - 1).to_bytes(8, "little"), b"\x8a\x10" + b"\x7f" * 16):
        with pytest.raises(ValueError, match="key"):
            _Unpickler(io.BytesIO(b"\x80\x02}(" + key + b"Nu.")).load()


def test_lines_that_begin_as_a_dump_are_read_in_blocks_as_others(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text('{"entries": ' + "step 1\n" * 300_000)
    warned: list[str] = []
    sizes = [len(block) for block in blocks(str(log), warned.append, lambda _: None)]
    assert sum(sizes) == log.stat().st_size
    assert max(sizes) < 300_000
    assert len(warned) == 1


def test_dumps_of_another_form_are_refused_or_say_nothing(tmp_path: Path, capsys: Capture) -> None:
    for value in ["{}", "[]", "3", '{"version": "2.10"}']:
        with pytest.raises(BadInputError, match="flight recorder"):
            parsed(value.encode(), "nccl_trace_rank_0")
    holds_itself = b"\x80\x02}(X\x07\0\0\0entries]q\1(h\1h\1eX\x09\0\0\0pg_statush\1u."
    for data in (
        b'{"entries": 3, "pg_status": [], "pg_config": {"0": 1}}',
        b'{"entries": [{"pg_id": {}}]}',
        holds_itself,
    ):
        assert stalled([parsed(data, "nccl_trace_rank_0")]) is None, data
    dump = tmp_path / "nccl_trace_rank_0"
    dump.write_text('{"entries":[{"pg_id":\nn1:1:1 [0] NCCL INFO Using network Socket\n')
    assert main(["log", str(dump)]) == ExitCode.NO
    assert "is cut off, or not a dump of PyTorch's flight recorder; read as text" in capsys.readouterr().err
