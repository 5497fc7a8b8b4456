"""Hard cases of the verdict: what looks like the fast path and is not proved, and what looks like trouble and is none."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

from lumiimg.errors import ExitCode
from lumiimg.nccl.reader import LogReader, read_lines
from lumiimg.report.log import headline

if TYPE_CHECKING:
    from lumiimg.nccl.report import LogReport

CXI = ["NET/OFI Selected Provider is cxi", "Using network AWS Libfabric"]
CHANNEL = "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA"
LOCAL = "Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC"
CONNECTED = "Connected all rings, use ring PXN 0 GDR 1"
DENIED = "NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented"


def comm(address: str, rank: int, ranks: int, nodes: int | None, ident: str = "") -> str:
    if nodes is None:
        last = f" commId {ident}" if ident else ""
        return f"comm {address} rank {rank} nranks {ranks} cudaDev 0 busId c1000{last} - Init COMPLETE"
    return f"comm {address} rank {rank} nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0 MNNVL 0"


WORLD = comm("0xa", 0, 16, 2)


def says(host: str, *texts: str, pid: int = 1) -> list[str]:
    return [f"{host}:{pid}:{pid} [0] NCCL INFO {text}" for text in texts]


GOOD = [line for host in ("nid000001", "nid000002") for line in says(host, *CXI, WORLD, CHANNEL, CONNECTED)]


def read(*lines: str) -> LogReport:
    return read_lines("job.out", lines)


def answer(report: LogReport) -> tuple[str, str, ExitCode]:
    return report.verdict.value, report.confidence.value, report.answer


def test_a_job_that_used_cxi_is_proved() -> None:
    assert answer(read(*GOOD)) == ("ofi-cxi", "proved", ExitCode.GOOD)


def test_connections_of_a_communicator_on_one_node_prove_nothing_about_the_world_that_only_began() -> None:
    tensor_parallel = [comm("0xb", 0, 8, 1), LOCAL, CONNECTED]
    report = read(*says("nid000001", *CXI, *tensor_parallel, WORLD))
    assert answer(report) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)
    assert [cause.id for cause in report.causes] == ["traffic-not-shown"]


def test_connected_ranks_of_a_communicator_that_spans_nodes_are_proof_without_channel_lines() -> None:
    assert answer(read(*says("nid000001", *CXI, WORLD, CONNECTED))) == ("ofi-cxi", "proved", ExitCode.GOOD)
    assert answer(read(*says("nid000001", *CXI, WORLD))) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)
    # the network on the first line of the log
    assert answer(read(*says("nid000001", *CXI[::-1], WORLD, CONNECTED))) == ("ofi-cxi", "proved", ExitCode.GOOD)


AFTER_AN_ERROR = [
    ([], "plugin-init-error"),
    ([CONNECTED], "ofi-cxi"),
    ([CONNECTED, DENIED], "plugin-init-error"),
    ([CONNECTED, DENIED, CONNECTED], "ofi-cxi"),
]


def test_the_last_of_errors_and_connections_decides() -> None:
    for after, verdict in AFTER_AN_ERROR:
        assert read(*says("n1", *CXI, WORLD, DENIED, *after)).verdict.value == verdict, (after, verdict)


def test_of_several_communicators_one_that_connects_does_not_settle_the_error_of_another() -> None:
    ranks = [comm("0xa", 0, 16, 2), comm("0xb", 1, 16, 2)]
    lines = says("nid000001", *CXI, *ranks, CHANNEL, DENIED, CONNECTED)
    assert read(*lines).verdict.value == "plugin-init-error"
    assert read(*lines, *says("nid000001", CHANNEL)).verdict.value == "ofi-cxi"


def test_an_error_in_another_file_leaves_the_answer_open_in_either_order() -> None:
    """Of one rank alone too: what another rank proves does not settle it."""
    for order, ranks in product([("out", "err"), ("err", "out")], [(0, 1), (0,), (1,)]):
        texts = {
            "out": [f"{rank}: {line}" for rank in (0, 1) for line in says(f"nid00000{rank}", *CXI, WORLD, CHANNEL, CONNECTED)],
            "err": [f"{rank}: libfabric:9:1::cxi:domain:cxip_get_if():154<warn> Failed to open CXI Device, ret: -2" for rank in ranks],
        }  # fmt: skip
        reader = LogReader()
        for name in order:
            reader.begin(name)
            reader.feed(name, "".join(f"{line}\n" for line in texts[name]).encode())
        report = reader.report()
        assert answer(report) == ("ofi-cxi", "likely", ExitCode.UNDECIDED), (order, ranks)
        assert "cxi-device" in {cause.id for cause in report.causes}, (order, ranks)


STRAY = [
    "OSError: libfabric.so.1: cannot open shared object file: No such file or directory",
    "fi_info: error while loading shared libraries: libcxi.so.1: cannot open shared object file: No such file or directory",
    "\tlibfabric.so.1 => not found",
    "INFO 11-20 10:00:00 pynccl: Using network Socket",
    "libfabric:4242:1::cxi:domain:cxip_get_if():154<warn> login1: Failed to open CXI Device, ret: -2",
    "MPIDI_OFI: Error: Function not implemented (38) fi_domain",
]


def test_a_line_of_some_other_program_does_not_outvote_ranks_that_are_connected() -> None:
    for stray in STRAY:
        assert answer(read(stray, *GOOD)) == ("ofi-cxi", "proved", ExitCode.GOOD), stray


def test_an_error_without_prefix_after_which_nothing_was_connected_counts() -> None:
    """ROCm 7.2 prints the plugin's warnings without a prefix."""
    started = [line for line in GOOD if CONNECTED not in line]
    assert read(*started, DENIED).verdict.value == "plugin-init-error"


