"""The knowledge base keeps its word: each entry knows its own example, noise stays silent, nothing backtracks."""

from __future__ import annotations

import re
import time
from itertools import product

import pytest

from lumiimg.nccl.lines import evidence_text, excerpt, messages
from lumiimg.nccl.prefilter import Prefilter, shape_of
from lumiimg.nccl.reader import LogReader, read_lines
from lumiimg.nccl.vocabulary import Weight, compiled, vocabulary
from lumiimg.toml import own_table
from tests.shared.remedies import COMMAND

VOCABULARY = vocabulary()
NOISE = own_table("lumiimg.nccl", "signatures.toml")["noise"]["examples"]
ENTRIES = VOCABULARY.entries
SIGNATURES = list(VOCABULARY.signatures.values())
HOSTILE_SIZE = 100_000


def test_each_entry_matches_its_own_example() -> None:
    prefilter = Prefilter(VOCABULARY)
    for entry in ENTRIES:
        line = entry.example.encode()
        texts = [message.text for message in messages(line)]
        assert any(
            entry.match(message) and any(hint in message.text for hint in entry.hints) for message in messages(line)
        ), entry.id
        assert not any(VOCABULARY.foreign.search(text) for text in texts), entry.id
        _, ((_, _, entries),) = prefilter.select(line)
        assert entry in entries, entry.id


def test_each_hint_is_found_by_the_beginning_of_its_longest_word() -> None:
    for hint, entries in VOCABULARY.by_hint:
        line = f"zzz qqq xxx {hint} yyy".encode()
        found = Prefilter(VOCABULARY).entries(line)
        assert {entry.id for entry in entries} <= {entry.id for entry in found}, hint
        assert len(max(shape_of(hint.encode()).split(), key=len)) >= 2, hint


def test_each_signature_names_its_source_and_what_to_do() -> None:
    for signature in SIGNATURES:
        assert signature.source, signature.id
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", signature.date), signature.id
        assert signature.remedy, signature.id


def test_texts_use_only_names_that_the_pattern_fills() -> None:
    for signature in SIGNATURES:
        (entry,) = [e for e in ENTRIES if e.id == signature.id]
        names = set(compiled(entry.pattern).groupindex)
        texts = [signature.summary, *signature.because, *signature.remedy]
        used = {name for text in texts for name in re.findall(r"(?<!\$)\{([a-z]+)\}", text)}
        assert used <= names, signature.id
        known = {e.id for e in ENTRIES}
        assert set(signature.given) | set(signature.unless) <= known, signature.id


def test_each_trouble_tells_what_leads_to_it() -> None:
    for signature in SIGNATURES:
        assert signature.because or signature.weight in {Weight.NOTE, Weight.ECHO}, signature.id
        for text in (signature.summary, *signature.because, *signature.remedy):
            assert text == text.strip(), signature.id
            assert not text.endswith("."), signature.id
            assert "\n" not in text, signature.id


REASON_LIMIT = 100


def reason_before_command(step: str) -> str | None:
    """Return what stands before the command of a remedy; None where there is no command."""
    starts = [0, *(m.end() for m in re.finditer(": ", step))]
    return next((step[:start] for start in starts if COMMAND.match(step, start)), None)


def test_each_remedy_is_a_command_with_at_most_a_short_reason_before_it() -> None:
    remedies = {one.id: one.remedy for one in SIGNATURES} | {one.id: one.remedy for one in VOCABULARY.advice}
    for name, remedy in remedies.items():
        for step in remedy:
            reason = reason_before_command(step)
            assert reason is not None, (name, step)
            assert len(reason) <= REASON_LIMIT, (name, step)


def test_return_codes_are_negative_and_have_names() -> None:
    codes = VOCABULARY.return_codes
    assert len(codes) == 38
    for value, code in codes.items():
        assert value == code.value < 0
        assert code.name.startswith("FI_E")
        assert code.text
    assert codes[-38].name == "FI_ENOSYS"


def test_a_return_code_is_a_number_wherever_a_group_has_its_name() -> None:
    for entry in ENTRIES:
        if "rc" in compiled(entry.pattern).groupindex:
            matches = [entry.match(m) for m in messages(entry.example.encode())]
            assert any(int(match["rc"]) for match in matches if match)


