"""The cause of a job's end comes first: the death that led to the others, and never one that is only quoted."""

from __future__ import annotations

import cProfile
from itertools import product

from lumiimg.check.run.log_answer import LogAnswer
from lumiimg.core.findings import Severity
from lumiimg.joblog import Confidence, How, LogReader, LogReport, Verdict, read_lines
from tests.shared.job_deaths import DATA, DEATHS, EXITED, FRAMES, NETWORKS, died, job
from tests.shared.joblog import read_files
from tests.shared.programs import sampled

VERDICTS = {"cxi": "ofi-cxi", "tcp": "socket", "none": "none"}
LINES, FOLLOWS = DATA["lines"], DATA["follows"]
RANK_DIED = [(row["cause"], row["lines"]) for row in DATA["cancel"]["died"]]
CLEARED, CANCELLED = DATA["cancel"]["cleared"], DATA["cancel"]["cancelled"]


def read(lines: list[str]) -> LogReport:
    return read_lines("job.out", lines)


def ended(report: LogReport) -> str | None:
    """Return what certainly ended a job, not only probably."""
    end = report.ended
    return end.cause if end.leads and end.is_failure and not end.is_likely else None


def ended_by(lines: list[str]) -> str | None:
    return ended(read(lines))


def raised(name: str) -> list[str]:
    """Return what only the program prints about a death."""
    return [line for line in died(name, 3, cascade=False) if "srun" not in line]


def steps(number: int) -> list[str]:
    return [f"0: step {step} loss 2.3" for step in range(number)]


def exited() -> list[str]:
    return [line.format(rank=3, node="nid005101") for line in EXITED]


def test_of_an_error_whose_rank_no_line_says_none_is_named() -> None:
    ending = read([*job("cxi", 0), "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB"]).ended
    assert (ending.cause, ending.ranks, ending.node) == ("gpu-out-of-memory", None, None)


LAST_WORDS = (
    "ERROR: the configuration has no data",
    "2026-11-24 10:00:00,000 - train - ERROR - no data for epoch 3",
    "[2026-11-24 10:00:00,000] [ERROR] [trainer.py:319:fit] no data for epoch 3",
    "Training failed with exit code 1",
    "ERROR: command returned non-zero exit status 2",
    "Aborted",
    "KeyboardInterrupt",
    "Received SIGTERM: 15",
    "Died at train.pl line 3.",
)
HARMLESS = (
    "Max error: tensor(0.1)",
    "relative error: 1e-5",
    "0 errors, 12 passed",
    "Finished with exit code 0",
    "WARNING: the last upload failed with exit code 1",
    "The log says: ERROR: no data",
    "Done: job never failed",
)


def test_last_words_that_report_a_failure_leave_the_end_open() -> None:
    for words, then in product(LAST_WORDS, ([], ["", "wandb: 1 file was written"])):
        report = read([*job("cxi", 0, 3), words, *then])
        assert (report.severity, report.causes[0].id) == (Severity.UNKNOWN, "failure-reported"), words
        assert words in report.causes[0].evidence[0].text
        assert report.network_severity is Severity.OK
        assert read([*job("cxi", 0, 3), words, *steps(3)]).severity is Severity.OK, words
    reader = LogReader()
    reader.feed("job.out", "\n".join([*job("cxi", 0, 3), ""]).encode())
    reader.feed("job.out", LAST_WORDS[0].encode())  # a line that may be cut off
    assert reader.report().ended.cause == "failure-reported"
    for words in HARMLESS:
        assert read([*job("cxi", 0, 3), words]).severity is Severity.OK, words


def test_deaths_as_users_paste_them_and_as_slurm_reports_them() -> None:
    for line, end in DATA["pasted"].items():
        assert ended_by(["step 1", line]) == end, line
    for line, end in DATA["of_slurm"].items():
        lines = ["       JobID    JobName    Account  AllocCPUS      State ExitCode", line]
        assert ended_by([*job("cxi", 0, 3), *lines]) == (end or None), line
    bar = "20%|██        | 10/50 [1:45:54<7:03:50, 635.76s/it] 22%|██▏       | 11/50 [1:56:28<6:52:58, 635.36s/it]"
    line = "slurmstepd: error: *** JOB 42187 ON clr1247 CANCELLED AT 2022-04-14T16:17:16 DUE TO TIME LIMIT ***"
    assert ended_by([f"{bar}{line}"]) == "time-limit", "behind a progress bar"