def test_a_device_that_shows_slingshot_speaks_for_all_ranks_that_name_no_provider() -> None:
    lines = [
        *says("nid000001", "Using network AWS Libfabric", CHANNEL),
        *says("nid000002", "Using network AWS Libfabric"),
    ]
    report = read(*lines)
    assert answer(report) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)
    assert {rank.verdict.value for rank in report.ranks} == {"ofi-cxi"}


def test_a_node_on_a_network_that_is_not_known_is_not_left_out() -> None:
    other = ["Using network FooNet", WORLD, "Channel 00/0 : 8[0] -> 0[0] [send] via NET/FooNet/0"]
    report = read(*says("nid000001", *CXI, WORLD, CHANNEL), *says("nid000002", *other))
    assert (report.verdict.value, report.answer) == ("mixed", ExitCode.NO)
    assert {(group.network, group.nodes) for group in report.nodes} == {
        ("AWS Libfabric", ("nid000001",)),
        ("FooNet", ("nid000002",)),
    }


FAILURES = [
    "NET/OFI Unable to register memory (type = 2) for device 0. RC: -22, Error: Invalid argument",
    "NET/OFI Request 0x7f completed with error. RC: 5. Error: Input/output error",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, Timeout(ms)=600000)",
    "[Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "cxip_x():1<error> n1: RXC (0x1:2) PtlTE 5:[Fatal] LE resources not recovered during flow control. FI_CXI_RX",
    "cxip_x():1<error> n1: RXC (0x1:2) PtlTE 5:[Fatal] LE exhaustion during flow control, FI_CXI_RX_MATCH_MODE=",
    "NET/OFI fi_writedata failed; RC: -38, Error: Function not implemented",
]


def test_a_transfer_that_fails_on_the_fast_path_is_no_good_answer() -> None:
    for failure in FAILURES:
        report = read(*GOOD, *says("nid000001", failure))
        assert answer(report) == ("ofi-cxi", "proved", ExitCode.NO), failure


SOCKET, TCP = ["Using network Socket"], ["NET/OFI Selected Provider is tcp", "Using network AWS Libfabric"]


def test_on_one_node_it_does_not_matter_which_network_was_chosen() -> None:
    for network in [SOCKET, TCP, CXI, ["Using network IB"], [LOCAL]]:
        report = read(*says("n1", *network, comm("0xa", 0, 8, 1)))
        assert report.answer is ExitCode.GOOD, network
        assert report.causes[0].id == "nothing-crosses", network


def test_a_network_that_is_asked_for_and_missing_is_a_no_on_one_node_too() -> None:
    for failing in ["Error: network OFI not found.", "Failed to initialize any NET plugin"]:
        assert read(*says("n1", failing, comm("0xa", 0, 8, 1))).answer is ExitCode.NO, failing


