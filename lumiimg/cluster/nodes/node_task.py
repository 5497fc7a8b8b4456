"""What one node of a check does: the task of the folder, carried out here, and an answer put beside it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.probe.programs import ProbePrograms  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.check.probe.task import ProbeTask, carry_out
from lumiimg.check.run.execution import count_gpus
from lumiimg.cluster.nodes.answers import (
    Fingerprint,
    Library,
    NodeAnswer,
    file_stem,
    fingerprint_findings,
    write_answer,
)
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.errors import BadInputError, LumiimgError, MissingHereError
from lumiimg.files import open_regular, read_beginning, write_text
from lumiimg.host import node_facts as host_node
from lumiimg.host.codec import FormError, from_json, to_json
from lumiimg.host.root_queries import read_word
from lumiimg.image import RootFileSystem
from lumiimg.image.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.check.probe.judgement import ProbeResult
    from lumiimg.findings import Finding

TASK = "task"
_STARTED = ".started"
_MAX_TASK_BYTES = 64 << 20
_SAMPLE_BYTES = 64 * 1024
_LIBRARY = re.compile(r".*/([^/]+\.so[^/]*)")


@dataclass(frozen=True, slots=True)
class NodeTask:
    """What every node of one check is given."""

    run: str
    """A random word."""
    identity: str
    """Of the image, as `identity_of` has it."""
    probes: ProbeTask
    counter: ProbePrograms | None
    """What counts GPUs; None where no collective is wanted."""


def identity_of(path: Path) -> str:
    """Return by what two nodes see that they have the same image file: its size, and its two ends; a folder has none.

    Raises BadInputError where it cannot be read.
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
    """Put the task into the folder of a check. Raises FailedError."""
    write_text(folder / TASK, to_json(task))


def read_task(folder: Path, node: str) -> NodeTask:
    """Return the task in a folder, on a node.

    Raises BadInputError: it is not there as a rule where the folder is not on a file system that all nodes share.
    """
    path = folder / TASK
    try:
        return from_json(NodeTask, read_beginning(path, _MAX_TASK_BYTES))
    except OSError as error:
        raise BadInputError(
            f"cannot be read on {node}: {error.strerror}",
            where=str(path),
            hint="start the check in a folder that all nodes share: project or scratch, not /tmp",
        ) from error
    except FormError as error:
        raise BadInputError(f"is not the task of a check: {error}", where=str(path)) from error


def is_mark(name: str) -> bool:
    """Whether a file of a check's folder says that a node has started."""
    return name.endswith(_STARTED) and not name.startswith(".")  # nor one that is being written


def node_name(environment: Mapping[str, str]) -> str:
    """Return the name that Slurm has for this node; without Slurm, its own."""
    return environment.get("SLURMD_NODENAME") or platform.node().partition(".")[0]


def take_part(folder: Path, environment: Mapping[str, str]) -> None:
    """Carry the task of a folder out on this node, and put the answer there; that nothing could be probed is an answer.

    Raises BadInputError without a task, FailedError where the answer cannot be written.
    """
    start = time.monotonic()
    node = node_name(environment)
    task = read_task(folder, node)
    write_text(folder / f"{file_stem(node)}.{os.getpid()}{_STARTED}", task.run)
    fingerprint, findings, no_gpu = _probed(task, environment)
    took = int((time.monotonic() - start) * 1000)
    write_answer(folder, NodeAnswer(task.run, node, took, fingerprint, findings, no_gpu))


def _probed(task: NodeTask, environment: Mapping[str, str]) -> tuple[Fingerprint, tuple[Finding, ...], str | None]:
    """Return by what nodes are compared, what the probes found, and what HIP says where it finds no GPU."""
    root = RootFileSystem(FolderTree(Path("/")))
    here = Fingerprint(
        kernel=read_word(root, "/proc/sys/kernel/osrelease") or "",
        gpu_driver=read_word(root, "/sys/module/amdgpu/version"),
        nics=tuple(replace(nic, pci=None) for nic in host_node.nics(root)),
    )
    try:
        identity = identity_of(Path(task.probes.image))
        if identity != task.identity:
            what = f"another image is there ({identity} instead of {task.identity})"
            return replace(here, trouble=what), (), None
        engine = find_engine(environment)
        here = replace(here, engine=engine.name)
        result = carry_out(task.probes, engine, environment)
    except LumiimgError as error:
        return replace(here, trouble=str(error)), (), None
    gpus, no_gpu = _gpus(task, engine, environment)
    found = tuple(result.findings.found)
    seen = replace(
        here,
        findings=fingerprint_findings(found),
        fabric=result.path,
        rccl=result.loaded_rccl,
        libraries=_libraries(result),
        gpus=gpus,
    )
    return seen, found, no_gpu


def _gpus(task: NodeTask, engine: Engine, environment: Mapping[str, str]) -> tuple[int | None, str | None]:
    """Return how many GPUs a collective would have here, and why it has none."""
    if task.counter is None:
        return None, None
    container = task.probes.container(engine, environment, task.counter)
    try:
        return count_gpus(container, task.probes.static.path.rccl or ""), None
    except MissingHereError as error:
        return 0, error.what


def _libraries(result: ProbeResult) -> tuple[Library, ...]:
    """Return the libraries that were in the processes of the probes."""
    mapped = {values.get("path", ""): values.get("build", "") for run in result.runs for values in run.all("mapped")}
    names = {path: match[1] for path in mapped if (match := _LIBRARY.fullmatch(path))}
    return tuple(Library(names[path], path, mapped[path]) for path in sorted(names))