def test_of_two_deaths_the_first_is_the_cause_but_for_slurms_word_of_a_kill() -> None:
    first, then = died("HIP memory", 3, cascade=False), died("segfault", 5)
    assert ended_by([*job("cxi", 0, 3, 5), *first, *then]) == "gpu-out-of-memory"
    assert ended_by([*job("cxi", 0, 3, 5), *then, *first]) == "segmentation-fault"
    word = [line for line in died("no word", 3) if "srun" not in line]
    for name in [name for name in DEATHS if name not in {"no word", "unknown", "meeting", "bus error"}]:
        assert ended_by([*job("cxi", 0, 3, 9), *word, *died(name, 3, cascade=False)]) == DEATHS[name].id, name


def test_an_error_that_the_program_outlived_is_not_what_ended_it() -> None:
    caught = raised("HIP memory")
    for end in ["time limit", "cancelled", "node failed"]:
        last = [*steps(300), *died(end, 0, cascade=False)]
        assert ended_by([*job("cxi", 0, 3), *caught, *last]) == DEATHS[end].id, end
        assert ended_by([*job("cxi", 0, 3), *caught, *exited(), *last]) == "gpu-out-of-memory", end
    for number, ending in ((300, "gpu-out-of-memory"), (3000, "step-ended")):
        assert ended_by([*job("cxi", 0, 3), *caught, *steps(number), *exited()]) == ending
    report = read([*job("cxi", 0, 3), *raised("port"), *steps(300)])
    assert (ended(report), report.severity) == (None, Severity.OK), "it changes no answer"
    assert "port-taken" in [cause.id for cause in report.causes]
    assert ended_by([*job("cxi", 0, 3), *raised("quota"), *[""] * 20_000]) is None
    # a process that reports its network later
    own = "nid005101:103:1 [0] NCCL INFO"
    lines = [f"{own} {line.format(rank=3)}" for line in NETWORKS["cxi"]]
    error = "nid005101:103:1 [0] init.cc:1 NCCL WARN HIP failure 'out of memory'"
    assert ended_by([*lines[:3], error, *lines[3:]]) is None
    assert ended_by([*lines, error]) is not None


def test_an_error_near_the_end_of_a_log_is_likely_its_end_and_leaves_no_green_answer() -> None:
    for after, name in product(LINES["after_an_error"], ["HIP memory", "quota", "module", "no GPUs", "NaN"]):
        caught = raised(name)
        report = read([*job("cxi", 0, 3), *caught, after])
        assert (report.ended.cause, report.ended.how) == (DEATHS[name].id, How.DIED), (after, name)
        assert (report.ended.is_likely, report.severity) == (True, Severity.UNKNOWN), (after, name)
        assert "likely)" in report.headline, (after, name)
        assert (report.verdict, report.confidence) == (Verdict.OFI_CXI, Confidence.PROVED), (after, name)
        assert report.causes[0].id == DEATHS[name].id, (after, name)
        for more in (["5: step 14"] * 100, job("cxi", 5)):
            report = read([*job("cxi", 0, 3), *caught, after, *more])
            assert (report.ended.cause, report.severity) == (None, Severity.OK), (after, name)
            assert DEATHS[name].id in [cause.id for cause in report.causes], (after, name)


def test_with_a_traceback_near_its_end_no_log_is_green() -> None:
    for tag, error in product(
        ["", "3: ", "[rank3]: ", "(EngineCore_0 pid=638) ERROR 11-24 10:00:00 [core.py:700] "],
        ["KeyError: 'x'", "AssertionError: batch size", "KeyboardInterrupt", "x.MyError"],
    ):
        lines = [f"{tag}{line}" for line in (*FRAMES, "    f(x)", error)]
        for end in (lines, [*lines, ""], [*lines, *lines], [*lines, "done"]):
            report = read([*job("cxi", 0, 3), *end])
            assert report.ended.cause in {"python-error", "assertion-failed", "end-unclear"}, (tag, error)
            assert (ended(report), report.severity) == (None, Severity.UNKNOWN), (tag, error)
        assert read_files(("out", job("cxi", 0, 3)), ("err", lines)).severity is Severity.UNKNOWN, (tag, error)
        assert read([*job("cxi", 0, 3), *lines, *steps(120)]).severity is Severity.OK, (tag, error)
    # in a job on one node, nothing is said about other nodes
    own = "nid005101:103:1 [0] NCCL INFO"
    lines = [f"{own} comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0", f"{own} Using network Socket"]
    assert read(lines).severity is Severity.OK
    report = read([*lines, *FRAMES, "KeyError: 'x'"])
    assert (report.severity, report.causes[0].id) == (Severity.UNKNOWN, "python-error")
    assert "other nodes" not in report.headline


