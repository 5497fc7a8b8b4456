"""`lumiimg check`: take the highest level that can be taken here, and say what the others would add."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.check import simulation
from lumiimg.check.answer import CheckReport, decide, sentence, settle
from lumiimg.check.boundary import study_open
from lumiimg.check.opening import opened
from lumiimg.check.probes import run_details
from lumiimg.check.static import check_static
from lumiimg.check.task import carry_out, make_task
from lumiimg.definition.writer import layers_of
from lumiimg.engine.engine import find_engine
from lumiimg.errors import MissingHereError
from lumiimg.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumiimg.check.evidence import StaticResult
    from lumiimg.check.probing import ProbeResult
    from lumiimg.host.manifest import Manifest
    from lumiimg.host.snapshot import Snapshot
    from lumiimg.image import Image

_PLUGIN_LAYER = "aws-ofi-nccl"
_NOT_ASKED = "not asked for"
_NOT_BUILT = "not taken: NCCL_DEBUG=INFO in your job on two nodes, then `lumiimg log` on its output"


def check_image(
    path: Path,
    environment: Mapping[str, str],
    level: Level | None,
    snapshot: Snapshot | None = None,
    *,
    simulate: bool = False,
) -> CheckReport:
    """Check an image up to `level`, or as far as is possible here if it is None; with what a host offers, if given.

    `simulate`: ask RCCL with a stand-in for HIP too (`simulation.py`).

    Raises BadInputError for what is no image, MissingHereError if `level` or the simulation is asked for and what it
    needs is not here.
    """
    with opened(path) as image:
        static, manifest = check_files(path, image, environment, snapshot)
        levels = {Level.STATIC: "done", Level.RUN: _NOT_BUILT}
        probed: ProbeResult | None = None
        if level is Level.STATIC:
            levels[Level.PROBE] = _NOT_ASKED
        elif static.path.rccl is None:
            levels[Level.PROBE] = "nothing to probe"
        else:
            try:
                if manifest is not None and manifest.binds and snapshot is not None:
                    _refuse_elsewhere(manifest, snapshot)
                probed = _probe(path, image, static, environment, manifest, simulate=simulate)
                levels[Level.PROBE] = simulation.DONE if simulate else "done"
            except MissingHereError as error:
                if level is Level.PROBE or simulate:
                    raise
                levels[Level.PROBE] = str(error)
        taken = Level.PROBE if probed else Level.STATIC
        fabric = probed.path if probed else static.path
        findings = conclude(static.findings.found, probed.findings.found if probed else (), image.labels)
    answer = decide(findings, fabric, level=taken, level_was_asked_for=level is not None)
    return CheckReport(
        image=str(path),
        answer=answer,
        sentence=sentence(answer, findings, taken),
        level=taken,
        levels=levels,
        path=fabric,
        findings=findings,
        runs=tuple(run_details(run) for run in probed.runs) if probed else (),
    )


def check_files(
    path: Path, image: Image, environment: Mapping[str, str], snapshot: Snapshot | None
) -> tuple[StaticResult, Manifest | None]:
    """Return what the files say, and with a snapshot what is to be bound of its host.

    Raises BadInputError where the image cannot be read.
    """
    static = check_static(image, environment)
    if snapshot is None:
        return static, None
    boundary = study_open(str(path), image, environment, snapshot, static)
    return boundary.static, boundary.manifest


def conclude(static: Sequence[Finding], probed: Sequence[Finding], labels: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the findings of all levels as one account, with the command that would mend what is lacking."""
    return _with_command(settle(static, probed), labels)


def _probe(
    path: Path,
    image: Image,
    static: StaticResult,
    environment: Mapping[str, str],
    manifest: Manifest | None,
    *,
    simulate: bool,
) -> ProbeResult:
    """Run the probes, with the binds and variables of a manifest of this machine.

    Raises MissingHereError if there is no engine, no probe program, or no container starts.
    """
    engine = find_engine(environment)
    with tempfile.TemporaryDirectory(prefix="lumiimg-probe-") as scratch:
        task = make_task(engine, path, image, static, manifest, environment, Path(scratch), simulate=simulate)
        return carry_out(task, engine, environment)


def _refuse_elsewhere(manifest: Manifest, snapshot: Snapshot) -> None:
    """Raise MissingHereError where the libraries that a manifest binds are those of another machine."""
    here = platform.node().partition(".")[0]
    gone = next((bind.source for bind in manifest.binds if not Path(bind.source).exists()), None)
    if here != snapshot.host or gone is not None:
        why = f"{gone} is not here" if gone is not None and here == snapshot.host else f"this is {here}"
        raise MissingHereError(
            f"not taken: its binds are those of {snapshot.host}, {why}", hint=f"run the check on {snapshot.host}"
        )


def _with_command(findings: tuple[Finding, ...], labels: Mapping[str, str]) -> tuple[Finding, ...]:
    """Add the command that builds the same stack with a plugin, where the image says what it was built from."""
    lacking = next((finding for finding in findings if finding.id == "plugin.absent"), None)
    if lacking is None:
        return findings
    base, *layers = layers_of(labels) or ["BASE"]
    words = ["lumiimg build", f"--base {base}", *(f"--add {layer}" for layer in layers), f"--add {_PLUGIN_LAYER}"]
    remedy = " ".join([*words, "-o with-plugin.sif"])
    if base == "BASE":
        remedy += "   (`lumiimg list` shows the bases)"
    return tuple(replace(finding, remedy=(remedy,)) if finding is lacking else finding for finding in findings)
