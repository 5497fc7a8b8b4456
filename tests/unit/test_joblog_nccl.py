"""Why NCCL or RCCL gave up: each fault in the wording of every version, with any writer and prefix."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

from lumiimg.core.findings import Severity
from lumiimg.core.toml import package_toml
from lumiimg.joblog import Confidence, LogReport, Verdict, read_lines
from tests.shared.job_deaths import job
from tests.shared.programs import sampled

WORDS: dict[str, list[str]] = tomllib.loads((Path(__file__).parents[1] / "fixtures/job-words.toml").read_text())[
    "library"
]
"""Warnings by the id that must be reported."""
EVERY = [(name, line) for name, lines in WORDS.items() for line in lines]
TRACES = ["NCCL INFO init.cc:1408 -> 5", "NCCL INFO group.cc:147 (ncclAsyncJobMain) -> 5 [Async thread]"]
BEFORE = ["", "3: ", "[1,3]<stderr>:", "(RayWorkerWrapper pid=21, ip=10.1.0.2) "]
HARMLESS = [
    "NCCL INFO socketPollConnect: connect to 10.1.0.2<4001> returned Connection refused, retrying (1/34) after sleep for 100 msec",
    "NCCL INFO Call to connect returned Connection refused, retrying",
    "NCCL INFO [Service thread] Connection closed by localRank 0",
    "misc/ibvwrap.cc:65 NCCL WARN Call to ibv_open_device failed",
    "NCCL INFO Detected mixed local Net device counts across ranks (min 0, max 4). Ignoring due to NCCL_IGNORE_NET_MISMATCH.",
]


def read(before: str, *lines: str) -> LogReport:
    return read_lines("job.out", [*job("cxi", 0, 3), *(f"{before}nid005101:103:103 [3] {line}" for line in lines)])


def test_why_the_library_gave_up_is_read_from_the_words_of_each_version_behind_any_prefix() -> None:
    behind = product(EVERY, BEFORE, ["", "[2026-11-24 10:00:00] "])
    for (name, line), before, date in [*product(EVERY, [""], [""]), *sampled(behind, 30)]:
        report = read(before + date, line, *TRACES)
        assert (report.ended.cause, report.severity) == (name, Severity.PROBLEM), (line, before)
        assert report.ended.ranks == "3", (line, before)
        assert report.verdict is Verdict.OFI_CXI, "the network is another question"


def test_what_the_library_goes_on_after_ends_nothing() -> None:
    harmless = package_toml("lumiimg.joblog", "nccl.toml")["harmless"]
    examples = [(table["pattern"], text) for table in harmless for text in table["examples"]]
    for (pattern, text), before in sampled(product(examples, BEFORE), 24):
        assert re.search(pattern, f"NCCL WARN {text}"), text
        assert read(before, f"src/x.cc:9 NCCL WARN {text}").severity is Severity.OK, text
        failed = read(before, f"src/x.cc:9 NCCL WARN {text}", "NCCL INFO init.cc:9 -> 2").ended
        assert failed.summary.startswith("a call failed"), "not by a warning that is harmless"
    for text in ("Something that nobody knows", "NET/OFI Could not register memory on rail 0 with flag 0"):
        assert read("", f"src/x.cc:9 NCCL WARN {text}").severity is Severity.UNKNOWN
        assert read("", f"src/x.cc:9 NCCL WARN {text}", "NCCL INFO init.cc:9 -> 2").ended.summary == text
    for line, before in product(HARMLESS, BEFORE):
        assert read(before, line).severity is Severity.OK, line
    for name, lines in WORDS.items():
        report = read("", lines[0], "NCCL INFO Connected all rings", "NCCL INFO Using network AWS Libfabric")
        assert report.severity is Severity.OK, name
    for line in (
        "Error: network Socket not found.",
        "Failed to initialize any NET plugin",
        "NET/Socket : no interface found",
    ):
        assert read("", f"net.cc:9 NCCL WARN {line}").severity is not Severity.OK, "a second communicator"


HOST = "nid005101:1:1 [0] NCCL INFO "


def causes(*lines: str) -> list[str]:
    return [cause.id for cause in read_lines("job.out", [HOST + line for line in lines]).causes]


def test_a_network_of_the_library_over_a_plugin_that_works_is_no_fault_of_the_provider() -> None:
    provider = "NET/OFI Selected provider is {}, fabric is {} (found 1 nics)"
    for name, network in product(["tcp", "cxi"], ["Socket", "IB"]):
        started = provider.format(name, name)
        assert causes(started, f"Using network {network}")[0] == "network-not-of-the-plugin"
        named = causes(f"NCCL_NET set by environment to {network}", started, f"Using network {network}")
        assert named[0] == "network-forced"
        assert not {"provider-not-fast", "network-not-of-the-plugin"} & {*named}
    assert causes(provider.format("tcp", "tcp"), "Using network AWS Libfabric") == ["provider-not-fast"]
    absent = causes("NET/Plugin: Could not find: librccl-net.so.", "Using network Socket")
    assert absent == ["plugin-absent"]


def test_a_plugin_of_any_name_that_is_not_found_is_explained_by_that_name() -> None:
    for suffix, library in product(["anp", "ofi", "aws-ofi", "x1"], ["librccl", "libnccl"]):
        name = f"{library}-net-{suffix}.so"
        for line in (
            f"NET/Plugin: Could not find: {name}. Using internal net plugin.",
            f"NET/Plugin: Could not find: {suffix} {name}. Using internal network plugin.",
            f"NET/Plugin : dlerror={name}: cannot open shared object file: No such file or directory No plugin found ({name})",
        ):
            (cause,) = read_lines("job.out", [HOST + line, HOST + "Using network Socket"]).causes
            assert cause.id == "plugin-name-suffix", line
            assert f"NCCL_NET_PLUGIN={suffix} asks for {name}" in cause.summary
    assert causes("NET/Plugin: Could not find: librccl-net-none.so") != ["plugin-name-suffix"]


def test_a_rccl_that_stops_between_its_rings_and_its_trees_names_the_setting_that_hangs() -> None:
    start = "ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 busId c1000 commId 0xb - Init START"
    rings, trees = "Connected all rings", "Connected all trees"
    rccl = "RCCL version : 2.26.6-HEAD:29e1567"
    assert "rings-without-trees" in causes(rccl, start, rings)
    for lines in (
        [start, rings],
        [rccl, start, rings, trees],
        [rccl, start, rings, start.replace("START", "COMPLETE")],
    ):
        assert "rings-without-trees" not in causes(*lines)


def test_why_a_call_failed_comes_before_that_it_did() -> None:
    raised = "torch.distributed.DistBackendError: NCCL error in: /src/ProcessGroupNCCL.cpp:1691, unhandled system error, NCCL version 2.19.3"
    why = "socketStartConnect: Connect to fe80::a849:bbff:fe73:19bd%veth8299cd8<54785> failed : Software caused connection abort"
    report = read_lines("job.out", [raised, "Last error:", why, "srun: error: n1: task 3: Exited with exit code 1"])
    assert (report.ended.cause, report.causes[0].id) == ("connect-failed", "connect-failed")


def test_channels_behind_which_the_library_warned_before_they_were_connected_carried_nothing_for_sure() -> None:
    provider = "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)"
    refused = "misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed"
    for network, opening in (("IB", []), ("AWS Libfabric", [provider])):
        channel = f"Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/{network}/0"
        lines = [HOST + line for line in (*opening, f"Using network {network}", channel)]
        warned = [*lines, f"nid005101:1:2 [0] {refused}"]
        for expected, sure in (
            (lines, True),
            (warned, False),
            ([*lines, HOST + "Connected all rings", warned[-1]], True),
        ):
            confidence = read_lines("job.out", expected).confidence
            assert (confidence is Confidence.PROVED) is sure, expected


def test_pytorch_repeats_the_last_warning_of_the_library_which_is_the_cause() -> None:
    """c10d/NCCLUtils.cpp getNcclErrorDetailStr: `Last error:` and the text of the last warning, in lines of their own."""
    raised = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:77, {}, NCCL version 2.26.2"
    )
    for name, line in sampled(EVERY, 30):
        text = line.partition("NCCL WARN ")[2]
        if not text or ("p2p" in line and "failure" in line) or "nvls" in line:  # without its place that says less
            continue
        for expected in (raised.format("unhandled system error"), "RuntimeError: NCCL error: internal error"):
            log = [
                "Traceback (most recent call last):",
                expected,
                "ncclSystemError: System call failed.",
                "Last error:",
                text,
            ]
            assert read_lines("job.out", log).ended.cause == name, text


def test_a_warning_from_which_somebody_took_the_host_is_named_or_shown_as_it_stands() -> None:
    for name, line in sampled(EVERY, 30):
        text = line.partition("NCCL WARN ")[2]
        for excerpt in (line, f"NCCL WARN {text}") if text else ():
            ended = read_lines("job.out", [excerpt]).ended
            shown = ended.cause == "library-warned" and text.startswith(ended.summary[:40]) and "failure" in text
            assert ended.cause == name or shown, excerpt
    assert read_lines("job.out", ["x says NCCL WARN Something"]).ended.cause is None, "which is quoted"


def test_a_job_that_ran_out_of_time_while_a_communicator_was_not_complete_says_which_ranks_never_began_it() -> None:
    def begins(rank: int, state: str = "START") -> str:
        text = f"ncclCommInitRank comm 0x{rank} rank {rank} nranks 4 cudaDev 0 busId 60 commId 0xb - Init {state}"
        return f"nid00510{rank}:1:1 [0] NCCL INFO {text}"

    for over in (
        "slurmstepd: error: *** JOB 7 ON nid005101 CANCELLED AT 2026-11-24T16:20:46 DUE TO TIME LIMIT ***",
        "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000)",
    ):
        alone = read_lines("job.out", [over]).ended.summary
        assert "ranks 2-3 of 4 did not begin it" in read_lines("job.out", [begins(0), begins(1), over]).ended.summary
        complete = [begins(rank, state) for state in ("START", "COMPLETE") for rank in range(4)]
        assert read_lines("job.out", [*complete, over]).ended.summary == alone
