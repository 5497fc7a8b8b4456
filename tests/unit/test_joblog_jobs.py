"""Which files belong to one job: files of several jobs are never read as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.joblog import jobs_of
from tests.shared.joblog import job_log

ONE = (
    [f"rank.{number}.log" for number in range(1200)],
    ["slurm-81.out", "slurm-81.err", "dumps/trace_0", "sacct.txt"],
    [f"train-7654321-{task}.out" for task in range(12)],
    [f"7654321.{rank}" for rank in range(12)],
    ["slurm-7654321.out", "lumiimg-7654321/nccl/nid005001.61234.log", "lumiimg-7654321/nccl/nid005002.71234.log"],
    ["nid005001.61234.log", "nid005002.71234.log"],
    ["none_abc/attempt_0/0/stdout.log", "none_def/attempt_0/0/stdout.log"],
    ["job.o7654321", "job.e7654321"],
)
SEVERAL = (
    [[f"slurm-{number}.out"] for number in (7, 8, 12)],
    [[f"slurm-12_{task}.out"] for task in range(3)],
    [[f"train-{job}-{task}.out" for task in range(3)] for job in (7654321, 7654322)],
    [[f"{job}.{rank}" for rank in range(3)] for job in (7654321, 7654322)],
    [[f"{job}/rank{rank}.log" for rank in range(3)] for job in (7654321, 7654322)],
    [[f"train-20261130-{job}.out"] for job in (7654321, 7654322)],
    [["job.o7654321", "job.e7654321"], ["job.o7654322", "job.e7654322"]],
)


def put(folder: Path, names: list[str], text: str = "") -> list[str]:
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        host, _, pid = path.name.removesuffix(".log").partition(".")
        path.write_text(text or f"{host}:{pid}:{pid} [0] NCCL INFO Using network Socket\n")
    return [str(folder / name) for name in names]


@pytest.mark.parametrize("names", ONE, ids=lambda names: str(names[0]))
def test_files_of_one_job_are_one(names: list[str], tmp_path: Path) -> None:
    assert [len(job.files) for job in jobs_of(put(tmp_path, names))] == [len(names)]


@pytest.mark.parametrize("jobs", SEVERAL, ids=lambda jobs: str(jobs[0][0]))
def test_files_of_several_jobs_are_apart(jobs: list[list[str]], tmp_path: Path) -> None:
    files = [put(tmp_path, names) for names in jobs]
    assert [sorted(job.files) for job in jobs_of([file for of in files for file in of])] == [sorted(of) for of in files]


def test_the_text_says_whose_it_is_where_names_do_not(tmp_path: Path) -> None:
    files = [*put(tmp_path, ["a.out", "b.out"], "SLURM_JOB_ID=71\n"), *put(tmp_path, ["c.out"], "SLURM_JOB_ID=72\n")]
    assert [job.number for job in jobs_of(files)] == ["71", "72"]
    shared = "n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 commId 0x1234567 - Init START\n"
    tasks = put(tmp_path, ["slurm-12_0.out", "slurm-12_1.out"], shared)
    assert [job.number for job in jobs_of(tasks)] == ["12"]


def test_files_that_share_no_communicator_are_of_several_jobs(tmp_path: Path) -> None:
    def of(*ids: int) -> str:
        init = "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 commId"
        return "".join(f"n1:1:1 [0] NCCL INFO {init} 0x{id_:016x} - Init START\n" for id_ in ids)

    good, bad, other = (
        put(tmp_path, [f"{name}.out"], of(*ids))[0]
        for name, ids in (("good", (1, 2)), ("bad", (3,)), ("other", (2, 4)))
    )
    silent = put(tmp_path, ["silent.out"], "step 1\n")[0]
    ranks = [put(tmp_path, [f"rank{rank}.out"], of(rank + 8))[0] for rank in range(2)]
    assert [job.files for job in jobs_of([good, bad, other])] == [[good, other], [bad]]
    runs = [put(tmp_path / run, ["run.out"], of(number))[0] for number, run in enumerate(("before", "after"), 20)]
    assert [job.files for job in jobs_of(runs)] == [[run] for run in runs]
    nodes = [put(tmp_path / f"nid{number}", ["run.out"], of(number))[0] for number in (30, 31)]
    for together in ([good, other], [good, bad, silent], ranks, nodes):
        assert [job.files for job in jobs_of(together)] == [together]


def test_files_of_several_jobs_are_not_followed_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = put(tmp_path, ["slurm-7.out", "slurm-8.out"])
    assert main(["log", "--follow", first, second]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert "files of 2" in said
    assert f"lumiimg log --follow {second}" in said


def test_each_job_has_its_own_answer_the_worst_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, sick in ((7654321, 0), (7654322, 1), (7654323, 0)):
        (tmp_path / f"slurm-{number}.out").write_bytes(b"".join(job_log(16, 0, sick=frozenset({1} if sick else ()))))
    assert main(["log", str(tmp_path)]) == ExitCode.NO
    text = capsys.readouterr().out
    assert text.startswith("NO for 1 job, yes for 2 (of 3)\n")
    assert text.index("slurm-7654322") < text.index("slurm-7654321")
    assert main(["log", str(tmp_path), "--json"]) == ExitCode.NO
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["job"], line["answer"]) for line in lines] == [
        ("7654321", "good"),
        ("7654322", "no"),
        ("7654323", "good"),
    ]
    assert main(["log", str(tmp_path), "--junit", str(tmp_path / "x.xml")]) == ExitCode.BAD_INPUT
