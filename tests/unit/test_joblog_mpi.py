"""The cause of an MPI failure on libfabric is read from its error stack, and on EFA nobody is sent to Slingshot."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

from lumiimg.joblog import LogReport, read_lines
from lumiimg.joblog.vocabulary import vocabulary
from tests.shared.programs import sampled

STACK = tomllib.loads((Path(__file__).parents[1] / "fixtures/job-words.toml").read_text())["mpi-stack"]
HEADS, BETWEEN, CLEANED = STACK["heads"], STACK["between"], STACK["cleaned"]
EFA = "n1:1:1 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)"
REQUEST = (
    "n1:1:1 [0] NCCL WARN NET/OFI Request 0x7f completed with error. RC: {}. Error: {} My EFA addr: fi_addr_efa://[fe80::1]:0:1 My host id: i-0 "
    "Peer EFA addr: fi_addr_efa://[fe80::2]:0:8 Peer host id: N/A). Completed length: 0"
)


def read(*lines: str) -> LogReport:
    return read_lines("job.out", lines)


def test_the_last_line_of_an_error_stack_says_why_and_its_first_which_rank() -> None:
    for (name, head), end, cleaned in sampled(product(HEADS.items(), STACK["ends"], ([], CLEANED)), 40):
        last, cause = end["line"], end["cause"]
        for prefix in ("", "519: ", "x4310c3s2b0n0.hsn.cm.aurora.alcf.anl.gov 519: "):
            ended = read(*[f"{prefix}{line}" for line in (head, *BETWEEN, last)], *cleaned).ended
            assert ended.cause == cause, (name, last, prefix)
            assert ended.ranks in {None, "519"}, (name, last, prefix)
            assert ended.ranks == "519" or not (prefix == "519: " or name == "Cray MPICH"), (name, last, prefix)


def test_what_died_before_a_peer_was_missed_is_the_cause() -> None:
    stack = [
        HEADS["Cray MPICH"],
        *BETWEEN,
        next(end["line"] for end in STACK["ends"] if end["cause"] == "mpi-peer-not-found"),
    ]
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
