"""Of `nccl/`, and what else is read out of what programs printed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import sys
import tomllib
from collections.abc import Iterator
from unittest import mock

from lumiimg.check import startup, strace
from lumiimg.check.probe import simulation
from lumiimg.check.probe.container import ProbeRun, read_events
from lumiimg.cluster.nodes import slurm
from lumiimg.engine import engine, failures
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.errors import BadInputError, FailedError, MissingHereError, UndecidedError
from lumiimg.fabric.path import Part
from lumiimg.host import node_facts as host_node
from lumiimg.nccl.bandwidth import BandwidthReader
from lumiimg.nccl.flight import parsed, progress, stalled
from lumiimg.nccl.follow import Tail
from lumiimg.nccl.lines import messages, probe_event
from lumiimg.nccl.node_names import folded
from lumiimg.nccl.reader import LogReader
from lumiimg.nccl.sources import blocks, refuse_binary
from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.report.log import json_keys, print_log
from lumiimg.report.schema import json_text
from lumiimg.resolve.network import mirrors
from lumiimg.resolve.network.mirrors import Mirrors, general_index
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import BORDER, FIXTURES, answering, parts, printed, scratch, text_of, written

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


_WELL = (FIXTURES / "flight/nccl_trace_rank_0").read_bytes()
_ENVIRONMENT = {"PATH": "/bin:/usr/bin"}


def _log(data: bytes) -> str:
    """A log, in two blocks: what is printed of it, and its JSON."""
    reader = LogReader()
    cut = data.find(b"\n", len(data) // 2) + 1
    for block in filter(None, (data[:cut], data[cut:])):
        reader.feed("job.out", block)
    report = reader.report()
    json_text("log", report, **json_keys(report, (), None, report.answer))
    assert all(evidence.text.isprintable() for evidence in report.proof)
    return printed(print_log, report, (), None, verbose=True)


def _tables(data: bytes) -> None:
    reader = BandwidthReader()
    reader.feed("job.out", data, lambda number: number)
    reader.measurements(lambda position: ("job.out", position))


def _line(data: bytes) -> None:
    for line in data.split(b"\n"):
        messages(line)
        probe_event(text_of(line))


def _source(data: bytes) -> None:
    path = str(written(data, "job.out"))
    refuse_binary(path)
    for _ in blocks(path, lambda _: None):
        pass


def _flight(data: bytes) -> None:
    """A dump of a flight recorder, beside one that is well."""
    dump = parsed(data, "nccl_trace_rank_1")
    stalled([dump, parsed(_WELL, "nccl_trace_rank_0")])
    progress([dump])


def _tail(data: bytes) -> None:
    tail = Tail(str(written(data, "grows.out")))
    for _ in tail.read():
        pass


def _nodes(data: bytes) -> None:
    folded(text_of(data).split())


def _strace(data: bytes) -> None:
    calls = strace.read_trace(written(data, "trace"))
    assert all(call.path.startswith("/") for call in calls)
    strace.count(calls, lambda name: name.startswith("/usr"))


def _startup(data: bytes) -> None:
    """What Python answers in a container: an answer of JSON in its line, with the mounts."""
    tracer = startup._Tracer("strace", scratch(), "torch")
    with answering(startup, startup._ANSWER.encode() + data):
        asked = startup._ask(["python3"], tracer, _ENVIRONMENT, scratch())
    startup._bound(asked.mounts)("/usr/lib/x")


def _probe(data: bytes) -> None:
    output = text_of(data)
    run = ProbeRun("probe", 0, timed_out=False, output=output, events=read_events(output))
    simulation.judge(run, "2.22.3", "/x.so", excuse=None)
    run.mapped(Part.PLUGIN)


def _engine(data: bytes) -> None:
    with answering(engine, data):
        engine.find_engine({"PATH": "/bin", "LUMIIMG_ENGINE": "sh"})


def _failure(data: bytes) -> None:
    output = text_of(data)
    failures.explain(output)
    failures.telling_line(output)


ENGINE = Engine(scratch() / "engine", EngineKind.APPTAINER, "1.4.5", frozenset())


def _slurm(data: bytes) -> None:
    nodes, job = parts(data, 2)
    environment = {"PATH": "/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "nid[1-2]"}
    slurm.is_job_number(text_of(job))
    with answering(slurm, nodes), mock.patch.object(slurm, "slurm_program", return_value="scontrol"):
        slurm.find_allocation(environment)


def _slurm_version(data: bytes) -> None:
    with answering(host_node, data), mock.patch("shutil.which", return_value="/bin/scontrol"):
        host_node.slurm_version(_ENVIRONMENT)


def _pip(data: bytes) -> None:
    with answering(mirrors, data):
        general_index(Mirrors({}), {})


def _log_seeds() -> Iterator[bytes]:
    for path in sorted((FIXTURES / "nccl").glob("*.log")):
        yield path.read_bytes()[:8192]
    for entry in vocabulary().entries:
        yield entry.example.encode() + b"\n"


def _table_seeds() -> Iterator[bytes]:
    for path in sorted((FIXTURES / "bandwidth").iterdir()):
        yield path.read_bytes()[:6000]


def _source_seeds() -> Iterator[bytes]:
    log = b"n1:1:2 [0] NCCL INFO Using network Socket\n" * 5
    for pack in (bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress):
        yield pack(log)
        yield pack(log)[:-5]
    yield b"\0" * 100 + log
    yield gzip.compress(bytes(1 << 20))


def _flight_seeds() -> Iterator[bytes]:
    for path in sorted((FIXTURES / "flight").iterdir()):
        yield path.read_bytes()
    yield pickle.dumps({"version": OSError()}, 2)


def _strace_seeds() -> Iterator[bytes]:
    yield (
        b'9 execve("/usr/bin/python3", ["python3"], 0x7ffd /* 20 vars */) = 0\n'
        b'9 openat(AT_FDCWD</>, "usr/x\\303\\251.py", O_RDONLY|O_CLOEXEC) = 3</usr/x.py>\n'
        b'9 read(3</usr/x.py>, "..."..., 4096) = 100\n9 read(3</usr/x.py>, 0x7, 1) = -1 EIO (x)\n'
        b"9 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3</usr/x.so>, 0x1000) = 0x7f00\n"
        b'10 stat("/a\\x41", <unfinished ...>\n10 <... stat resumed>{st_mode=S_IFREG|0644}) = -1 ENOENT (No)\n'
        b"9 getdents64(3</usr>, 0x55 /* 5 entries */, 32768) = 144\n9 +++ exited with 0 +++\n"
        b'9 newfstatat(3</usr/x.so>, "", {st_mode=0}, AT_EMPTY_PATH) = 0\n9 readlink("/l", "x", 4095) = ?\n'
    )


def _startup_seeds() -> Iterator[bytes]:
    mounts = "21 1 0:20 / /proc rw - proc proc rw\n33 1 8:1 /a\\040b / rw,x - squashfs /dev/loop0 ro\n"
    yield json.dumps(
        {"file": "/x", "version": "1", "python": "3.12", "program": "/usr/bin/python3", "mounts": mounts}
    ).encode()


def _probe_seeds() -> Iterator[bytes]:
    for path in sorted((FIXTURES / "probes").iterdir()):
        yield path.read_bytes()[:8192]


def _engine_seeds() -> Iterator[bytes]:
    yield b"apptainer version 1.4.5-1.el9\n --fakeroot --bind\n"
    yield b"WARNING: x\nsingularity-ce version 4.2.1-noble\n"
    yield b"singularity-pro version 3.11-2\n"


def _failure_seeds() -> Iterator[bytes]:
    for entry in tomllib.loads((FIXTURES.parents[1] / "lumiimg/engine/failures.toml").read_text())["failure"]:
        yield str(entry.get("example", entry["meaning"])).encode()
    yield b"+ true\n\x1b[31mFATAL:   \x1b[0mwhile performing build\n"


def _slurm_seeds() -> Iterator[bytes]:
    yield b"nid000001\nnid000002\n" + BORDER + b"123;lumi"
    yield b"" + BORDER + b" 5 "


_REFUSED = (BadInputError, FailedError, MissingHereError, UndecidedError)
TARGETS = (
    Target(
        "log",
        (
            "nccl.reader.LogReader",
            "nccl.records.unpacked",
            "nccl.prefilter.Prefilter",
            "nccl.vocabulary.vocabulary",
            "nccl.verdict",
            "nccl.causes",
            "nccl.summary",
            "nccl.job",
        ),
        _log,
        _log_seeds,
        (),
        rounds=6,
    ),
    Target("bandwidth", ("nccl.bandwidth.BandwidthReader",), _tables, _table_seeds, (), rounds=20),
    Target("log-lines", ("nccl.lines.messages", "nccl.lines.probe_event"), _line, _log_seeds, ()),
    Target("log-file", ("nccl.sources.blocks", "nccl.sources.refuse_binary"), _source, _source_seeds, form="bytes"),
    Target(
        "flight-dump",
        ("nccl.flight.parsed", "nccl.flight.stalled", "nccl.pickled.unpickled"),
        _flight,
        _flight_seeds,
        form="bytes",
    ),
    Target("log-growing", ("nccl.follow.Tail",), _tail, _source_seeds, form="bytes"),
    Target("node-names", ("nccl.node_names.folded",), _nodes, lambda: [b"nid000001 nid000002 nid000010 x-1.hsn y"], ()),
    Target("strace", ("check.strace.read_trace",), _strace, _strace_seeds),
    Target("import-answer", ("check.startup._ask", "check.startup._bound"), _startup, _startup_seeds, form="json"),
    Target(
        "probe-output",
        ("check.probe.container.read_events", "check.probe.simulation.judge", "check.probe.container.tail"),
        _probe,
        _probe_seeds,
        (),
        rounds=10,
    ),
    Target("engine-version", ("engine.engine.find_engine",), _engine, _engine_seeds, (MissingHereError,)),
    Target("engine-failure", ("engine.failures.explain", "engine.failures.telling_line"), _failure, _failure_seeds, ()),
    Target(
        "slurm-nodes",
        ("cluster.nodes.slurm.find_allocation", "cluster.nodes.slurm.is_job_number"),
        _slurm,
        _slurm_seeds,
        (UndecidedError,),
    ),
    Target("slurm-version", ("host.node_facts.slurm_version",), _slurm_version, lambda: [b"slurm 23.02.7\n"], ()),
    Target(
        "pip-help",
        ("resolve.network.mirrors.general_index",),
        _pip,
        lambda: [b"  -i, --index-url <url>  Base URL of the index (default https://h.test/simple). This\n"],
        (BadInputError, MissingHereError),
    ),
)