def test_no_pattern_leans_on_the_level_or_the_place_in_the_source() -> None:
    for entry in ENTRIES:
        assert not re.search(r"WARN|INFO|\.cc?\b", entry.pattern), entry.id


ORDINARY = (
    b"12: nid005101:60012:60480 [4] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f3a00000000 recvbuff 0x7f3a00000000 count 8 datatype 9 op 0 root 0 comm 0x55d0c8a1b2c0 [nranks=16] stream 0x55d0c8a1b2c0 task 1 globalrank 12",
    b"nid005101:60012:60480 [4] NCCL INFO ReduceScatter: opCount 2b sendbuff 0x7f3a0 recvbuff 0x7f3a0 count 134217728 datatype 9 op 0 root 0 comm 0x55d0c8a1b2c0 [nranks=1024] stream 0x55d0c8a1b2c0",
    b"/opt/venv/lib/python3.12/site-packages/torch/distributed/fsdp/_state_dict_utils.py:783: FutureWarning: Please use DTensor instead and we are deprecating ShardedTensor.",
    b"  warnings.warn(",
    b"Training:  42%|#### | 4200/10000 [12:31<17:18,  5.58it/s, loss=2.31, lr=0.0003]",
    b"0: [2026-11-21 10:00:00,123] [INFO] [train.py:212] step 4200 loss 2.3123 lr 3.0e-04 grad_norm 0.91 tokens/s 184213",
    b" iteration     100/  500000 | consumed samples:       102400 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.0E-05 | global batch size:  1024 | lm loss: 1.023E+01 | number of skipped iterations:   0 |",
    b'[rank0]:   File "/workspace/train.py", line 212, in <module>',
    b"[rank0]:     loss.backward()",
    b"INFO 11-21 10:00:00 metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.1 tokens/s",
    b"I1121 10:00:00.123456 1234 torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:786] [Rank 3] NCCL watchdog thread",
    b"nid005101:60012:60480 [4] NCCL INFO Channel 00/08 :    0   1   2   3   4   5   6   7",
    b"nid005101:60012:60480 [4] NCCL INFO Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->8 comm 0x55d0c8a1b2c0 nRanks 16 busId c1000",
    b"nid005101:60012:60480 [4] NCCL INFO group.cc:75 -> 2 [Async thread]",
    b"nid005101:60012:60480 [4] NCCL INFO P2P Chunksize set to 524288",
)


def test_what_the_gate_keeps_of_a_hint_is_rare() -> None:
    """The gate searches lines without digits and the letters a to f: what is left must still tell something."""
    for hint, _ in VOCABULARY.by_hint:
        kept = shape_of(hint.encode())
        assert len(kept) >= 4, hint
        assert [line for line in ORDINARY if kept in shape_of(line)] == [], hint


def test_a_channel_line_of_rccl_is_read_for_its_channel_only() -> None:
    line = b"n1:1:1 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0x7f00 nRanks 16\n"
    _, hits = Prefilter(VOCABULARY).select(line)
    assert [[e.id for e in entries] for _, _, entries in hits] == [["local-channel"]]


def test_no_id_is_given_twice() -> None:
    ids = [e.id for e in ENTRIES] + [a.id for a in VOCABULARY.advice]
    assert len(ids) == len(set(ids))


def test_noise_is_no_cause() -> None:
    for line in NOISE:
        assert [c.id for c in read_lines("j", [line]).causes] == ["nothing-decided"], line