def test_what_a_program_only_warns_of_or_ignores_ended_nothing() -> None:
    for name, warning in sampled(product(DEATHS, LINES["before_a_warning"]), 80):
        reported = [warning + line.partition(": ")[2] for line in raised(name)]
        for before in (job("cxi", 0, 3), []):
            assert ended_by([*before, *reported]) is None, (name, warning)
    for error in LINES["ignored"]:
        ignored = "Exception ignored in: <function Pool.__del__ at 0x7f00>"
        for lines in ([ignored, *FRAMES, "    f(x)", error], [ignored, error]):
            report = read([*job("cxi", 0, 3), *lines])
            assert (ended(report), report.severity) == (None, Severity.OK), error


def test_an_error_is_the_end_where_only_what_follows_on_an_end_comes_after_it() -> None:
    for name, after in product(["HIP memory", "quota", "module"], FOLLOWS.values()):
        assert ended_by([*job("cxi", 0, 3), *raised(name), *after]) == DEATHS[name].id, (name, after)
    # wherever a block ends
    lines = [*job("cxi", 0, 3), *raised("quota"), *FOLLOWS["another rank's traceback"]]
    text = "".join(f"{line}\n" for line in lines).encode()
    for after, ends in ((b"", True), (b"step 14\n", False)):
        for cut in range(0, len(text), 97):
            at = text.find(b"\n", cut) + 1
            reader = LogReader()
            for block in filter(None, (text[:at], text[at:] + after)):
                reader.feed("job.out", block)
            assert (ended(reader.report()) is not None) is ends, cut
    assert ended(read_files(("out", job("cxi", 0, 3)), ("err", died("quota", 3)))) == "quota-exceeded", (
        "in a file of its own"
    )


def test_what_the_network_died_of_is_the_verdict_and_needs_no_other_word() -> None:
    lines = [
        "nid005101:103:1 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so.",
        "nid005101:103:1 [0] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.",
    ]
    report = read([*lines, *died("no word", 3)])
    assert (report.verdict, report.ended.leads, report.ended.how) == (Verdict.PLUGIN_MISSING, False, How.DIED)
    crashed = "srun: error: nid005101: task 3: Segmentation fault (core dumped)"
    started = "nid005101:103:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.18.0"
    assert ended_by([started, crashed]) == "plugin-crash"
    assert ended_by([started, "nid005101:103:1 [0] NCCL INFO Using network Socket", crashed]) == "segmentation-fault"


MARKS = [
    "    ",
    "# ",
    "- ",
    "> ",
    "+",
    "item 12: ",
    "| 3 | ",
    "The model wrote: ",
    '+ grep "',
    "E       ",
    "AssertionError: ",
]


def test_a_death_that_is_quoted_ends_nothing() -> None:
    for name, mark in sampled(product(DEATHS, MARKS), 80):
        quoted = [mark + line.removeprefix("3: ") for line in died(name, 3, cascade=False)]
        quiet = [f"step {number}" for number in range(len(quoted) + 2)]
        report = read([*job("cxi", 0, 3), *quoted, *quiet])
        assert (ended(report), report.severity) == (None, Severity.OK), (name, mark)
        assert ended_by([*quoted, *quiet]) is None, (name, mark)


ROWS = (
    "{job}|{state}|{code}",
    "{job}|train|{state}|{code}",
    "{job:<12}     train  project_4+      512 {state:>13} {code:>8} ",
)
"""Rows of sacct, with --parsable2 and in columns."""


def test_of_sacct_the_rows_count_that_are_of_the_job_as_it_ended() -> None:
    for (state, end), row in sampled(product(DATA["state"].items(), ROWS), 9):

        def end_of(own: str, *rows: tuple[str, str], row: str = row) -> str | None:
            table = [row.format(job=job, state=of, code="0:0" if of == "COMPLETED" else "1:0") for job, of in rows]
            number = [f"SLURM_JOB_ID={own}"] if own else []
            report = read_files(("out", [*number, *job("cxi", 0, 3)]), ("states", table))
            assert report.severity is (Severity.PROBLEM if report.ended.cause else Severity.OK)
            return ended(report)

        good, bad = ("4242", "COMPLETED"), ("4242", state)
        for own in ("", "4242"):
            assert end_of(own, good) is None
            assert end_of(own, bad) == end_of(own, ("4242.0", state), bad) == end, (state, row)
            assert end_of(own, good, ("4242.0", state)) == end, "the script went on behind its step"
            assert end_of(own, bad, ("4242.0", state), good, ("4242.0", "COMPLETED")) is None, "queued again"
            assert end_of(own, good, bad) == end, (state, row)
        assert end_of("4242", ("4200", state), good, ("4300.0", state)) is None, "of other jobs"
        assert end_of("4242", ("4200", "COMPLETED"), bad, ("4300", "COMPLETED")) == end, (state, row)
        assert end_of("4250", ("4242_7", state)) == end, "an array's own number is another one"


