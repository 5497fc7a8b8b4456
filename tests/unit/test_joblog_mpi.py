"""What MPI dies of on libfabric is read in its error stack, and on EFA nobody is sent to Slingshot."""

from __future__ import annotations

import re
from itertools import product

from lumiimg.joblog import LogReport, read_lines
from lumiimg.joblog.vocabulary import vocabulary
from tests.shared.programs import sampled

CRAY = "MPICH ERROR [Rank 519] [job id 1234567.0] [Tue Jun 11 15:11:42 2024] [nid001001] - "
HEADS = {
    "Cray MPICH": f"{CRAY}Abort(539602063) (rank 519 in comm 0): Fatal error in PMPI_Waitall: Other MPI error, error stack:",
    "MPICH 3": "Abort(1091215) on node 519 (rank 519 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:",
    "MPICH 4": "Abort(204069007): Fatal error in internal_Init_thread: Other MPI error, error stack:",
}
BETWEEN = ["PMPI_Waitall(126)...............: MPI_Waitall(count=3) failed", "MPID_Progress_wait(186)........: "]
POLL = "MPIDI_OFI_handle_cq_error(1075): OFI poll failed (ofi_events.c:1077:MPIDI_OFI_handle_cq_error:Input/output error - {})"
STACKS = {
    # as MPICH 3.4, 4.0 and 4.1, Cray MPICH 8.1 print it; the last without the place, as 4.3 does
    "MPIDI_OFI_mpi_init_hook(599): OFI fi_open domain failed (ofi_init.c:599:MPIDI_OFI_mpi_init_hook:Invalid argument)": "mpi-domain",
    "create_vni_domain(1251)......: OFI call opendomain failed (default nic=cxi0: Function not implemented)": "mpi-domain",
    "MPIDI_OFI_mpi_init_hook(1061): OFI addrinfo() failed (ofi_init.c:1061:MPIDI_OFI_mpi_init_hook:No data available)": "mpi-no-provider",
    "find_provider(2683)..........: OFI fi_getinfo() failed (ofi_init.c:2683:find_provider:No data available)": "mpi-no-provider",
    "find_provider(170).........: OFI fi_getinfo() failure": "mpi-no-provider",
    "MPIR_pmi_init(110)...: PMI_Init returned -1": "mpi-launcher",
    "MPIDI_CRAY_XPMEM_do_attach(482)...........: xpmem_attach failed on rank 5 (src_rank 20, vaddr 0x3abf5b20, len 2400)": "mpi-shared-memory",
    POLL.format("PTLTE_NOT_FOUND"): "mpi-peer-not-found",
    POLL.format("CONN_CLOSED"): "cxi-connection-lost",
    POLL.format("Invalid request descriptor"): "cxi-connection-lost",
    POLL.format("UNDELIVERABLE"): "cxi-connection-lost",
    POLL.format("VNI_NOT_FOUND"): "cxi-vni-not-found",
    POLL.format("LE_RESOURCES"): "cxi-flow-control",
    "MPIDI_OFI_init_local(1): OFI EP enable failed (ofi_init.c:1:f:No space left on device)": "mpi-transfer-failed",
    POLL.format("transport retry counter exceeded"): "mpi-transfer-failed",
    POLL.format("OK").replace("Input/output error", "Message too long"): "mpi-transfer-failed",
    "MPIDI_OFI_send_normal(372)..: OFI tagged senddata failed (ofi_send.h:372:MPIDI_OFI_send_normal:Resource temporarily unavailable)": "mpi-transfer-failed",
    "MPIDI_OFI_do_irecv(356): OFI tagged recv failed (No space left on device)": "mpi-transfer-failed",
    "MPIR_Scatterv(80): Message truncated": "mpi-error",
}  # fmt: skip
CLEANED = [
    "srun: error: nid001001: task 519: Exited with exit code 255",
    "srun: Terminating StepId=1234567.0",
    "slurmstepd: error: *** STEP 1234567.0 ON nid001001 CANCELLED AT 2024-06-11T15:11:43 ***",
    "srun: error: nid001002: tasks 48-55: Terminated",
    "srun: Force Terminated StepId=1234567.0",
]
EFA = "n1:1:1 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)"
REQUEST = (
    "n1:1:1 [0] NCCL WARN NET/OFI Request 0x7f completed with error. RC: {}. Error: {} My EFA addr: fi_addr_efa://[fe80::1]:0:1 My host id: i-0 "
    "Peer EFA addr: fi_addr_efa://[fe80::2]:0:8 Peer host id: N/A). Completed length: 0"
)


