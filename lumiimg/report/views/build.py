"""What a build answers: the definitions, the start, the result; the lock that it is made from; and `adapt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.build.builder import BuildResult, BuiltImage, RebuildResult
from lumiimg.check.static.commands import concluded
from lumiimg.definition.writer import FLAT
from lumiimg.errors import printable
from lumiimg.findings import NO_ADVICE, Advice, Severity
from lumiimg.report.document import Block, Document, Item, Lines, Meter, Paragraph, Section, Shown
from lumiimg.report.views.image import difference_lines, differences_document
from lumiimg.report.views.request import doubts_of, rows_of_lock, stack_table
from lumiimg.resolve.request import Request, words_of
from lumiimg.wording import count, duration, engine_word, operand, size, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from lumiimg.build.unfetched import WrittenDefinitions
    from lumiimg.catalog.layers import Layer
    from lumiimg.check.adaptation import NothingAdded
    from lumiimg.engine.engine import Engine
    from lumiimg.findings import Finding
    from lumiimg.resolve.lock import Lock
    from lumiimg.resolve.lock_diff import LockChange, LockDiff, WrittenLock

_HAS = ("os", "glibc", "python", "rocm", "rccl", "torch", "vllm", "sglang", "net-api")
"""What is said of an image that is built on."""


def doubts_section(lock: Lock) -> Section:
    """Return what was never built, and what the rules warn of or could not decide."""
    return Section("What is not sure", doubts_of(lock))


def definitions_document(written: WrittenDefinitions) -> Document:
    """Return which files were written, and how to build from them."""
    definitions, folder, fetch = written.definitions, written.folder, written.fetch
    commands = []
    for definition in definitions:
        options = "--fakeroot --no-https" if definition.plain_http else "--fakeroot"
        name = "image" if definition.name == FLAT else definition.name
        commands.append(f"{engine_word()} build {options} {name}.sif {definition.name}.def")
    flat = definitions[-1].name == FLAT
    blocks: list[Block] = [Lines(tuple(f"{one.name}.def" for one in definitions))]
    if fetch is not None:
        unfetched = "sources could not be reached from here, and are not beside them; where there is a network:"
        blocks += [Paragraph(unfetched), Lines((typed(["sh", str(fetch)]),))]
    blocks.append(Paragraph("to build them, one after the other:"))
    blocks.append(Lines((typed(["cd", str(folder)]), *(commands[:-1] if flat else commands))))
    if flat:
        blocks += [Paragraph("or all at once:"), Lines((commands[-1],))]
    return Document(
        command="build",
        subject=str(folder),
        is_list=True,
        sentence=f"wrote {count(len(definitions), 'definition file')} into {folder}",
        sections=(Section("The files, and how to build them", blocks),),
    )


def start_document(lock: Lock, engine: Engine, output: Path, way: str) -> Document:
    """Return what is about to be built, and with what."""
    notes = (
        f"{one.location}: {one.note} (sha256 {one.sha256})" for layer in lock.stack for one in layer.sources if one.note
    )
    agent = f"{lock.base.layer.name} by {lock.bootstrap.agent}: {lock.bootstrap.because}"
    return Document(
        command="build",
        subject=str(output),
        is_list=True,
        sentence=f"building {_stack(lock)} → {output}  ({engine.name})",
        summary=(way, agent, *notes),
        sections=(doubts_section(lock),),
    )


def built_document(result: BuildResult | RebuildResult) -> Document:
    """Return what was built, and what to do next; of a rebuild, in which files it differs."""
    built, lock = result.built, result.plan
    differences = result.beside if isinstance(result, RebuildResult) else None
    name, length = str(built.image), size(built.size_bytes)
    sentence = f"is this image already, by its number, {length}; nothing was built"
    if built.is_new:
        sentence = f"built in {duration(built.seconds)}, {length} (log: {name}.log)"
    beside = ""
    if lock is None:
        beside = "the same bytes as the image that it was built from"
        if differences is not None:
            beside = f"beside the image that it was built from: {differences_document(differences).sentence}"
    # a name that is not printable could not be copied
    check = Advice(next=typed(["lumiimg", "check", operand(name)])) if name == printable(name) else NO_ADVICE
    return Document(
        command="build" if lock is not None else "rebuild",
        subject=name,
        is_named=True,
        severity=Severity.OK,
        sentence=sentence,
        advice=check,
        summary=(beside,) if beside else (),
        sections=(
            difference_lines(differences.files if differences is not None else ()),
            Section("What each part took", tuple(_stages(built)) if built.is_new else ()),
            Section("What is in it", (stack_table(rows_of_lock(lock)),) if lock is not None else (), Shown.PAGE),
        ),
    )


def _stages(built: BuiltImage) -> Iterator[Meter]:
    """Yield the parts of a build, each with how much of the whole it took."""
    whole = sum(stage.seconds for stage in built.stages) or 1.0
    for stage in built.stages:
        words = f"kept from an earlier build, {size(stage.size_bytes)}"
        if not stage.reused:
            words = f"took {duration(stage.seconds)}, cpu {duration(stage.cpu_seconds)}, {size(stage.size_bytes)}"
        yield Meter(stage.name, words, 0.0 if stage.reused else stage.seconds / whole)


def _stack(lock: Lock) -> str:
    return " + ".join(layer.layer.name for layer in lock.stack)


def lock_document(lock: Lock, request: Request, written: WrittenLock, beyond: Sequence[str]) -> Document:
    """Return what was locked for a request; `beyond` is what is not from where the catalogue has it."""
    path = written.lock
    wheels = sum(len(layer.wheels) for layer in lock.stack)
    sources = sum(len(layer.sources) for layer in lock.stack)
    parts = [count(len(lock.layers), "layer"), count(sources, "source"), count(wheels, "Python distribution")]
    notes = ["no difference to what was there"] if written.replaces and not written.changes else []
    if (lock.bootstrap.image is None or lock.bootstrap.image.digest is None) and not lock.bootstrap.sha256:
        notes.append(f"the base has no digest: it is what {lock.bootstrap.agent} finds when it is built")
    notes += (f"not by the catalogue: {one}" for one in beyond)
    words = ["lumiimg", "build", "--locked", *([] if str(path) == "lumiimg.lock" else ["--lock", str(path)])]
    # a lock has neither: where things are fetched from is a matter of the machine
    found_by = words_of(("--mirror", request.mirrors), ("--layers", request.layers))
    words += ["--trust-lock"] if beyond else []
    command = f"{typed(words)}{f' {found_by}' if found_by else ''} -o image.sif"
    return Document(
        command="lock",
        subject=str(path),
        is_named=True,
        sentence=f"{lock.base.layer.name} with {', '.join(parts)}, fabric {lock.fabric.value}",
        advice=Advice(next=command),
        sections=(
            _change_lines(written.changes),
            Section("Notes", (Paragraph(note, quiet=True) for note in notes)),
            doubts_section(lock),
        ),
    )


def changes_document(found: LockDiff) -> Document:
    """Return what two locks settle otherwise."""
    changes = found.changes
    return Document(
        command="diff",
        subject="two locks",
        is_list=True,
        sentence=count(len(changes), "difference") if changes else "no difference",
        sections=(_change_lines(changes),),
    )


def _change_lines(changes: Sequence[LockChange]) -> Section:
    lines = tuple(f"{one.what}: {one.old or '(not there)'} -> {one.new or '(gone)'}" for one in changes)
    return Section("Differences", (Lines(lines, what="differences"),))


# -- adapt --


def has_item(image: str, base: Layer) -> Item:
    """Return what is known of an image."""
    has = ", ".join(f"{name} {base.has[name]}" for name in _HAS if name in base.has)
    return Item(Severity.INFO, f"{image} has {has or 'nothing that is known here'}")


def objection_items(findings: Iterable[Finding], image: str, site: str, note: str = "") -> Iterator[Item]:
    """Yield what stands in the way, with what to do on this site."""
    for finding in findings:
        remedies = concluded(finding.remedy, image, site)
        yield Item(finding.severity, f"{finding.summary}{note}", tag=finding.id, remedies=remedies)


def nothing_document(image: str, result: NothingAdded, lock: Lock) -> Document:
    """Return what is said where nothing is built."""
    sentence, sections = f"{result.sentence}: nothing was built", (doubts_section(lock),)
    return Document("adapt", image, sentence, result.answer.severity, sections=sections)