def test_before_2_21_one_node_is_known_by_all_ranks_of_each_communicator() -> None:
    world = [line for r in range(4) for line in says("n1", *SOCKET, comm("0xa", r, 4, None, "0xaa"), pid=r + 1)]
    assert read(*world).answer is ExitCode.GOOD
    assert read(*world[:-1], *says("n2", comm("0xa", 3, 4, None, "0xaa"))).answer is ExitCode.NO
    assert read(*world[:-2]).answer is ExitCode.NO


def test_communicators_of_one_size_do_not_complete_each_other() -> None:
    """One node of eight: all of its tensor-parallel ranks, and of each data-parallel communicator only one."""
    for named in [True, False]:
        lines: list[str] = []
        for rank in range(8):
            across = comm(f"0xb{rank}", 0, 8, None, f"0xb{rank}" if named else "")
            lines += says("n1", *SOCKET, comm("0xa", rank, 8, None, "0xaa" if named else ""), across, pid=rank + 1)
        assert read(*lines).answer is ExitCode.NO, named


def test_local_channels_on_two_hosts_do_not_make_a_job_of_one_node() -> None:
    hosts = [says(f"n{n}", comm("0xa", 8 * n, 16, None, "0xaa"), LOCAL) for n in range(2)]
    assert read(*hosts[0], *hosts[1]).verdict.value == "none"


def test_a_rank_that_is_started_again_is_counted_once() -> None:
    for second, told in [(8, (8, 16)), (0, (8, 16)), (16, (16, 16))]:
        runs = [
            line
            for run, count in enumerate((8, second))
            for rank in range(count)
            for line in says(
                f"n{rank // 8}", *SOCKET, comm("0xa", rank, 16, None, f"0xa{run}"), pid=1 + 100 * run + rank
            )
        ]
        report = read(*runs)
        assert (report.told.ranks, report.told.of_ranks) == told, (second, told)


def _runs(report: LogReport) -> list[tuple[str, str | None]]:
    return [(run.verdict.value, run.ended.id if run.ended else None) for run in report.runs_before]


def test_of_a_job_that_was_requeued_the_last_run_is_judged_and_the_others_are_said() -> None:
    first = says("n1", *SOCKET, comm("0xa", 0, 16, 2), pid=5)
    again = says("n1", *CXI, comm("0xb", 0, 16, 2), CHANNEL, pid=9)
    report = read(*first, *again)
    assert (report.verdict.value, report.confidence.value, report.answer.name) == ("ofi-cxi", "proved", "GOOD")
    assert _runs(report) == [("socket", None)]
    assert report.first_line == len(first) + 1
    back = read(*again, *first)
    assert (back.verdict.value, _runs(back)) == ("socket", [("ofi-cxi", None)])
    side_by_side = read(*first, *says("n2", *CXI, comm("0xb", 8, 16, 2), CHANNEL, pid=9))
    assert (side_by_side.verdict.value, side_by_side.runs_before) == ("mixed", ())


def test_two_jobs_in_one_file_on_other_nodes_are_told_apart_by_what_slurm_says() -> None:
    first = says("n1", *SOCKET, comm("0xa", 0, 16, 2), pid=5)
    other = says("n7", *CXI, comm("0xb", 0, 16, 2), CHANNEL, pid=9)
    ended = "srun: error: n1: task 0: Out Of Memory"
    report = read(*first, ended, *other)
    assert (report.verdict.value, report.ended, _runs(report)) == ("ofi-cxi", None, [("socket", "out-of-memory")])
    numbered = read("SLURM_JOB_ID=41", *first, "SLURM_JOB_ID=42", *other)
    assert (numbered.verdict.value, _runs(numbered)) == ("ofi-cxi", [("socket", None)])
    together = read(*first, *other)
    assert (together.verdict.value, together.runs_before) == ("mixed", ())


def test_ranks_whose_files_were_put_together_are_one_run() -> None:
    ranks = [line for rank in range(4) for line in says("n1", *CXI, comm("0xa", rank, 4, 2), CHANNEL, pid=5 + rank)]
    report = read(*ranks)
    assert (report.runs_before, report.told.ranks) == ((), 4)


def test_three_runs_and_what_each_died_of() -> None:
    lines = []
    for pid, death in (
        (5, "srun: error: Node failure on n1"),
        (6, "torch.OutOfMemoryError: HIP out of memory."),
        (7, ""),
    ):
        lines += [*says("n1", *CXI, comm("0xa", 0, 16, 2), CHANNEL, pid=pid), *filter(None, [death])]
        lines += ["srun: error: n1: task 0: Exited with exit code 1"] if pid == 6 else []
    report = read(*lines)
    assert (report.ended, report.answer.name) == (None, "GOOD")
    assert [end for _, end in _runs(report)] == ["node-failed", "gpu-out-of-memory"]


