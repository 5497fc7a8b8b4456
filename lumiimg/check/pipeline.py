"""`lumiimg check`: take the highest level that can be taken here, and say what the others would add."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check.advice import advise
from lumiimg.check.answer import CheckReport, LevelsTaken, decide, sentence, settle
from lumiimg.check.opening import opened
from lumiimg.check.probe import simulation
from lumiimg.check.probe.container import told_plugin
from lumiimg.check.probe.task import carry_out, excuse, make_task, told_version
from lumiimg.check.run.execution import RunResult, refuse_without_gpu, run_here
from lumiimg.check.static.boundary import Boundary, study_open
from lumiimg.check.static.commands import with_commands
from lumiimg.check.static.files import check_static
from lumiimg.check.static.gpu_code import gpu_owner
from lumiimg.check.static.image_faults import find_faults
from lumiimg.check.static.machine import with_machine
from lumiimg.check.static.venv import with_faults_of_venv
from lumiimg.check.steps import fabric_steps, origins
from lumiimg.engine.engine import find_engine
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.findings import Finding, Level
from lumiimg.host.container_view import read_on
from lumiimg.resolve.venv import Venv, with_venv
from lumiimg.wording import operand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.check.probe.judgement import ProbeResult
    from lumiimg.host.manifest import BindManifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_NOT_ASKED = "not asked for"


def check_image(
    path: Path,
    environment: Mapping[str, str],
    level: Level | None,
    snapshot: Snapshot | None = None,
    *,
    simulate: bool = False,
    site: Site | None = None,
    program: str | None = None,
    machine: Sequence[str] = (),
    built_with: Sequence[str] = (),
    venv: Venv | None = None,
) -> CheckReport:
    """Check an image up to `level`, or as far as is possible here if it is None; with what a host offers, if given.

    `simulate`: ask RCCL with a stand-in for HIP too (`probe/simulation.py`). `site`: whose GPU is to take the image's
    code, and whose bandwidths count, on GPUs.
    `program`: what jobs start, by its path or name; None for the Python on the image's PATH.
    `machine`: the options that name the machine, `built_with` those that the image was built with, for commands that
    are proposed. `venv`: a Python environment that jobs bind, whose programs come first.

    Raises BadInputError for what is not an image, MissingHereError if `level` or the simulation needs what is not
    here.
    """
    named = operand(str(path))
    with opened(path, environment, snapshot) as plain, with_venv(plain, venv) as image:
        boundary = with_faults_of_venv(
            check_files(path, image, environment, snapshot, program, site), venv, path, plain
        )
        static, manifest = boundary.static, boundary.manifest
        probe_level = run_level = _NOT_ASKED
        probed: ProbeResult | None = None
        ran: RunResult | None = None
        if level is Level.STATIC:
            pass
        elif static.path.rccl is None:
            probe_level = run_level = "there is no RCCL to run"
        else:
            try:
                if manifest is not None and manifest.binds and snapshot is not None:
                    _refuse_elsewhere(manifest, snapshot)
                engine = find_engine(environment)
                with scratch_folder(temporary_folder(), "lumiimg-probe-") as folder:
                    task = make_task(
                        engine, path, image, static, manifest, environment, folder, simulate=simulate, venv=venv
                    )
                    probed = carry_out(task, engine, environment)
                probe_level = simulation.DONE if simulate else "done"
            except MissingHereError as error:
                if level is not None or simulate:
                    raise
                probe_level = run_level = str(error)
        if probed is not None and level is not Level.PROBE:
            try:
                if level is not Level.RUN:
                    refuse_without_gpu()
                told, excused, version = task.told(engine, environment), excuse(environment), told_version(probed)
                ran = run_here(
                    engine, path, image, static, told, task.binds, version=version, site=site, excuse=excused
                )
                run_level = f"done: {ran.collective.program.value}"
            except MissingHereError as error:
                if level is Level.RUN:
                    raise
                run_level = f"not taken: {error}"
        taken = Level.RUN if ran else Level.PROBE if probed else Level.STATIC
        fabric = probed.path if probed else static.path
        results = (probed.findings.found if probed else (), ran.findings.found if ran else ())
        findings = conclude(named, built_with, static.findings, *results, machine=machine)
        known = origins(
            fabric,
            image,
            read_on(snapshot, environment),
            manifest.loaded if manifest else (),
            running=probed is not None,
        )
    answer = decide(findings, fabric, level=taken, level_was_asked_for=level is not None)
    return CheckReport(
        image=str(path),
        answer=answer,
        sentence=sentence(answer, findings, taken),
        advice=advise(
            answer,
            findings,
            image=named,
            level=taken,
            limited=level is not None,
            site=site,
            machine=(
                *machine,
                *(("--program", program) if program is not None else ()),
                *(("--venv", str(venv.path)) if venv is not None else ()),
            ),
            environment=environment,
        ),
        level=taken,
        levels=LevelsTaken("done", probe_level, run_level),
        path=fabric,
        findings=findings,
        runs=tuple(probed.runs) if probed else (),
        collective=ran.outcome if ran else None,
        gpu=boundary.gpu,
        steps=fabric_steps(
            fabric,
            findings,
            known,
            plugin_version=told_plugin(probed.runs) if probed else None,
            verdict=ran.report.verdict.value if ran else None,
        ),
    )


def check_files(
    path: Path,
    image: Image,
    environment: Mapping[str, str],
    snapshot: Snapshot | None,
    program: str | None = None,
    site: Site | None = None,
) -> Boundary:
    """Return what the files say; with a snapshot what is to be bound of its host, with a site what of its GPU.

    Raises BadInputError where the image cannot be read.
    """
    environment = read_on(snapshot, environment)
    static = with_machine(image, check_static(image, environment, program), snapshot, site)
    boundary = study_open(str(path), image, environment, snapshot, static, owner=gpu_owner(site, snapshot))
    findings = (*boundary.static.findings, *find_faults(image, environment, static))
    return replace(boundary, static=replace(boundary.static, findings=findings))


def conclude(
    image: str,
    built_with: Sequence[str],
    static: Sequence[Finding],
    probed: Sequence[Finding],
    ran: Sequence[Finding] = (),
    *,
    machine: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """Return the findings of all levels as one account, with the command that would mend what is lacking.

    `built_with` are the options that the image was built with, `machine` those that name the machine.
    """
    return with_commands(settle(static, probed, ran), image, built_with, machine)


def _refuse_elsewhere(manifest: BindManifest, snapshot: Snapshot) -> None:
    """Raise MissingHereError where the libraries that a manifest binds are those of another machine."""
    here = platform.node().partition(".")[0]
    gone = next((bind.source for bind in manifest.binds if not Path(bind.source).exists()), None)
    if here != snapshot.host or gone is not None:
        why = f"{gone} is not here" if gone is not None and here == snapshot.host else f"this is {here}"
        raise MissingHereError(
            f"not taken: its binds are those of {snapshot.host}, {why}", hint=f"run the check on {snapshot.host}"
        )
