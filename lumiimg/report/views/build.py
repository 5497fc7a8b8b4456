"""Answers of a build: the definitions, the start, the result; of the lock it is made from; and of `adapt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.static.commands import usable_remedies
from lumiimg.core.errors import one_safe_line
from lumiimg.core.findings import NO_ADVICE, Advice, Severity
from lumiimg.core.text import as_operand, count, duration, shell_join, size
from lumiimg.report.document import Block, Document, Item, Lines, Meter, Paragraph, Section, Shown
from lumiimg.report.views.image import difference_lines, differences_document
from lumiimg.report.views.request import cost_lines, doubts_section, stack_table, time_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lumiimg.build.builder import BuildResult, BuiltImage
    from lumiimg.build.cost import BuildCost
    from lumiimg.build.definition_files import WrittenDefinitions
    from lumiimg.catalog.layers import Layer
    from lumiimg.check.adaptation import NothingAdded
    from lumiimg.core.findings import Finding
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.written_lock import WrittenLock

_HAS = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
"""Components named for an image that serves as a base."""


def definitions_document(written: WrittenDefinitions) -> Document:
    """Return the files that were written, and how to build from them."""
    folder, fetch = written.folder, written.fetch
    names = tuple(f"{one.name}.def" for one in written.definitions) or (f"{written.dockerfile}",)
    blocks: list[Block] = [Lines(names)]
    if fetch is not None:
        blocks.append(Paragraph("some sources cannot be reached from here. Fetch them on a machine with a network:"))
        blocks.append(Lines((shell_join(["sh", str(fetch)]),)))
    there = shell_join(["cd", str(folder)])
    if written.dockerfile is not None:
        blocks += [Paragraph("to build it, and convert the image:"), Lines((there, *written.commands))]
        sentence = f"wrote a Dockerfile into {folder}"
    else:
        *steps, whole = written.commands
        blocks += [Paragraph("to build them, one after the other:"), Lines((there, *steps))]
        blocks += [Paragraph("or all at once:"), Lines((whole,))]
        sentence = f"wrote {count(len(written.definitions), 'definition file')} into {folder}"
    sections = (Section("The files, and how to build them", blocks),)
    return Document("build", str(folder), sentence, sections=sections, is_list=True)


def start_document(lock: Lock, output: Path, way: str, cost: BuildCost) -> Document:
    """Return what is about to be built, how, and at what cost."""
    notes = (
        f"{one.location}: {one.note} (sha256 {one.sha256})" for layer in lock.stack for one in layer.sources if one.note
    )
    names = " + ".join(layer.name for layer in lock.stack)
    return Document(
        "build",
        str(output),
        f"building {names} → {output}",
        summary=(
            way,
            f"{lock.base.name} by {lock.bootstrap.agent}: {lock.bootstrap.because}",
            *notes,
            *cost_lines(cost),
            *time_lines(lock.stack, lock.request, cost),
        ),
        sections=(doubts_section(lock),),
        is_list=True,
    )


def built_document(result: BuildResult) -> Document:
    """Return what was built and what to do next; for a rebuild, the files in which it differs."""
    built, lock, differences = result.built, result.plan, result.diff
    name, length = str(built.image), size(built.size_bytes)
    sentence = f"is already this image, built from the same sources ({length}): nothing was built"
    if built.is_new:
        sentence = f"built in {duration(built.seconds)}, {length} (log: {name}.log)"
    compared = ""
    if lock is None:
        compared = "the same bytes as the image that it was built from"
        if differences is not None:
            compared = f"compared with the image that it was built from: {differences_document(differences).sentence}"
    return Document(
        "build" if lock is not None else "rebuild",
        name,
        sentence,
        Severity.OK,
        # an unprintable name could not be copied
        Advice(next=shell_join(["lumiimg", "check", as_operand(name)])) if name == one_safe_line(name) else NO_ADVICE,
        (compared,) if compared else (),
        sections=(
            difference_lines(differences.files if differences is not None else ()),
            Section("What each part took", _stages(built)),
            Section("What is in it", (stack_table(lock.stack),) if lock is not None else (), Shown.PAGE),
        ),
        is_named=True,
    )


def _stages(built: BuiltImage) -> Iterator[Meter]:
    """Yield the parts of a build, each with its share of the total time."""
    whole = sum(stage.seconds for stage in built.stages) or 1.0
    for stage in built.stages if built.is_new else ():
        took, share = ("", 0.0) if stage.reused else (f"took {duration(stage.seconds)}, ", stage.seconds / whole)
        yield Meter(stage.name, f"{took}{stage.outcome}", share)


# -- locks --


def lock_document(written: WrittenLock) -> Document:
    """Return what was locked for a request."""
    return Document(
        "lock",
        str(written.lock),
        written.sentence,
        advice=Advice(next=written.command),
        sections=(
            Section("Differences", (Lines(tuple(map(str, written.changes))),)),
            Section("Notes", (Paragraph(note, quiet=True) for note in written.notes)),
            doubts_section(written.of),
        ),
        is_named=True,
    )


# -- adapt --


def has_item(image: str, base: Layer) -> Item:
    """Return what is known about an image."""
    has = ", ".join(f"{name} {base.has[name]}" for name in _HAS if name in base.has)
    return Item(Severity.INFO, f"{image} has {has or 'no component that lumiimg knows'}")


def objection_items(findings: Iterable[Finding], image: str, site: str, note: str = "") -> Iterator[Item]:
    """Yield the obstacles, with what to do about them on this site."""
    for finding in findings:
        remedies = usable_remedies(finding.remedy, image, site)
        yield Item(finding.severity, f"{finding.summary}{note}", tag=finding.id, remedies=remedies)


def nothing_document(image: str, result: NothingAdded, lock: Lock) -> Document:
    """Return the answer if nothing is built."""
    sentence = f"nothing was built: {result.sentence}"
    return Document("adapt", image, sentence, result.answer.severity, sections=(doubts_section(lock),))