def read(*lines: str) -> LogReport:
    return read_lines("job.out", lines)


def test_the_last_line_of_an_error_stack_says_why_and_its_first_which_rank() -> None:
    for (name, head), (last, cause), cleaned in sampled(product(HEADS.items(), STACKS.items(), ([], CLEANED)), 40):
        for prefix in ("", "519: ", "x4310c3s2b0n0.hsn.cm.aurora.alcf.anl.gov 519: "):
            ended = read(*[f"{prefix}{line}" for line in (head, *BETWEEN, last)], *cleaned).ended
            assert ended.cause == cause, (name, last, prefix)
            assert ended.ranks in {None, "519"}, (name, last, prefix)
            assert ended.ranks == "519" or not (prefix == "519: " or name == "Cray MPICH"), (name, last, prefix)


def test_what_died_before_a_peer_was_missed_is_the_cause() -> None:
    stack = [HEADS["Cray MPICH"], *BETWEEN, POLL.format("PTLTE_NOT_FOUND")]
    crash = "srun: error: nid001002: task 48: Segmentation fault (core dumped)"
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1234567.0. Some of the step tasks have been OOM Killed."
    )
    assert read(crash, *stack, *CLEANED).ended.cause == "segmentation-fault"
    assert read(*stack, *CLEANED, killed).ended.cause == "out-of-memory", "Slurm says it last"


OTHER_MACHINES = {
    "EFA": "n1:1:1 [0] NCCL INFO NET/OFI Running on p4d.24xlarge platform, Setting NCCL_TOPO_FILE environment variable to x.xml",
    "RoCE": "n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
}


def test_nobody_elsewhere_is_sent_to_slingshot_or_to_lumi() -> None:
    sign = re.compile(r"cxi|hsn|SLINGSHOT|nid\d{6}|\bx\d+c\d")
    advised = 0
    for (machine, line), signature in sampled(product(OTHER_MACHINES.items(), vocabulary().signatures.values()), 100):
        if not sign.search(signature.example):
            for cause in read(line, signature.example).causes:
                advised += len(cause.remedy)
                of_slingshot = [
                    step for step in (*cause.because, *cause.remedy) if re.search(r"cxi\b|hsn|LUMI|VNI", step)
                ]
                assert not of_slingshot, (machine, signature.id)
    assert advised > 100
    line, slingshot = (
        OTHER_MACHINES["RoCE"],
        "nid001001:1:1 [0] NCCL INFO NET/OFI Selected provider is tcp, fabric is x (found 1 nics)",
    )
    assert "cxi" in str(read(line, slingshot).causes[0].remedy), "RoCE of the management network"


def test_with_gpus_of_another_maker_nobody_is_sent_to_lumi() -> None:
    absent = "nid001001:1:1 [0] find_ofi_provider:654 NCCL WARN NET/OFI Couldn't find any optimal provider"
    for library, is_lumi in (
        ("NCCL version 2.28.9+cuda13.0", False),
        ("RCCL version : 2.22.3", True),
        ("NCCL version 2.18.3+hip5.7", True),
    ):
        shown = str([cause.remedy for cause in read(f"nid001001:1:1 [0] NCCL INFO {library}", absent).causes])
        assert ("LUMI" in shown) is is_lumi, library


def test_on_efa_all_advice_is_for_efa() -> None:
    slingshot = ("cxi", "SLINGSHOT", "VNI", "LUMI", "/opt/cray", "may mislead")
    for lines, cause in (
        ([REQUEST.format(103, "4126 (Unresponsive receiver (reachable by EFA device but handshake failed)")], "efa-request-error"),
        ([REQUEST.format(5, "15 (Unreachable remote - never received a response")], "efa-request-error"),
        ([EFA, "n1:1:1 [0] NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument"], "endpoint-error-efa"),
        ([EFA, "n1:1:1 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: x"], "memory-registration-efa"),
        ([EFA, "n1:1:1 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -12, Error: x"], "memory-registration-used-up"),
        (["10:20:30 - NCCL WARN NET/OFI Only EFA provider is supported"], "efa-only"),
    ):  # fmt: skip
        report = read(*lines)
        shown = next(one for one in report.causes if one.id == cause)
        for text in (shown.summary, *shown.because, *map(str, shown.remedy)):
            assert not [word for word in slingshot if word in text], (cause, text)
    assert read(REQUEST.format(103, "4126 (Unresponsive receiver")).verdict == "ofi-efa"
