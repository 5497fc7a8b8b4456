"""Of `joblog/`, and what else is read out of what programs printed."""

from __future__ import annotations

import contextlib
from unittest import mock

from lumiimg.check.probe import judgement
from lumiimg.check.probe.container import ProbeRun, read_events
from lumiimg.check.run import execution
from lumiimg.check.run.log_answer import LogAnswer
from lumiimg.check.static.process import StaticResult
from lumiimg.cluster.nodes import slurm
from lumiimg.cluster.nodes.slurm import seconds
from lumiimg.core.errors import BadInputError, FailedError, MissingHereError, UndecidedError
from lumiimg.core.text import hostlist
from lumiimg.engine import engine, failures
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.fabric.path import FabricPath
from lumiimg.fetch import mirrors
from lumiimg.fetch.mirrors import Mirrors, general_index
from lumiimg.host import import_calls
from lumiimg.host.job_process import JobProcess
from lumiimg.joblog import LogReader
from lumiimg.joblog.bandwidth import BandwidthReader
from lumiimg.joblog.files import Tail, blocks, refuse_binary
from lumiimg.joblog.flight import parsed, progress, stalled
from lumiimg.joblog.lines import messages, probe_event
from lumiimg.report.json_output import json_text
from lumiimg.report.text import show
from lumiimg.report.views.log import log_document
from lumiimg.resolve import python_project, uv
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import FIXTURES, answering, parts, printed, scratch, text_of, written

_WELL = (FIXTURES / "flight/nccl_trace_rank_0").read_bytes()
_ENVIRONMENT = {"PATH": "/bin:/usr/bin"}


@target(
    "log",
    "joblog.reader.LogReader",
    "joblog.bandwidth.BandwidthReader",
    "joblog.lines.messages",
    "joblog.lines.probe_event",
    "joblog.lines.without_records",
    "joblog.learned.LearnedPrefix",
    "joblog.gate.Gate",
    "joblog.vocabulary.vocabulary",
    "joblog.network",
    "joblog.death",
    "joblog.summary",
    "joblog.state",
    refuses=(),
    rounds=10,
)
def _log(data: bytes) -> str:
    """A log, in two blocks: what is printed of it, and its JSON."""
    for line in data.split(b"\n"):
        messages(line)
        probe_event(text_of(line))
    tables = BandwidthReader()
    tables.feed("job.out", data, lambda number: number)
    tables.measurements(lambda position: ("job.out", position))
    reader = LogReader()
    cut = data.find(b"\n", len(data) // 2) + 1
    for block in filter(None, (data[:cut], data[cut:].removesuffix(b"\n") + b"\n", data[cut:])):
        reader.feed("job.out", block)
    report = reader.report()
    answer = LogAnswer(report)
    json_text("log", answer)
    assert all(evidence.text.isprintable() for evidence in report.proof)
    return printed(show, log_document(["log"], answer), verbose=True)


@target("log-file", "joblog.files.blocks", "joblog.files.refuse_binary", "joblog.files.Tail", form="bytes")
def _source(data: bytes) -> None:
    path = str(written(data, "job.out"))
    for _ in Tail(path).read():
        pass
    refuse_binary(path)
    for _ in blocks(path, lambda _: None):
        pass


@target("flight-dump", "joblog.flight.parsed", "joblog.flight.stalled", form="bytes")
def _flight(data: bytes) -> None:
    """A dump of a flight recorder, beside one that is well."""
    dump = parsed(data, "nccl_trace_rank_1")
    stalled([dump, parsed(_WELL, "nccl_trace_rank_0")])
    progress([dump])


@target("strace", "host.import_calls.read_traces")
def _strace(data: bytes) -> None:
    calls = import_calls.read_traces([written(data, "trace")])
    assert all(call.path.startswith("/") for call in calls)
    import_calls.count(calls)


@target("import-answer", "host.import_calls._answer", "host.import_calls._bound_path_test", form="json")
def _startup(data: bytes) -> None:
    """What Python answers in a container: an answer of JSON in its line, with the mounts."""
    bench = import_calls._Bench(scratch(), "torch", "strace", _ENVIRONMENT)
    with answering(import_calls, import_calls._ANSWER.encode() + data):
        answer = import_calls._answer(bench.run(["python3"]), bench)
    import_calls._bound_path_test(answer.mounts)("/usr/lib/x")


@target(
    "probe-output",
    "check.probe.container.read_events",
    "check.probe.judgement.probe",
    "check.probe.judgement.judge_simulation",
    "check.run.execution.count_gpus",
    rounds=10,
)
def _probe(data: bytes) -> None:
    """What any of the programs printed in a container, or a library in its process."""
    output = text_of(data)
    run = ProbeRun("probe", data[:1] == b"@", timed_out=False, output=output, events=read_events(output))
    judgement.judge_simulation(run, "2.22.3", "/x.so", inconclusive=None)
    says = mock.Mock(handshake=lambda *_, **__: run, rccl_probe=lambda _: run, run=lambda *_: run)
    says.having.return_value = says
    job = JobProcess("/bin/python3", is_python=data[-1:] == b"\n", framework="torch")
    judgement.probe(says, StaticResult(FabricPath(rccl="/x.so"), "/lib/ld.so", job=job), inconclusive=None)
    with contextlib.suppress(MissingHereError):
        execution.count_gpus(says, "/x.so")


@target(
    "programs",
    "engine.engine.find_engine",
    "engine.failures.explain",
    "engine.failures.last_words",
    "fetch.mirrors.general_index",
    "core.text.hostlist",
    "cluster.nodes.slurm.seconds",
    "resolve.uv.first_paragraph",
    "resolve.uv.requirers_in",
    "resolve.python_project.refuse_cuda",
    refuses=(BadInputError, MissingHereError),
    rounds=120,
)
def _programs(data: bytes) -> str:
    """What an engine, Slurm, pip and uv print: a version, a failure, a help, names of nodes, a time, who requires what."""
    text = text_of(data)
    hostlist(text.split())
    seconds(text)
    failures.explain(text)
    failures.last_words(text)
    with contextlib.suppress(FailedError):
        python_project.refuse_cuda(uv.requirers_in(text))
    with contextlib.suppress(MissingHereError), answering(mirrors, data):
        general_index(Mirrors({}), {})
    with contextlib.suppress(MissingHereError), answering(engine, data):
        engine.find_engine({"PATH": "/bin", "LUMIIMG_ENGINE": "sh"})
    return uv.first_paragraph(text)


ENGINE = Engine(scratch() / "engine", EngineKind.APPTAINER, "1.4.5", frozenset())


@target(
    "slurm-nodes", "cluster.nodes.slurm.find_allocation", "cluster.nodes.slurm.is_job_number", refuses=(UndecidedError,)
)
def _slurm(data: bytes) -> None:
    nodes, job = parts(data, 2)
    environment = {"PATH": "/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "nid[1-2]"}
    slurm.is_job_number(text_of(job))
    with answering(slurm, nodes), mock.patch.object(slurm, "slurm_program", return_value="scontrol"):
        slurm.find_allocation(environment)
