"""The task, work and answer of one node in a check: JSON files in a folder that all nodes share.

They show which nodes answered, which did not, and which nodes are alike.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote

import msgspec

from lumiimg.check.probe.container import ProbePrograms  # noqa: TC001 - `decode` reads the types of the fields
from lumiimg.check.probe.process import SeenProcess  # noqa: TC001 - as above
from lumiimg.check.probe.task import ProbeTask, carry_out
from lumiimg.check.registry import finding_types
from lumiimg.check.run.execution import count_gpus
from lumiimg.core.decode import DecodeError, decode_json, matching, read_whole, to_json
from lumiimg.core.errors import BadInputError, LumiimgError, MissingHereError, one_safe_line
from lumiimg.core.files import open_regular, write_text
from lumiimg.core.findings import Finding, Remedy  # noqa: TC001 - as above
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.fabric.path import FabricPath
from lumiimg.host import node_facts as host_node
from lumiimg.host.root_queries import read_word
from lumiimg.host.snapshot import Nic  # noqa: TC001 - as above
from lumiimg.image import FolderTree, RootFileSystem

if TYPE_CHECKING:
    from lumiimg.check.probe.judgement import ProbeResult

TASK = "task"
_MAX_BYTES = 1 << 20
"""Size limit of an answer; typical ones have some 10 KiB."""
_MAX_TASK_BYTES = 64 << 20
_SAMPLE_BYTES = 64 * 1024
_LIBRARY = re.compile(r".*/([^/]+\.so[^/]*)")
ANSWER, STARTED = ".json", ".started"
"""Suffixes of a node's files: its answer, and the mark that it has started."""
_PREFIX = "node-"
"""Prevents a node's name from making a hidden file."""
_OWN = re.compile(r"(?:/var)?/tmp/[^\s:;,'\"]+|/dev/shm/[^\s:;,'\"]+|\b[0-9a-f]{8,}\b|\d+")
"""Text that differs per node: temporary folders, addresses, process ids, times, numbered names."""
_WITHOUT_FOLDER = re.compile(r"is not the task of a check, on (\S{1,255}): ")
"""The error of `read_task`."""
SHARED = "start the check in a folder that all nodes share: project or scratch, not /tmp"
_NAME_LIMIT = 150
_FILE_LIMIT = 100_000
NodeName = Annotated[str, matching(r"(?a:[\w.][\w.-]{0,254})", "a name of a node")]
NodeNames = Annotated[tuple[NodeName, ...], msgspec.Meta(min_length=1, description="a name of a node")]


class Library(msgspec.Struct, frozen=True):
    """A shared library in the process of a probe."""

    name: str
    """File name without the folder."""
    path: str
    """Path in the container."""
    build: str
    """Its build-id (the note of GNU's ld) in hexadecimal; empty if it has none."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of one node to a check: the results of the probes, the loaded libraries, and facts about the node."""

    run: str
    """Random word of the check, so that a leftover file of an earlier one does not count as an answer."""
    node: str
    findings: tuple[Finding, ...] = ()
    fabric: FabricPath = field(default_factory=FabricPath)
    rccl: str | None = None
    """The version that RCCL itself reports on the node."""
    libraries: tuple[Library, ...] = ()
    """Loaded libraries, sorted by path."""
    engine: str | None = None
    kernel: str = ""
    gpu_driver: str | None = None
    nics: tuple[Nic, ...] = ()
    """NICs, without node-specific values such as PCI addresses."""
    gpus: int | None = None
    """Number of GPUs that HIP finds in the container; None if it was not queried."""
    no_gpu: str | None = None
    """Message of HIP when it finds none."""
    seen: SeenProcess | None = None
    """A job's process there; the answer is about it if its libraries differ from those that the files predict."""
    trouble: str | None = None
    """Why nothing could be probed on the node."""
    to_do: str | None = None
    """Remedy for that, if known."""
    said: tuple[str, ...] = ()
    """Last output lines of an engine that cannot start containers."""

    @property
    def severities(self) -> tuple[tuple[str, str], ...]:
        """Finding ids with their severities, sorted."""
        return tuple(sorted((finding.id, finding.severity) for finding in self.findings))

    @property
    def compared(self) -> tuple[object, ...]:
        """The values that must be equal for nodes to be alike."""
        trouble = without_own(self.trouble or "", self.node)
        of_node = self.engine, self.kernel, self.gpu_driver, self.nics, self.gpus, trouble
        return self.severities, self.fabric, self.rccl, self.libraries, *of_node


