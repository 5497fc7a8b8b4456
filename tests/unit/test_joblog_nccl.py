"""Why NCCL or RCCL gave up: each fault in the words of each version that has others, whoever wrote them and behind what."""

from __future__ import annotations

import re
from itertools import product

from lumiimg.core.findings import Severity
from lumiimg.core.toml import package_toml
from lumiimg.joblog import Confidence, LogReport, Verdict, read_lines
from tests.shared.job_deaths import job
from tests.shared.programs import sampled

WORDS = {
    "duplicate-gpu": (
        "init.cc:738 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
        "/src/hipify/src/init.cc:1004 NCCL WARN Duplicate GPU detected : rank 5 and rank 4 both on CUDA device c1000",
        "init.cc:1141 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1",
    ),
    "library-versions-differ": (
        "init.cc:769 NCCL WARN Mismatched NCCL version detected : rank 9 version 22403 rank 0 version 22203",
        "init.cc:1046 (initTransportsRank) NCCL WARN Mismatched NCCL version detected : rank 1 version 23007 rank 8 version 22707",
    ),
    "setting-not-known": (
        'graph/tuning.cc:60 NCCL WARN Unrecognized element token "Rings" when parsing "Rings,Tree"',
        'tuning/cost_model.cc:97 (parseList) NCCL WARN Unrecognized prefix token "allred" when parsing "allred:ring"',
    ),
    "rank-number-twice": (
        "bootstrap.cc:145 NCCL WARN Bootstrap Root : rank 3 of 16 ranks has already checked in",
        "bootstrap.cc:140 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8",
        "bootstrap.cc:327 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 16 vs 8, nroots 1 vs 1, iroot 0 vs 0",
    ),
    "collective-sizes-differ": (
        "transport/net_socket.cc:483 NCCL WARN NET/Socket : peer 10.1.0.2<4001> message truncated : receiving 4096 bytes instead of 1024.",
        "transport/net_ib.cc:1081 NCCL WARN NET/IB : req 1/1 tag 0 peer 10.1.0.2<4001> collective mismatch error, local size 4 remote size 8",
        "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 2.",
        "bootstrap.cc:224 (socketSendRecv) NCCL WARN Message truncated : received 512 bytes instead of 256",
    ),
    "network-cards-differ": (
        "graph/topo.h:230 NCCL WARN Could not find NET with id 0",
        "graph/search.cc:240 (getNetIndex) NCCL WARN Could not find net id c1",
        "graph/search.cc:1088 NCCL WARN Rank 3 requires NIC 2 but that NIC is not available for rank 1",
        "init.cc:1342 (initTransportsRank) NCCL WARN Detected mixed local Net device counts across ranks (min 0, max 4). Set NCCL_IGNORE_NET_MISMATCH=1 to continue.",
    ),
    "no-path-between-ranks": ("transport.cc:39 NCCL WARN No transport found for rank 0[c1000] -> rank 1[c6000]",),
    "connect-failed": (
        "bootstrap.cc:9 NCCL WARN Connect to 10.1.0.2<36615> failed : No route to host",
        "misc/socket.cc:441 NCCL WARN Net : Connect to 10.1.0.2<36615> failed : No route to host",
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.0.2<48313> failed : Network is unreachable",
        "misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.1.0.2<48313> returned 111(Connection refused) errno 115(Operation now in progress)",
        "misc/socket.cc:476 NCCL WARN socketStartConnect: exceeded timeouts (20000)",
        "misc/socket.cc:578 NCCL WARN socketPollConnect: connect to fe80::1%hsn0<48313> returned Connection refused, exceeded error retry count after 35 attempts",
        "misc/socket.cc:618 NCCL WARN socketPollConnect to 10.1.0.2<48313> failed with error Bad file descriptor",
        "os/linux.cc:301 (socketConnectCheck) NCCL WARN ncclOsSocketStartConnect: connect to 10.1.0.2<36615> failed : Network is unreachable",
        "os/linux.cc:290 (socketConnectCheck) NCCL WARN ncclOsSocketPollConnect: connect to 10.1.0.2<4001> returned Connection timed out, exceeded error retry count after 35 attempts",
    ),
    "remote-error": (
        "include/socket.h:409 NCCL WARN Net : Connection closed by remote peer n2<45074>",
        "include/socket.h:416 NCCL WARN Net : Call to recv from 10.1.0.2<45074> failed : Connection reset by peer",
        "misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2.example.org<45074>",
        "misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer ",
        "misc/socket.cc:59 (socketProgress) NCCL WARN socketProgress: Connection closed by remote peer 10.1.0.2<45074>",
        "misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.1.0.2<45074> failed : Connection reset by peer",
        "os/linux.cc:364 (ncclOsSocketProgressOpt) NCCL WARN ncclOsSocketProgressOpt: Call to send to 10.1.0.2<4507> failed : Connection timed out",
    ),
    "too-many-open-files": ("misc/socket.cc:9 NCCL WARN Call to socket failed: Too many open files",),
    "shared-memory-full": (
        "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes",
        "misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-UbzKZ9 (size 9637888)",
        "os/linux.cc:803 (ncclOsShmOpen) NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes, error: No space left on device (28)",
        "misc/shmutils.cc:60 NCCL WARN Error: failed to create shared memory file /dev/shm/nccl-b, error Permission denied (13)",
        "misc/shmutils.cc:97 NCCL WARN Error: Could not map /dev/shm/nccl-c size 4096, error: Cannot allocate memory (12)",
    ),
    "gpu-memory-fault": ("enqueue.cc:1556 NCCL WARN HIP failure 'unspecified launch failure'",),
    "gpu-code-missing": ("enqueue.cc:110 NCCL WARN HIP failure 'shared object initialization failed'",),
    "gpu-memory-not-shared": (
        "/usr/src/debug/rccl/build/hipify/src/transport/p2p.cc:237 NCCL WARN Cuda failure 'invalid argument'",
        "/src/rccl/src/transport/p2p.cc:256 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
        "transport/p2p.cc:282 NCCL WARN Cuda failure 1 'invalid argument'",
        "transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
        "src/transport/p2p_tmp.cc:372 NCCL WARN HIP failure 'invalid argument'",
        "[FATAL ERROR]: HIP failure: 'invalid device pointer'",
    ),
    "nvls-failed": (
        "transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",
        "transport/nvls.cc:180 (nvlsGroupCreate) NCCL WARN Cuda failure 801 'operation not supported'",
        "transport/nvls.cc:285 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.",
    ),
    "pcie-atomics": (
        "/src/rccl/src/enqueue.cc:2061 NCCL WARN HIP failure 'the operation cannot be performed in the present state'",
        "[FATAL ERROR]: HIP failure: 'the operation cannot be performed in the present state'",
    ),
    "verbs-memory": (
        "misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed",
        "misc/ibvwrap.cc:203 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
        "misc/ibvwrap.cc:79 (wrap_ibv_reg_mr_iova2) NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12",
    ),
    "verbs-gpu-memory": (
        "misc/ibvwrap.cc:30 NCCL WARN Call to ibv_reg_mr failed with error Bad address",
        "misc/ibvwrap.cc:79 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported errno 95",
    ),
    "verbs-peer-unreachable": (
        "misc/ibvwrap.cc:301 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT",
        "misc/ibvwrap.cc:60 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22",
        "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.0.2<4001> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
        "transport/net_ib.cc:1984 NCCL WARN NET/IB: Got completion from peer 10.1.0.2<4001> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_0",
        "transport/net_ib/p2p.cc:688 (ncclIbLogCompletionWithError) NCCL WARN NET/IB: Got completion from peer 10.1.0.2<4001> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 Send",
        "[jwb0296:32182:0:32182] ib_mlx5_log.c:145  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
        "[1506866470.744682] [clx-065:1411 :0]       dc_verbs.c:633  UCX  ERROR Send completion with error on qp 0x10e55: transport retry counter exceeded syndrome 0x81",
        "transport/net_ib/common.cc:123 (ncclIbAsyncThreadMain) NCCL WARN NET/IB : mlx5_0:1 async fatal event: local catastrophic error",
    ),
}
"""By the id that is to be named; as the sources of NCCL 2.7 to 2.31 and of RCCL up to 2.30 print them."""
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


def test_a_call_that_failed_is_named_also_where_its_line_is_all_there_is() -> None:
    for line in (
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/../c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.cpp:77, internal error, NCCL version 2.26.2",
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "(RayWorkerWrapper pid=67451, ip=10.1.0.7) ERROR 06-25 15:28:30 worker_base.py:148] RuntimeError: NCCL Error 2: unhandled system error",
        "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error",
        (
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to execute XLA Runtime executable: run time error: custom call 'xla.gpu.all_reduce' "
            "failed: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclGroupEnd() failed: internal error"
        ),
        "node1: Test NCCL failure common.cu:1129 'unhandled system error'\n .. node1 pid 117738: Test failure common.cu:1161",
        (
            "RuntimeError: NCCL error in: /src/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8\n[default] Worker group failed\n"
            'Traceback (most recent call last):\n  File "local_elastic_agent.py", line 224, in _monitor_workers\n    raise Exception(msg)\nException:'
        ),
    ):
        ended = read_lines("job.out", line.split("\n")).ended
        assert ended.cause == "library-call-raised", line


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