ECHOES = {
    "n1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn0,hsn1": ("NCCL_SOCKET_IFNAME", "hsn0,hsn1"),
    "n1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set to hsn": ("NCCL_SOCKET_IFNAME", "hsn"),
    "n1:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.": ("NCCL_IB_DISABLE", "1"),
    "n1:1:1 [0] NCCL INFO NCCL_NET set by environment to AWS Libfabric": ("NCCL_NET", "AWS Libfabric"),
    "n1:1:1 [0] NCCL INFO RCCL_MSCCL_ENABLE set by environment to 0.": ("RCCL_MSCCL_ENABLE", "0"),
    "n1:1:1 [0] NCCL INFO NCCL_NET_PLUGIN set by environment to /opt/p/librccl-net.so": (
        "NCCL_NET_PLUGIN",
        "/opt/p/librccl-net.so",
    ),
    "SLURM_JOB_ID=1234567": ("SLURM_JOB_ID", "1234567"),
    "0: SLURM_NNODES=2": ("SLURM_NNODES", "2"),
    'export SLURM_JOB_PARTITION="standard-g"': ("SLURM_JOB_PARTITION", "standard-g"),
    'declare -x SLURM_JOB_NODELIST="nid[005101-005102,005110]"': ("SLURM_JOB_NODELIST", "nid[005101-005102,005110]"),
    "SLINGSHOT_VNIS=1024,1025": ("SLINGSHOT_VNIS", "1024,1025"),
    'declare -x SLINGSHOT_DEVICES="cxi0,cxi1,cxi2,cxi3"': ("SLINGSHOT_DEVICES", "cxi0,cxi1,cxi2,cxi3"),
    "SLINGSHOT_TCS=0xa": ("SLINGSHOT_TCS", "0xa"),
}


def test_variables_that_the_log_shows_are_read() -> None:
    for line, variable in ECHOES.items():
        assert read_lines("j", [line]).environment == (variable,), line


SCRIPTS = [
    "srun --export=ALL,SLURM_NNODES=2 ./a.out",
    'echo "SLURM_JOB_ID=$SLURM_JOB_ID"',
    "export SINGULARITYENV_SLINGSHOT_VNIS=1",
    "SLURM_JOB_USER=me",
]


def test_variables_of_a_script_are_not_those_of_the_job() -> None:
    for line in SCRIPTS:
        assert read_lines("j", [line]).environment == (), line