@dataclass(frozen=True, slots=True)
class NodesAlike:
    """Nodes that are equal in all compared values."""

    nodes: tuple[str, ...]
    answer: NodeAnswer
    """Answer of the first node, with its evidence."""


@dataclass(frozen=True, slots=True)
class UnresponsiveNodes:
    """Nodes without a usable answer."""

    nodes: NodeNames
    """Names of the nodes."""
    why: str
    """The known reason."""


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """The contents of a check's folder."""

    groups: tuple[NodesAlike, ...]
    """Groups of alike nodes, the largest first."""
    silent: tuple[UnresponsiveNodes, ...]


def file_stem(node: str) -> str:
    """Return the beginning of the names of a node's files."""
    return f"{_PREFIX}{quote(node, safe='')[:_NAME_LIMIT]}"


def node_of_file(name: str, kind: str) -> str | None:
    """Return the node that a file of a check is named after; None if the file is not of that kind.

    A file that is still being written has another name.
    """
    return unquote(name.rsplit(".", 2)[0][len(_PREFIX) :]) if name.startswith(_PREFIX) and name.endswith(kind) else None


def without_own(text: str, node: str) -> str:
    """Return a text without node-specific parts, so that texts of different nodes can be compared."""
    return _OWN.sub("#", re.sub(rf"\b{re.escape(node)}\b", "#", text) if node else text)


def write_answer(folder: Path, answer: NodeAnswer) -> None:
    """Write a node's answer into the folder of a check atomically. Raises FailedError."""
    write_text(folder / f"{file_stem(answer.node)}.{os.getpid()}{ANSWER}", to_json(answer))


def read_answer(path: Path) -> NodeAnswer | str:
    """Return an answer, or why the file is not a valid one; never raise for any bytes."""
    try:
        data = read_whole(path, _MAX_BYTES)
        answer = msgspec.json.decode(data, type=NodeAnswer, dec_hook=_remedy)
    except DecodeError as error:
        return f"its answer {error.what}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"its answer is not valid: {error}"[:300]
    unknown = next((finding.id for finding in answer.findings if finding.id not in finding_types()), None)
    return answer if unknown is None else f"its answer has a finding of another lumiimg: {unknown!r}"[:300]


def _remedy(kind: type[Remedy], value: object) -> Remedy:
    """Decode a remedy, the only type in an answer that needs a hook. Raises ValueError."""
    return kind.decoded(value)