def test_a_launchers_word_that_a_process_failed_is_never_overlooked() -> None:
    for line in LINES["of_an_end"]:
        before = [*job("cxi", 0, 3), *steps(200)]
        report = read([*before, line])
        how = {
            "Killed": "worker-killed",
            "signal 9": "worker-killed",
            "Aborted": "aborted",
            "MPI_Abort": "mpi-abort",
            "(raylet) A": "ray-worker-ended",
        }
        assert report.ended.cause == next((how[word] for word in how if word in line), "step-ended"), line
        assert report.severity is Severity.PROBLEM, line
        assert ended_by([*before, *raised("quota"), line]) == "quota-exceeded", line
        if line.startswith(("srun: error: ", "slurmstepd: error: ")):
            for text in ("Saving checkpoint to /scratch/x ...", "loss: 2.1 ", "━━━━━ 50/100"):
                assert read([*before, f"{text}{line}"]).severity is Severity.PROBLEM, (text, line)
        for quoted in (f"The log says: {line}", f"# {line}", f"AssertionError: {line}"):
            assert read([*before, quoted]).severity is Severity.OK, line


def test_a_command_names_the_job_where_the_log_says_its_number() -> None:
    for line in LINES["numbered"]:
        for lines, number in (
            ([line], "4711"),
            ([line, f"The log says: {line.replace('4711', '42')}"], "4711"),
            ([line, line.replace("4711", "4712")], "JOBID"),
            (["SLURM_JOB_ID=4711)(rm", ""], "JOBID"),
            ([], "JOBID"),
        ):
            report = read([*lines, *job("cxi", 0, 3), *raised("HIP memory"), "done"])
            proposed = [step.concluded({}) for cause in report.causes for step in cause.remedy if "sacct -j" in step]
            assert all(f"sacct -j {number} " in step for step in proposed), line
            assert all((step.command is None) == (number == "JOBID") for step in proposed), "a word to be filled in"
            assert proposed or report.ended.cause, line


def test_a_job_is_cancelled_only_where_no_process_had_died_before() -> None:
    """srun --kill-on-bad-exit, which lumiimg's job scripts use, ends a step with the messages of a cancelled one."""
    for (end, death), cleared, word, network in sampled(product(RANK_DIED, ["", *CLEARED], CANCELLED, NETWORKS), 120):
        between = [cleared] if cleared else []
        start = job(network, 0, 3, 9)
        report = read([*start, *death, *between, word])
        assert (ended(report), report.severity) == (end, Severity.PROBLEM), (death, cleared, word)
        assert "cancelled" not in [cause.id for cause in report.causes], (death, cleared, word)
        # the same messages, and only then the death that they led to
        after = [] if death[0].startswith("3: Tr") or "Segm" in death[0] else death
        assert ended_by([*start, word, *between, *after]) == "cancelled", (death, cleared, word)
        assert ended_by([*start, *between, *after, word]) == ("cancelled" if between or not after else end), death
    for end, death in RANK_DIED:
        late = ended_by([*job("cxi", 0, 3), *death, *steps(3000), CANCELLED[0]])
        assert late == (end if end in {"segmentation-fault", "bus-error"} else "cancelled"), "the job went on"


def test_a_rank_that_failed_is_named_in_whatever_order_slurm_says_so_and_nobody_who_cancelled_without_a_sign_of_that() -> (
    None
):
    for (expected, orders), network in product(DATA["clear"]["orders"].items(), NETWORKS):
        for order in orders.split(", "):
            words = [DATA["clear"]["says"][name] for name in order.split()]
            for lines in (words, [f"4: {line}" if "slurmstepd" in line else line for line in words]):
                ended = read([*job(network, 0, 3, 9), *lines]).ended
                assert f"{ended.cause} {ended.ranks or ''}" == expected, (order, network)
                assert ended.how == ("cancelled" if expected == "cancelled " or "aborted" in expected else "died"), (
                    order
                )
            apart = read_files(("out", job(network, 0, 3, 9)), ("err", words)).ended
            assert apart.cause == expected.split()[0], order