def test_what_holds_for_the_whole_job_is_read_whoever_prints_it() -> None:
    lines = [
        "n1:1:1 [0] NCCL INFO Bootstrap: Using hsn0:10.253.1.200<0>",
        "n2:1:1 [0] NCCL INFO Bootstrap : Using [0]hsn1:10.253.1.201<0>",
        "n1:1:1 [0] NCCL INFO NET/OFI Using transport protocol SENDRECV (platform set)",
        "n1:1:1 [0] NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
        "n1:1:1 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    ]
    transport = read_lines("j", lines).transport
    assert (transport.bootstrap, transport.protocol, transport.nics, transport.pxn) == (
        ("hsn0", "hsn1"),
        "SENDRECV",
        4,
        False,
    )


WORDINGS: dict[str, tuple[str, ...]] = {
    "plugin-absent": (
        "NET/Plugin: Could not find: librccl-net.so. Using internal network plugin.",
        "NET/Plugin : dlerror=librccl-net.so: cannot open shared object file: No such file or directory No plugin found (librccl-net.so), using internal implementation",
    ),
    "plugin-name-ofi": (
        "NET/Plugin: Could not find: ofi librccl-net-ofi.so. Using internal network plugin.",
        "NET/Plugin : Plugin load (librccl-net-ofi.so) returned 2 : librccl-net-ofi.so: cannot open shared object file: No such file or directory",
    ),
    "plugin-no-symbol": ("External network plugin /opt/p/libnccl-net.so is unsupported",),
    "dependency-missing": ("NET/Plugin: libjansson.so.4: cannot open shared object file: No such file or directory",),
    "slurm-switch-plugin": ("srun: error: Can't find plugin for switch/hpe_slingshot",),
    "glibc-too-old": (
        "NET/Plugin: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by /opt/p/librccl-net.so)",
    ),
    "libstdcxx-too-old": (
        "NET/Plugin: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /opt/p/librccl-net.so)",
    ),
    "segmentation-fault": ("srun: error: nid005101: task 0: Segmentation fault (core dumped)",),
    "cxi-slingshot-environment": (
        "libfabric:1:2::cxi:fabric:f():1<info> x1: SLINGSHOT_VNIS not found",
        "libfabric:1:2::cxi:f:f():1<warn> x1: Failed to find cxi0 in SLINGSHOT_DEVICES: cxi1",
        "libfabric:1:2::cxi:f:f():1<warn> x1: Failed to find service ID in SLINGSHOT_SVC_IDS: 5",
    ),
    "init-failed": ("NET/OFI aws-ofi-nccl initialization failed", "NET/OFI Initializing plugin failed"),
    "no-provider": (
        "NET/OFI OFI fi_getinfo() call failed: No data available",
        "NET/OFI No viable endpoint found for CXI provider.",
    ),
    "provider-not-fast": ("NET/OFI Selected Provider is tcp",),
    "protocol-failed": ("NET/OFI Failed to initialize sendrecv protocol",),
    "cxi-device": ("libfabric:1:2::cxi:domain:cxip_get_if():1<warn> x1: Failed to open CXI Device, ret: -19",),
    "cxi-domain-allocation": ("libfabric:1:2::cxi:f:f():1<warn> x1: Failed to allocate CXI Domain, ret: -22",),
    "cxi-vni-invalid": ("libfabric:1:2::cxi:f:f():1<warn> x1: No valid VNIs for cxi0 service ID 5",),
    "cxi-service-id": ("libfabric:1:2::cxi:f:f():1<warn> x1: Please provide a service ID via auth_key fields.",),
    "cxi-vni-not-found": ("cxi:ep_data:report_send_completion() TX error: (err: 5, VNI_NOT_FOUND)",),
    "cxi-service-cleanup": ("slurmstepd: error: switch_g_job_postfini: Device or resource busy",),
    "connect-failed": ("socketStartConnect: Connect to 10.120.24.10<52061> failed : No route to host",),
    "cxi-event-queue-overflow": ("libfabric:1:2::cxi:core:f():1<warn> x1: H/W Event Queue overflow detected.",),
    "memory-registration": ("NET/OFI Unable to register memory (type = 2) for device 5. RC: -12, Error: text",),
    "no-gpu": ("hipErrorNoDevice",),
}
"""Other words than those of the example, by the signature that must come first."""
NEEDS_MORE = {"plugin-file-name", "plugin-api-too-old", "cxi-device-passed-over", "interface-not-hsn", "plugin-crash"} | {
    "memory-registration-efa", "oneccl-libfabric-call", "oneccl-slow-mpi", "python-error"
}  # fmt: skip
"""Signatures that one line alone does not show."""


def test_each_signature_is_the_first_cause_of_its_example_and_of_its_other_wordings() -> None:
    for signature in SIGNATURES:
        texts = WORDINGS.get(signature.id, ())
        for text in texts if signature.id in NEEDS_MORE else (signature.example, *texts):
            assert [cause.id for cause in read_lines("j", [text]).causes][:1] == [signature.id], text
    assert WORDINGS.keys() <= {signature.id for signature in SIGNATURES}


def test_a_wrong_name_of_the_plugin_is_told_apart_from_no_plugin() -> None:
    line = "NET/Plugin: Could not find: libnccl-net.so. "
    assert [c.id for c in read_lines("j", [line]).causes] == ["plugin-absent"]
    assert [c.id for c in read_lines("j", ["RCCL version : 2.27.7-HEAD:1", line]).causes] == ["plugin-file-name"]


def test_memory_that_cannot_be_registered_is_another_matter_on_efa() -> None:
    error = "n1:1:1 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument"
    selected = "n1:1:1 [0] NCCL INFO NET/OFI Selected provider is {}, fabric is {} (found 4 nics)"
    for provider, cause in {"cxi": "memory-registration", "efa": "memory-registration-efa"}.items():
        causes = read_lines("j", [selected.format(provider, provider), error]).causes
        assert [c.id for c in causes] == [cause]
        assert "-22 (FI_EINVAL: " in causes[0].summary


def test_a_nic_that_cannot_be_opened_explains_why_tcp_was_taken() -> None:
    lines = [
        "libfabric:1:1795225159::cxi:domain:cxip_get_if():154<warn> n1: Failed to open CXI Device, ret: -2",
        "n1:1:1 [0] NCCL INFO NET/OFI Selected Provider is tcp",
        "n1:1:1 [0] NCCL INFO Using network AWS Libfabric",
    ]
    report = read_lines("j", lines)
    assert report.verdict == "ofi-other"
    assert [c.id for c in report.causes] == ["cxi-device-passed-over", "provider-not-fast"]
    assert "FI_ENOENT" in report.causes[0].summary


SETTINGS = {
    "NCCL_NET set by environment to Socket": "network-forced",
    "NCCL_NET set by environment to IB": "network-forced",
    "NCCL_NET_PLUGIN set by environment to none": "plugin-disabled",
    "NCCL_NET_PLUGIN set by environment to ": "plugin-disabled",
    "NCCL_P2P_DISABLE set by environment to 1": "peer-to-peer-disabled",
    "NCCL_P2P_LEVEL set by environment to LOC": "peer-to-peer-disabled",
    "NCCL_SHM_DISABLE set by environment to 1.": "shared-memory-disabled",
    "NCCL_NET_GDR_LEVEL set by environment to LOC": "gdr-disabled",
    "NCCL_NET_GDR_LEVEL set by environment to 0": "gdr-disabled",
}


def test_plugins_that_give_way_to_a_chosen_one_are_not_switched_off() -> None:
    """NCCL prints this of a list in NCCL_NET_PLUGIN, once one of its plugins has the communicator."""
    lines = ["n1:1:1 [0] NCCL INFO Disabling external plugins: aws", "n1:1:1 [0] NCCL INFO Using network Socket"]
    assert "plugin-disabled" not in [cause.id for cause in read_lines("j", lines).causes]


def test_settings_that_explain_a_slow_path_are_named() -> None:
    for text, signature in SETTINGS.items():
        assert read_lines("j", [f"n1:1:1 [0] NCCL INFO {text}"]).causes[0].id == signature, text


def test_no_eligible_providers_is_silent_where_a_selection_follows() -> None:
    lines = ["NET/OFI No eligible providers were found", "NET/OFI Selected provider is cxi, fabric is cxi"]
    assert [c.id for c in read_lines("j", lines).causes] == ["traffic-not-shown"]


@pytest.mark.threat
def test_a_hostile_line_takes_bounded_time() -> None:
    for entry in ENTRIES:
        head = entry.example[: len(entry.example) // 2]
        fillers = ("a", "lib", "/", ": ", "a.so: ", head, entry.example[:-1])
        started = time.process_time()
        for filler in fillers:
            compiled(entry.pattern).search((head + filler * HOSTILE_SIZE)[:HOSTILE_SIZE])
        assert time.process_time() - started < 1.0, entry.id


@pytest.mark.threat
def test_a_hostile_prefix_takes_bounded_time() -> None:
    for filler in ["n1:1:1 [0] ", "1:1:", "a.b-", "[0;", "\x1b[0", "@probe ", "[1,0]<stdout>:", "%20=", "-"]:
        reader = LogReader()
        started = time.process_time()
        reader.feed("j", (filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode())
        reader.feed("j", ("@probe log text=" + filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode())
        reader.feed("j", ("n1:1:1 [0] NCCL INFO Using network X\x1b[" + filler * HOSTILE_SIZE)[:HOSTILE_SIZE].encode())
        reader.report()
        assert time.process_time() - started < 1.0, filler


@pytest.mark.threat
def test_evidence_is_one_printable_line_of_a_sane_length() -> None:
    line = "n1:1:1 [0] NCCL INFO Using network Socket \x1b]0;owned\x07\u202e" + "x" * 5000
    (evidence,) = read_lines("j", [line]).proof
    assert evidence.text.isprintable()
    assert len(evidence.text) < 500
    assert evidence_text(excerpt("a\nb", (0, 1))) == "a\\nb"


def test_evidence_shows_the_message_at_the_end_of_a_long_line() -> None:
    (evidence,) = read_lines("j", ["|####" * 500 + "\rUsing network Socket"]).proof
    assert evidence.text == "Using network Socket"


def test_what_a_log_says_runs_nothing_in_a_command_that_is_proposed() -> None:
    """Each value that a remedy repeats, where the pattern takes it, as a stranger could have written it."""
    told = 0
    for signature in SIGNATURES:
        names = {name for step in signature.remedy for name in re.findall(r"\{(\w+)\}", step)}
        found = compiled(next(entry.pattern for entry in ENTRIES if entry.id == signature.id)).search(signature.example)
        for name, text in product(names, ("/x$(id)/", "a;id;", "`id`", "x|id|", "/x'&id&'/")):
            if found is None or found[name] is None:
                continue
            line = f"{signature.example[: found.start(name)]}{text}{signature.example[found.start(name) :]}"
            for cause in read_lines("log", [line]).causes:
                told += text in cause.summary
                assert not [step for step in cause.remedy if text in step]
    assert told