def test_prose_about_a_channel_is_none() -> None:
    prose = "look for NET/OFI Selected Provider is cxi and then via NET/AWS Libfabric/0/GDRDMA"
    assert answer(read(prose)) == ("none", "unknown", ExitCode.UNDECIDED)


def test_slurm_tells_how_many_ranks_are_silent() -> None:
    report = read("SLURM_NTASKS=16", "SLURM_NNODES=2", *says("n1", *SOCKET))
    assert (report.told.ranks, report.told.of_ranks, report.told.of_nodes) == (1, 16, 2)


def test_without_channels_the_device_tells_of_gpudirect_rdma() -> None:
    assert read(*says("n1", "NET/OFI : GPU Direct RDMA Enabled for HCA 0 'cxi0'")).transport.gdr is True


RANKS = {
    "cxi": [*CXI, WORLD, CHANNEL],
    "tcp": [*TCP, WORLD, CHANNEL],
    "socket": [*SOCKET, WORLD],
    "ib": ["Using network IB", WORLD],
    "other": ["Using network FooNet", WORLD],
    "missing": ["NET/Plugin: Could not find: librccl-net.so. Using internal net plugin.", WORLD],
    "broken": ["NET/Plugin: libcxi.so.1: cannot open shared object file: No such file or directory", WORLD],
    "absent": ["Error: network AWS Libfabric not found.", WORLD],
    "no network": ["Failed to initialize any NET plugin", WORLD],
    "denied": [*CXI, WORLD, DENIED],
    "begun": ["NET/OFI Initializing aws-ofi-nccl 1.9.2", WORLD],
    "local": [LOCAL, comm("0xc", 0, 8, 1)],
    "alone": [comm("0xc", 0, 8, 1)],
    "silent": [WORLD],
    "near": [WORLD, LOCAL],
    "not begun": ["NET/OFI aws-ofi-nccl initialization failed", WORLD],
}


TWO_NODES = [
    # ranks on networks of two kinds, and ranks without one beside those that have libfabric
    ("tcp", "socket", "mixed", "proved", ExitCode.NO),
    ("tcp", "missing", "mixed", "proved", ExitCode.NO),
    ("cxi", "absent", "mixed", "proved", ExitCode.NO),
    ("cxi", "no network", "mixed", "proved", ExitCode.NO),
    ("tcp", "denied", "plugin-init-error", "proved", ExitCode.NO),
    ("ib", "denied", "mixed", "proved", ExitCode.NO),
    ("ib", "no network", "mixed", "proved", ExitCode.NO),
    ("ib", "absent", "mixed", "proved", ExitCode.NO),
    ("ib", "not begun", "mixed", "proved", ExitCode.NO),
    # a network that is not known leaves open what it is
    ("cxi", "other", "mixed", "unknown", ExitCode.NO),
    ("socket", "other", "mixed", "unknown", ExitCode.NO),
    # without a plugin the library goes on with its own transport
    ("socket", "missing", "socket", "proved", ExitCode.NO),
    ("socket", "denied", "socket", "proved", ExitCode.NO),
    ("ib", "missing", "ib", "proved", ExitCode.GOOD),
    ("socket", "local", "socket", "proved", ExitCode.NO),
    # of several failures the one nearest to success
    ("missing", "broken", "plugin-load-error", "proved", ExitCode.NO),
    ("broken", "no network", "plugin-init-error", "proved", ExitCode.NO),
    ("missing", "denied", "plugin-init-error", "proved", ExitCode.NO),
    ("missing", "local", "plugin-missing", "proved", ExitCode.NO),
    ("absent", "other", "plugin-missing", "proved", ExitCode.NO),
    # a plugin that only began outweighs nothing
    ("socket", "begun", "socket", "proved", ExitCode.NO),
    ("missing", "begun", "plugin-missing", "proved", ExitCode.NO),
    ("begun", "other", "ofi-other", "likely", ExitCode.UNDECIDED),
    # what stays on one node says nothing of ranks that another shows to be on several
    ("alone", "begun", "ofi-other", "likely", ExitCode.UNDECIDED),
    ("local", "begun", "ofi-other", "likely", ExitCode.UNDECIDED),
    ("alone", "silent", "none", "unknown", ExitCode.UNDECIDED),
    ("local", "silent", "none", "unknown", ExitCode.UNDECIDED),
    ("alone", "local", "intra-node-only", "proved", ExitCode.GOOD),
    ("near", "near", "none", "unknown", ExitCode.UNDECIDED),
    ("other", "other", "none", "unknown", ExitCode.UNDECIDED),
]