def test_a_bus_error_behind_the_end_of_a_step_is_no_cause_of_it() -> None:
    for (end, (death,)), cleared in product([row for row in RANK_DIED if row[0] == "bus-error"], CLEARED):
        for start in (job("cxi", 0, 3), []):
            assert ended_by([*start, death, cleared]) == end, (death, cleared)
            report = read([*start, cleared, death])
            assert report.ended.cause == "step-cancelled", (death, cleared)
            assert [cause.id for cause in report.causes if cause.id == end] == [], (death, cleared)
            out_of_memory = "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0."
            assert ended_by([*start, cleared, death, out_of_memory]) == "out-of-memory", "Slurm says it last"
        assert read_files(("out", [cleared]), ("err", [death])).severity is Severity.PROBLEM


def test_of_a_job_out_of_time_the_nodes_that_were_on_tcp_are_named_first() -> None:
    limit = "slurmstepd: error: *** JOB 4242 ON nid005101 CANCELLED AT 2026-11-24T16:20:46 DUE TO TIME LIMIT ***"
    cxi, tcp, many = job("cxi", 0, 1), job("tcp", 8, 9), job("tcp", 8, 16, 24)
    for lines, first, named in (
        ([*cxi, *tcp], "some-nodes", "nid005102"),
        ([*cxi, *many], "nodes-on-tcp", "nid[005102-005104]"),
        (many, "nodes-on-tcp", "nid[005102-005104]"),
        (cxi, "time-limit", ""),
        ([], "time-limit", ""),
    ):
        for prefix in ("", "0: "):
            report = read([*lines, prefix + limit])
            assert (report.ended.cause, report.causes[0].id) == ("time-limit", first), lines
            assert named in report.causes[0].summary, lines
            assert named in (LogAnswer(report).advice.why or ""), lines
            assert "time-limit" in [cause.id for cause in report.causes], lines
    socket = job("tcp", 8, 16)
    usual, late = (LogAnswer(read(lines)).advice.next for lines in (socket, [*socket, limit]))
    assert late == usual, "the cure is the same"
    own = "nid005101:103:1 [0] NCCL INFO"
    alone = [f"{own} comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0", f"{own} Using network Socket"]
    assert "nodes-on-tcp" not in [cause.id for cause in read([*alone, limit]).causes], "nothing had to cross"


def test_errors_of_many_ranks_each_in_its_own_file_are_read_in_proportion() -> None:
    def calls(ranks: int) -> int:
        reader = LogReader()
        for rank in range(ranks):
            error = ["Exception ignored in: <x>", "step 1"] if rank % 2 else [*FRAMES, "RuntimeError: x"]
            lines = [*job("cxi", rank), *error]
            reader.begin(f"{rank}.out")
            reader.feed(f"{rank}.out", "".join(f"{line}\n" for line in lines).encode())
        profile = cProfile.Profile()
        assert profile.runcall(reader.report).ended.cause == "python-error"
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(600) < 5 * calls(150)


# -- the line that is quoted

OOM = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB"
P2P = "NCCL_P2P_DISABLE set by environment to 1."


def test_the_line_of_the_rank_that_died_is_quoted_and_not_that_of_one_that_went_on() -> None:
    for here, there in ((OOM, f"{OOM}. GPU 0 has a total capacity of 64 GiB"), (OOM, OOM)):
        caught = [f"0: {line}" for line in (*FRAMES, here)]
        ended = [f"9: {line}" for line in (*FRAMES, there)]
        exited = [line.format(rank=9, node="nid005102") for line in EXITED]
        report = read([*job("cxi", 0, 9), *caught, *job("cxi", 0), *ended, *exited])
        assert (report.ended.ranks, report.causes[0].id) == ("9", report.ended.cause)
        assert report.causes[0].evidence[0].text.startswith("9: ")


def test_of_a_job_with_slow_nodes_the_line_of_a_slow_one_is_quoted() -> None:
    lines = [f"{rank}: nid00510{1 + rank // 8}:{100 + rank}:1 [0] NCCL INFO {P2P}" for rank in (0, 3, 9)]
    report = read([*lines, *job("cxi", 0, 3), *job("tcp", 9)])
    assert report.verdict == "mixed"
    quoted = [cause.evidence[0].text for cause in report.causes if cause.evidence]
    assert any(P2P in text for text in quoted)
    assert all(text.startswith("nid005102") for text in quoted)