def gather(
    folder: Path,
    run: str,
    nodes: Collection[str],
    started: Collection[str],
    *,
    out_of_time: bool = False,
    printed: str = "",
) -> NodeAnswers:
    """Return the answers of `nodes` to the check `run`, from its folder; `started`: nodes that were seen to start.

    If a node answered twice, its answers must be equal. Files of other nodes or checks are ignored. `out_of_time`: the
    wait lasted until the end of the job. `printed`: the output of the step, the only place where nodes that do not see
    the folder can report. Raises OSError if the folder cannot be read.
    """
    answers = {node: list[NodeAnswer]() for node in sorted(nodes)}
    invalid = dict.fromkeys(_WITHOUT_FOLDER.findall(printed), f"without the folder {Path.cwd()}: {SHARED}")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, _FILE_LIMIT))
    for name in names:
        if (of := node_of_file(name, ANSWER)) is None:
            continue
        answer = read_answer(folder / name)
        if isinstance(answer, str):
            invalid[of] = answer
        elif answer.run == run and answer.node in answers:
            answers[answer.node].append(answer)
    same, silent = defaultdict[tuple[object, ...], list[NodeAnswer]](list), defaultdict[str, list[str]](list)
    reasons: dict[str, str] = {}
    until = " before the job's time limit" if out_of_time else ""
    for node, given in answers.items():
        if not given:
            never = f"{'started, but gave no answer' if node in started else 'never started'}{until}"
            why = invalid.get(node, never)
            silent[reasons.setdefault(without_own(why, node), why)].append(node)
        elif any(answer.compared != given[0].compared for answer in given[1:]):
            silent[f"gave {len(given)} different answers"].append(node)
        else:
            same[given[0].compared].append(given[0])
    groups = [NodesAlike(tuple(one.node for one in alike), alike[0]) for alike in same.values()]
    return NodeAnswers(
        groups=tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.nodes))),
        silent=tuple(
            UnresponsiveNodes(tuple(names), why)
            for why, names in sorted(silent.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
    )


# -- on the node --


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The task of every node in a check."""

    run: str
    """Random word of the check."""
    identity: str
    """Identity of the image, from `identity_of`."""
    probes: ProbeTask
    counter: ProbePrograms | None
    """Programs that count GPUs; None if no collective is wanted."""


def identity_of(path: Path) -> str:
    """Return a mark that two nodes share if they see the same image file: size and both ends; the same for all folders.

    Raises BadInputError if the file cannot be read.
    """
    try:
        if path.is_dir():
            return "a folder"
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256()
            for start in (0, max(0, size - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return f"{size} bytes, {digest.hexdigest()[:16]}"


def write_task(folder: Path, task: NodeTask) -> None:
    """Write the task into the folder of a check. Raises FailedError."""
    write_text(folder / TASK, to_json(task))


def read_task(folder: Path, node: str) -> NodeTask:
    """Read the task from a folder, on a node.

    Raises BadInputError; the usual reason is a folder that is not on a file system shared by all nodes.
    """
    path = folder / TASK
    try:
        return decode_json(read_whole(path, _MAX_TASK_BYTES), NodeTask)
    except DecodeError as error:
        raise BadInputError(
            f"is not the task of a check, on {node}: {error.what}", where=str(path), hint=SHARED
        ) from error


def node_name(environment: Mapping[str, str]) -> str:
    """Return Slurm's name for this node, or its own name without Slurm."""
    return environment.get("SLURMD_NODENAME") or platform.node().partition(".")[0]


def take_part(folder: Path, environment: Mapping[str, str]) -> None:
    """Carry out the task of a folder on this node and write the answer there; "nothing could be probed" is an answer.

    Raises BadInputError without a task, FailedError if the answer cannot be written.
    """
    node = node_name(environment)
    task = read_task(folder, node)
    write_text(folder / f"{file_stem(node)}.{os.getpid()}{STARTED}", task.run)
    root = RootFileSystem(FolderTree(Path("/")))
    answer = NodeAnswer(
        task.run,
        node,
        kernel=read_word(root, "/proc/sys/kernel/osrelease") or "",
        gpu_driver=read_word(root, "/sys/module/amdgpu/version"),
        nics=tuple(replace(nic, pci=None) for nic in host_node.nics(root)),
    )
    try:
        answer = _probed(task, answer, environment)
    except LumiimgError as error:
        more = tuple(one_safe_line(line) for line in error.more if line.strip())
        trouble = error.sentence.removeprefix(f"{task.probes.image}: ")  # the report names the image
        answer = replace(answer, trouble=trouble, to_do=error.hint, said=more)
    write_answer(folder, answer)


def _probed(task: NodeTask, answer: NodeAnswer, environment: Mapping[str, str]) -> NodeAnswer:
    """Return the answer with the results of the probes. Raises LumiimgError if nothing can be probed."""
    identity = identity_of(Path(task.probes.image))
    if identity != task.identity:
        raise BadInputError(f"another image is there ({identity} instead of {task.identity})")
    engine = find_engine(environment)
    result = carry_out(task.probes, engine, environment)
    gpus, no_gpu = _gpus(task, engine, environment)
    return replace(
        answer,
        engine=engine.name,
        findings=tuple(result.findings.found),
        fabric=replace(result.path, rccl_version=result.loaded_rccl),
        rccl=result.loaded_rccl,
        libraries=_libraries(result),
        gpus=gpus,
        no_gpu=no_gpu,
        seen=result.seen,
    )


def _gpus(task: NodeTask, engine: Engine, environment: Mapping[str, str]) -> tuple[int | None, str | None]:
    """Return the number of GPUs that a collective would have here, and why it has none."""
    if task.counter is None:
        return None, None
    container = task.probes.container(engine, environment, task.counter)
    try:
        return count_gpus(container, task.probes.static.path.rccl or ""), None
    except MissingHereError as error:
        return 0, error.what


def _libraries(result: ProbeResult) -> tuple[Library, ...]:
    """Return the libraries that were mapped in the probes' processes."""
    mapped = {values.get("path", ""): values.get("build", "") for run in result.runs for values in run.all("mapped")}
    names = {path: match[1] for path in mapped if (match := _LIBRARY.fullmatch(path))}
    return tuple(Library(names[path], path, mapped[path]) for path in sorted(names))