def test_two_nodes_that_differ_come_to_one_verdict_in_either_order() -> None:
    for one, other, verdict, confidence, code in TWO_NODES:
        for first, second in ((one, other), (other, one)):
            report = read(*says("n1", *RANKS[first]), *says("n2", *RANKS[second]))
            assert answer(report) == (verdict, confidence, code), (one, other, verdict, confidence, code)
            told = [line.text for line in report.proof]
            if verdict == "mixed":  # a line of each side
                assert any(text.startswith("n1:") for text in told), (one, other, verdict, confidence, code)
                assert any(text.startswith("n2:") for text in told), (one, other, verdict, confidence, code)


def test_what_stays_on_the_node_is_said_of_a_rank_only_where_nothing_of_it_crosses() -> None:
    (near,) = read(*says("n1", *RANKS["near"])).ranks
    assert near.verdict.value == "none"
    report = read(*says("n1", comm("0xc", 0, 8, 1), comm("0xd", 0, 8, 1)))
    assert answer(report) == ("intra-node-only", "proved", ExitCode.GOOD)
    assert [line.line for line in report.proof] == [1]


def test_a_rank_that_names_no_provider_of_its_own_is_not_proved_by_that_of_another() -> None:
    silent = says("n2", "Using network AWS Libfabric", WORLD, CHANNEL, CONNECTED)
    ranks = read(*says("n1", *CXI, WORLD, CHANNEL, CONNECTED), *silent).ranks
    assert [(rank.provider, rank.confidence.value) for rank in ranks] == [("cxi", "proved"), ("cxi", "likely")]


def test_connections_of_ranks_that_name_no_communicator_prove_nothing() -> None:
    assert answer(read(*says("n1", *CXI, CONNECTED))) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)


def test_connections_of_ranks_that_chose_no_network_prove_nothing() -> None:
    assert answer(read(*says("n1", CXI[0], WORLD, CONNECTED))) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)


