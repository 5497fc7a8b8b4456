"""Answers of `job`, `module` and `venv`: what was made for an image, what it does not do, and what to type next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.core.files import free_name
from lumiimg.core.findings import Advice, Remedy, Severity, first_command
from lumiimg.core.text import as_operand, count, shell_join
from lumiimg.fabric.path import Fabric
from lumiimg.report.document import Document, Item, Lines, Paragraph, Section, facts_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.build.venv import WrittenVenv
    from lumiimg.cluster.job.plan import JobPlan
    from lumiimg.cluster.module.plan import ImageModule

_PLACEHOLDERS = {
    "$SLURM_JOB_ID": "JOBID",
    "$PBS_JOBID": "JOBID",
    "$MASTER_ADDR": "NODE",
    '"$LUMIIMG_JOB/vllm.key"': "lumiimg-JOBID/vllm.key",
}
"""Names shown in place of the variables of a script."""


def job_document(plan: JobPlan, script: Path) -> Document:
    """Return the answer for a script in a file; if there are obstacles, their remedy comes before submitting it."""
    command = f"{plan.scheduler.submit} {shlex.quote(str(script))}"
    is_slurm = plan.scheduler.name == "Slurm"
    where = "with your project in SBATCH_ACCOUNT" if is_slurm else "with -A and your project"
    advice = Advice(None, command, None if plan.shape.account else where)
    if plan.obstacles:
        advice = Advice(None, first_command(remedy for finding in plan.obstacles for remedy in finding.remedy))
    return Document(
        command="job",
        subject=plan.request.image,
        sentence=f"wrote {script}",
        advice=advice,
        sections=(Section("Notes", notes_of_job(plan)),),
    )


def notes_of_job(plan: JobPlan) -> Iterator[Item]:
    """Yield the notes about the job."""
    clients = [_as_typed(client) for client in plan.clients]
    for note in plan.notes:
        is_of_server = plan.serving is not None and note == plan.serving.note
        yield Item(Severity.UNKNOWN, note, remedies=tuple(clients[:1]) if is_of_server else ())
        for client in clients[1:] if is_of_server else ():
            yield Item(Severity.UNKNOWN, client.text, remedies=(Remedy(command=client.command),))


def _as_typed(client: Remedy) -> Remedy:
    """Return a command with names in place of values that only the job knows."""
    command = client.command or ""
    for variable, name in _PLACEHOLDERS.items():
        command = command.replace(variable, name)
    return Remedy(client.text, command, client.where)


def module_document(module: ImageModule) -> Document:
    """Return the answer that a module was written: what it does, and how to load it."""
    facts = [("commands", ", ".join(module.commands) or "none that lumiimg knows"), ("binds", _binds(module))]
    facts.append(("set by the module", ", ".join(item.name for item in module.by_module)))
    facts.append(("set by the wrappers, for each rank", ", ".join(item.name for item in module.by_wrappers)))
    commands = (
        f"module use {shlex.quote(str(module.use))}",
        f"module load {module.full_name}",
        module.commands[0] if module.commands else 'singularity shell "$SIF"',
    )
    return Document(
        "module",
        module.full_name,
        f"wrote module {module.full_name} for {module.title}",
        sections=(
            facts_section("What it does", facts),
            Section("Notes", (Item(Severity.UNKNOWN, note) for note in module.notes)),
            Section("next:", (Lines(commands),), is_headed=True),
        ),
        is_list=True,
    )


def _binds(module: ImageModule) -> str:
    if not module.binds:
        return "nothing"
    libraries, boundary = len(module.host_files), module.boundary
    if boundary is None and not libraries:
        return f"{count(len(module.binds), 'path')} of the site, no library of the machine"
    of_host = f"{count(libraries, 'library')} of {boundary.host if boundary else 'the machine'}"
    fabric = boundary.fabric if boundary else Fabric.HOST
    return f"{of_host}, {count(len(module.binds) - libraries, 'other path')} (fabric {fabric.value})"


def venv_document(made: WrittenVenv, image: Path, output: Path) -> Document:
    """Return the answer that a venv was made over an image; both are named as the user named them."""
    record, doubt = made.record, made.doubt
    stays = f"its torch {record.torch} stays" if record.torch else "its packages stay"
    instead = (f"replacing the image's {name} {was}" for name, was in record.replaces.items())
    words = ("lumiimg", "job", as_operand(str(image)), "--venv", as_operand(str(output)), "-o", free_name("job.sh"))
    packages = ", ".join(f"{name} {version}" for name, version in sorted(record.packages.items()))
    doubts = (Item(Severity.UNKNOWN, f"{doubt}: packages that only it adds were not checked"),) if doubt else ()
    about = f"only for Python {record.python} of this image; nothing was imported"
    return Document(
        "venv",
        str(output),
        ", ".join((f"made {output} over {image}: {count(len(record.packages), 'package')}", *instead, stays)),
        Severity.OK,
        Advice(next=f"{shell_join(words)} -- python train.py"),
        sections=(
            Section("Packages", (Paragraph(packages), Paragraph(about, quiet=True))),
            Section("What is not known", doubts),
        ),
        is_list=True,
    )
