"""What the probes of one image need, as a value: made where the image is read, carried out here or on other nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.probe import simulation
from lumiimg.check.probe.container import Container
from lumiimg.check.probe.judgement import ProbeResult, probe
from lumiimg.check.probe.tools import PROGRAMS, SIMULATION, Tools, provide_tools
from lumiimg.check.static.evidence import StaticResult  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.errors import MissingHereError
from lumiimg.fabric.path import Part
from lumiimg.fabric.rccl import version_of_code
from lumiimg.findings import Code, Severity
from lumiimg.resolve.venv import BIN, MOUNT, Venv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.host.manifest import BindManifest
    from lumiimg.image import Image

_DEVICES = Path("/dev")


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """The probes of one image; the files are read already, once for all nodes."""

    image: str
    static: StaticResult
    tools: Tools
    binds: tuple[tuple[str, str], ...] = ()
    """Of a manifest: path of the machine, place in the container."""
    variables: tuple[tuple[str, str], ...] = ()
    simulate: bool = False
    """Whether RCCL is asked on a stand-in for HIP too (`simulation.py`)."""

    def told(self, engine: Engine, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the engine's environment with the variables of the task."""
        return {**environment, **{f"{engine.prefix}ENV_{name}": value for name, value in self.variables}}


def make_task(
    engine: Engine,
    path: Path,
    image: Image,
    static: StaticResult,
    manifest: BindManifest | None,
    environment: Mapping[str, str],
    scratch: Path,
    *,
    simulate: bool,
    venv: Venv | None = None,
) -> ProbeTask:
    """Return the task of an image with binds and variables of a manifest; what is compiled for it goes to `scratch`.

    `venv`: an environment that jobs bind. Raises MissingHereError if there are no probe programs.
    """
    if venv is not None and venv.is_file and engine.kind is EngineKind.NAMESPACES:
        hint = "make it as a folder for this: lumiimg venv IMAGE … -o env/"
        raise MissingHereError(f"{engine.family} bind no squashfs file, as {venv.path.name} is", hint=hint)
    programs = (*PROGRAMS, SIMULATION) if simulate else PROGRAMS
    return ProbeTask(
        image=str(path),
        static=static,
        tools=provide_tools(engine, path, image, environment, scratch, programs),
        binds=(
            *((bind.source, bind.target) for bind in (manifest.binds if manifest else ())),
            *([(str(venv.path), MOUNT)] if venv else []),
        ),
        variables=(
            *((item.name, item.value) for item in (manifest.variables if manifest else ())),
            *([("PREPEND_PATH", BIN)] if venv else []),
        ),
        simulate=simulate,
    )


def carry_out(task: ProbeTask, engine: Engine, environment: Mapping[str, str]) -> ProbeResult:
    """Run the probes on this machine.

    Raises MissingHereError if a library that is to be bound is not on this machine, or no container starts.
    """
    gone = next((source for source, _ in task.binds if not os.path.exists(source)), None)  # noqa: PTH110 - as given
    if gone is not None:
        raise MissingHereError(f"{gone}, which must be bound, is not here")
    environment = task.told(engine, environment)
    binds = (*task.tools.binds, *task.binds)
    tools = Tools(task.tools.folder, binds, task.tools.origin)
    container = Container(engine, Path(task.image), environment, tools)
    excused = excuse(environment)
    result = probe(container, task.static, excuse=excused)
    if task.simulate and task.static.path.rccl is not None:
        plugin = next((found for run in reversed(result.runs) if (found := run.mapped(Part.PLUGIN))), None)
        simulated = container.simulate(task.static.path.rccl)
        result.runs.append(simulated)
        judged = simulation.judge(simulated, result.path.rccl_version, plugin, excuse=excused)
        result.findings.found += judged.found
    by = f"probed with {engine.name}, programs {task.tools.origin}"
    if engine.kind is EngineKind.NAMESPACES:
        by += "; the engine of a cluster may bind more and set other variables"
    result.findings.add(Code.PROBE_ENGINE, Severity.INFO, by)
    return result


def told_version(result: ProbeResult) -> str | None:
    """Return the version that RCCL itself says in the container, where a bind may have put another in front."""
    code = next((said.get("value", "") for run in result.runs if (said := run.first("version"))), "")
    return version_of_code(int(code)) if code.isdigit() else result.path.rccl_version


def excuse(environment: Mapping[str, str], devices: Path = _DEVICES) -> str | None:
    """Return why a plugin that does not get onto the fabric here says nothing of the image; None where it does.

    Without a NIC there is nothing to open; without the job step's credentials the cxi provider refuses it
    (libfabric prov/cxi/src/cxip_nic.c: -FI_ENOSYS where SLINGSHOT_VNIS is not set and no default service may be used).
    """
    if not any(devices.glob("cxi[0-9]*")):
        return "this machine has no Slingshot NIC (/dev/cxi*)"
    if not environment.get("SLINGSHOT_VNIS"):
        return "this is not a job step with access to the fabric (SLINGSHOT_VNIS is not set; start it with srun)"
    return None