LIKELY = [
    (["NET/Socket : Using [0]hsn0:10.1.1.1<0>"], "socket"),  # started, and not yet chosen
    (["NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB hsn0:10.1.1.1<0>"], "ib"),
    (["NET/OFI Selected Provider is cxi", "NET/Socket : Using [0]hsn0:10.1.1.1<0>"], "socket"),
    (["NET/OFI Selected Provider is cxi"], "ofi-cxi"),
    (["Using network Socket", "Using network IB"], "mixed"),
    (["NET/OFI Selected Provider is tcp", *CXI], "mixed"),
    (["Using network AWS Libfabric", "NET/OFI : GPU Direct RDMA Enabled for HCA 0 'cxi0'"], "ofi-cxi"),
    (["Using network AWS Libfabric", CHANNEL], "ofi-other"),
    (["NET/OFI : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "Using network AWS Libfabric"], "ofi-other"),
]


def test_what_is_not_proved_is_likely_and_shown_by_its_lines() -> None:
    for lines, verdict in LIKELY:
        report = read(*says("n1", *lines, WORLD))
        assert (report.verdict.value, report.confidence.value) == (verdict, "likely"), (lines, verdict)
        shown = [evidence.text for evidence in report.proof]
        assert len(set(shown)) == len(shown), (lines, verdict)
        assert any(text.endswith(lines[-1]) for text in shown) or verdict == "mixed", (lines, verdict)


ONE_NODE = [
    ([comm("0xa", 0, 8, 1)], "intra-node-only", "proved"),
    ([comm("0xa", 0, 8, 1), LOCAL], "intra-node-only", "likely"),
    ([comm("0xa", 0, 8, None, "0xaa"), LOCAL], "intra-node-only", "likely"),
    ([RANKS["missing"][0], comm("0xa", 0, 8, 1), LOCAL], "intra-node-only", "likely"),
    ([RANKS["no network"][0], comm("0xa", 0, 8, 1), LOCAL], "plugin-init-error", "proved"),
    ([comm("0xa", 0, 8, 1), comm("0xb", 0, 16, None, "0xbb")], "none", "unknown"),
    ([comm("0xa", 0, 8, 1), WORLD], "none", "unknown"),
    ([WORLD, LOCAL], "none", "unknown"),
]


def test_a_node_by_itself_is_known_by_all_its_communicators() -> None:
    for lines, verdict, confidence in ONE_NODE:
        report = read(*says("n1", *lines))
        assert (report.verdict.value, report.confidence.value) == (verdict, confidence), (lines, verdict, confidence)


def test_nodes_that_each_work_by_themselves_need_no_network() -> None:
    """Which is told, as it is what a wrong launch looks like, too."""
    alone = [says(f"n{n}", comm(f"0xa{n}", 0, 8, 1, f"0xa{n}"), LOCAL) for n in range(2)]
    report = read(*alone[0], *alone[1])
    assert answer(report) == ("intra-node-only", "likely", ExitCode.GOOD)
    assert report.causes[0].id == "nodes-apart"
    assert read(*alone[0]).causes[0].id == "nothing-crosses"


def test_what_nodes_did_that_only_slurm_names_is_not_known() -> None:
    for nodes, code in [(1, ExitCode.GOOD), (2, ExitCode.UNDECIDED)]:
        report = read(f"SLURM_NNODES={nodes}", *says("n1", *SOCKET, comm("0xa", 0, 8, 1)))
        assert (report.single_node, report.answer, report.told.of_nodes) == (True, code, nodes), (nodes, code)
        assert ("does not show" in headline(report)) is (code is ExitCode.UNDECIDED), (nodes, code)


def test_slurms_nodes_do_not_count_where_a_communicator_tells_its_own() -> None:
    report = read("SLURM_NNODES=4", *GOOD)
    assert (report.told.of_nodes, report.answer) == (2, ExitCode.GOOD)


CONNECTED_ONLY = [*CXI, WORLD, CONNECTED]
WITH_CHANNEL = [*CXI, WORLD, CHANNEL, CONNECTED]
NO_PROVIDER = ["Using network AWS Libfabric", WORLD, CHANNEL]


def test_the_rank_that_is_proved_best_speaks_for_the_job() -> None:
    for one, other, shown in [(CONNECTED_ONLY, WITH_CHANNEL, CHANNEL), (CONNECTED_ONLY, NO_PROVIDER, CXI[1])]:
        for first, second in ((one, other), (other, one)):
            report = read(*says("n1", *first), *says("n2", *second))
            assert answer(report) == ("ofi-cxi", "proved", ExitCode.GOOD), (one, other, shown)
            assert report.proof[0].text.endswith(shown), (one, other, shown)


def test_a_rank_with_two_providers_makes_the_job_mixed_whatever_the_others_are_on() -> None:
    report = read(*says("n1", *RANKS["cxi"]), *says("n2", TCP[0], *RANKS["cxi"]))
    assert answer(report) == ("mixed", "likely", ExitCode.NO)


def test_of_two_providers_that_are_none_of_slingshot_the_last_is_told() -> None:
    report = read(*says("n1", "NET/OFI Selected Provider is sockets", *TCP, WORLD))
    assert (report.verdict.value, report.provider, report.ranks[0].provider) == ("ofi-other", "tcp", "tcp")


def test_the_provider_of_some_mpi_is_not_that_of_the_plugin() -> None:
    lines = ["[0] MPI startup(): libfabric provider: cxi", *says("n1", "Using network AWS Libfabric", WORLD)]
    report = read(*lines)
    assert (report.verdict.value, report.provider, report.answer) == ("ofi-other", None, ExitCode.UNDECIDED)


def test_lines_of_no_process_count_where_no_process_told_its_network() -> None:
    silent = [*says("n1", WORLD), *says("n2", WORLD)]
    assert read("NCCL INFO Using network Socket", *silent).verdict.value == "socket"
    assert read("NCCL INFO Using network Socket", *says("n1", *RANKS["cxi"]), *silent).verdict.value == "ofi-cxi"


def test_the_network_is_told_as_the_library_names_it() -> None:
    told = [["Using network Socket"], ["Using network IB"], CXI, ["NET/Socket : Using [0]hsn0:10.1.1.1<0>"]]
    names = [read(*says("n1", *lines, WORLD)).ranks[0].network for lines in told]
    assert names == ["Socket", "IB", "AWS Libfabric", None]


def test_proof_of_the_fast_path_shows_the_provider() -> None:
    assert [line.text.partition("INFO ")[2] for line in read(*GOOD).proof] == [CHANNEL, CXI[1], CXI[0]]


def test_what_one_rank_found_does_not_take_back_what_another_missed() -> None:
    report = read(*says("n1", *RANKS["cxi"]), *says("n2", "NET/OFI Couldn't find any optimal provider", WORLD))
    assert (report.verdict.value, [cause.id for cause in report.causes]) == (
        "mixed",
        ["some-nodes", "no-provider"],
    )


def test_what_was_wrong_in_one_run_is_no_cause_of_another() -> None:
    first = says("n1", *RANKS["missing"], "Using network Socket", pid=5)
    report = read(*first, *says("n1", *CXI, comm("0xb", 0, 16, 2), CHANNEL, pid=9))
    assert (report.causes, _runs(report)) == ((), [("socket", None)])


def test_a_symptom_is_a_cause_where_nothing_deeper_is_seen() -> None:
    assert [cause.id for cause in read(*says("n1", *RANKS["absent"])).causes] == ["network-not-found"]
    link = "libfabric:1:1::cxi:core:cxip_query_if_list():554<warn> n1: CXI netdev not found for device: cxi0"
    assert [cause.id for cause in read(link, *says("n1", *RANKS["socket"])).causes] == ["cxi-link-down"]


def test_each_library_that_is_missing_is_a_cause_of_its_own_up_to_a_bound() -> None:
    lost = "NET/Plugin: lib{}.so.1: cannot open shared object file: No such file or directory"
    few = read(*says("n1", lost.format("cxi"), lost.format("hwloc"), WORLD)).causes
    assert [cause.id for cause in few] == ["dependency-missing", "dependency-missing"]
    many = read(*(line for n in range(60) for line in says(f"n{n}", lost.format(f"a{n}")))).causes
    assert len(many) < 50


def test_a_root_cause_comes_before_its_symptoms() -> None:
    symptom = "libfabric:1:1::cxi:core:cxip_query_if_list():554<warn> n1: CXI netdev not found for device: cxi0"
    report = read(symptom, *says("n1", "NET/OFI Couldn't find any optimal provider", WORLD))
    assert [cause.id for cause in report.causes] == ["no-provider", "cxi-link-down"]


def test_what_a_line_leaves_out_is_said_to_be_not_named() -> None:
    cut = "NET/Plugin: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"
    (cause,) = read(*says("n1", cut)).causes
    assert cause.id == "libstdcxx-too-old"
    assert "(not named)" in " ".join((cause.summary, *cause.because, *cause.remedy))


def test_a_plugin_that_did_not_load_does_not_outweigh_the_network_that_was_chosen_after_it() -> None:
    assert read(*says("n1", RANKS["broken"][0], *CXI, WORLD, CHANNEL)).verdict.value == "ofi-cxi"


def test_the_network_of_a_plugin_that_was_initialised_is_told() -> None:
    unknown = read(*says("n1", "Initialized NET plugin FooNet", WORLD))
    assert (unknown.verdict.value, unknown.ranks[0].network) == ("none", "FooNet")
    known = read(*says("n1", CXI[0], "Initialized NET plugin AWS Libfabric", WORLD))
    assert (known.verdict.value, known.ranks[0].network) == ("ofi-cxi", "AWS Libfabric")


def test_a_job_that_nccl_net_stops_went_over_no_network() -> None:
    started = "NET/Socket : Using [0]hsn0:10.253.1.200<0>"
    for refused in ("Error: network AWS Libfabric not found.", "Failed to initialize any NET plugin"):
        report = read(*says("nid000001", started, refused))
        assert report.verdict.value.startswith("plugin-")
        assert report.answer is ExitCode.NO


QUOTATIONS = [
    "ERROR: expected a channel via NET/AWS Libfabric/0/GDRDMA; none seen",
    f"AssertionError: {GOOD[3]}",
    f"README.md:12: {GOOD[3]}",
    f'{{"text": "{GOOD[3]}"}}',
]


def test_a_sentence_that_quotes_a_line_shows_nothing() -> None:
    for quotation in QUOTATIONS:
        assert answer(read(*[quotation] * 3)) == ("none", "unknown", ExitCode.UNDECIDED), quotation


def test_what_somebody_copied_proves_nothing_unless_all_of_the_log_was_copied() -> None:
    indented = [f"    {line}" for line in GOOD]
    assert answer(read("as in the guide:", *indented)) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)
    assert answer(read(*[f"> {line}" for line in GOOD])) == ("ofi-cxi", "proved", ExitCode.GOOD)
    socket = says("nid000001", *SOCKET, WORLD)
    assert answer(read(*socket, *indented)) == answer(read(*socket))


def test_lines_without_their_origin_are_an_excerpt_that_proves_nothing() -> None:
    assert answer(read(*CXI, CHANNEL, CONNECTED)) == ("ofi-cxi", "likely", ExitCode.UNDECIDED)
    assert read(comm("0xa", 0, 8, 1), LOCAL).answer is ExitCode.UNDECIDED


def test_logs_of_containers_as_json_are_read_without_their_escapes() -> None:
    records = [json.dumps({"log": f"{line}\n", "stream": "stderr"}).replace(">", "\\u003e") for line in GOOD]
    assert answer(read(*records)) == ("ofi-cxi", "proved", ExitCode.GOOD)
    journal = [json.dumps({"MESSAGE": list(line.encode()), "_PID": "7"}) for line in GOOD]
    assert answer(read(*journal)) == ("ofi-cxi", "proved", ExitCode.GOOD)
    hostile = ["[" * 100_000, '{"log": [1', '{"log": 3, "stream": 1}', '{"MESSAGE": [300], "_PID": 1}', "{" * 100_000]
    assert answer(read(*hostile)) == ("none", "unknown", ExitCode.UNDECIDED)


def test_of_many_channels_the_last_one_counts_as_if_each_were_read() -> None:
    """Of channels that differ in their numbers one is read; when the last one came settles an error before it."""
    many = [CHANNEL.replace("Channel 00", f"Channel {n:02}") for n in range(64)]
    assert read(*says("nid000001", *CXI, WORLD, *many[:-1], DENIED)).verdict.value == "plugin-init-error"
    ranks = [comm("0xa", 0, 16, 2), comm("0xb", 1, 16, 2)]
    lines = says("nid000001", *CXI, *ranks, *many[:-1], DENIED, *many[-1:])
    assert read_lines("j", lines).verdict.value == "ofi-cxi"
    whole = LogReader()
    whole.feed("j", "".join(f"{line}\n" for line in lines).encode())
    assert whole.report() == read_lines("j", lines)


NEW_OF_2026 = {
    "ras-process-dead": "  2 job processes are considered dead (unreachable via the RAS network)",
    "ras-no-answer": "  Missing communicator data from 1 rank",
    "ras-counts-differ": "  Communicator ranks have different AllReduce operation counts",
    "diag-gpu-pair": "n1:15 NCCL DIAG [INFO] p2p: read mismatch srcRank=3 srcCudaDev=3 srcNvmlDev=3 dstRank=1 dstCudaDev=1 dst",
    "diag-environment": "n1:15 NCCL DIAG [INFO] NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_DEBUG",
    "gpu-initiated-network-absent": "n1:1:1 [0] gin/gin_host.cc:92 NCCL WARN GIN not supported.",
}
"""What newer libraries say beside the network, by the id of the cause."""


def test_what_ras_diagnostics_and_gin_say_is_a_cause_and_takes_no_network_back() -> None:
    for name, line in NEW_OF_2026.items():
        job = [*says("n1", *CXI, WORLD, CHANNEL), *says("n2", *CXI, comm("0xa", 8, 16, 2), CHANNEL)]
        alone, beside = read(*job), read(*job, line)
        assert (beside.verdict, beside.confidence) == (alone.verdict, alone.confidence), name
        ended = beside.ended.id if beside.ended else None
        is_dead = name == "ras-process-dead"
        assert (ended, beside.answer) == ((name, ExitCode.NO) if is_dead else (None, alone.answer)), name
        assert name in [cause.id for cause in beside.causes], name
        for mark in ("The log says: ", "    ", "# ", "AssertionError: expected ", '+ grep "'):
            quoted = read(*job, mark + line.strip())
            assert [cause.id for cause in quoted.causes] == [cause.id for cause in alone.causes], mark
