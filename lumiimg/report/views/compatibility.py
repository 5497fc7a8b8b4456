"""What `explain IMAGE` answers: which library comes from where, which versions meet, and what margin is left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.answer import Answer
from lumiimg.check.static.host_fit import words_of
from lumiimg.elf.versions import numbers_of
from lumiimg.fabric.names import LIBFABRIC
from lumiimg.fabric.path import Fabric
from lumiimg.findings import Advice, Code, Severity, first_command
from lumiimg.report.document import Block, Document, Item, Meter, Paragraph, Row, Section, Shown, Table, Tree, trees_of
from lumiimg.report.views.findings import finding_items
from lumiimg.report.views.gpu_account import account_section, account_summary
from lumiimg.report.views.path import PATH, path_steps
from lumiimg.resolve.rules import RuleOutcome, RuleResult
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.check.static.host_fit import HostFit
    from lumiimg.host.manifest import Loaded
    from lumiimg.host.margins import Margin

_LOADERS = ("ld-linux", "ld64.")
_NEEDS_IT = " needs it"


def compatibility_document(report: CheckReport, fit: HostFit) -> Document:
    """Return what the check of an image's files answers, with which library comes from where."""
    summary = [sides_line(fit)]
    if fit.gpu is not None:
        summary.append(account_summary(fit.gpu))
    return Document(
        command="explain",
        subject=fit.image,
        is_named=True,
        severity=report.answer.severity,
        sentence=sentence(report, fit),
        advice=advice(report),
        summary=tuple(summary),
        sections=(
            Section("The libraries of the path", _tree(fit), Shown.TERMINAL),
            Section(PATH, (path_steps(report.steps),), Shown.PAGE),
            Section("Rules", _rules(fit)),
            Section("What meets at the boundary", _tightest_margins(fit), Shown.TERMINAL, is_headed=True),
            Section("Versions at the boundary", _margins(fit), Shown.VERBOSE),
            Section("What to do", _remedies(fit)),
            account_section(fit.gpu),
            Section("What was found", tuple(finding_items(report.findings)), Shown.PAGE),
            Section("Whose file each library is", tuple(_files(fit)), Shown.PAGE),
        ),
    )


def refusals_document(fit: HostFit, command: str) -> Document:
    """Return why no set of binds loads, attempt by attempt, and what to do."""
    manifest = fit.manifest
    if manifest is None:
        first = next((finding.summary for finding in fit.static.findings), "there is no loader in it")
        what = f"{'REFUSED' if fit.answer is Answer.NO else 'CANNOT TELL'}: {first}"
    elif manifest.host_has_fabric:
        what = f"REFUSED: no set of binds of {fit.host} loads"
    else:
        what = _no_fabric(fit)
    refusals = [
        Item(Severity.PROBLEM, f"{refusal.attempt}: {refusal}", evidence=(refusal.words,))
        for refusal in (manifest.refusals if manifest else ())
    ]
    return Document(
        command=command,
        subject=fit.image,
        is_named=True,
        severity=fit.answer.severity,
        sentence=what,
        advice=Advice(None, first_command(fit.remedies[:1])),
        sections=(Section("What was tried", (*refusals, *_remedies(fit))),),
    )


def doubts(fit: HostFit) -> tuple[Item, ...]:
    """Return what keeps RCCL from using what is bound, and where the manifest in the image differs from it."""
    found = []
    for finding in fit.static.findings:
        if finding.severity in {Severity.PROBLEM, Severity.UNKNOWN}:
            would = "would" if finding.severity is Severity.PROBLEM else "perhaps would"
            text = f"with these binds RCCL {would} not use the fabric: {finding.summary}"
            found.append(Item(finding.severity, text))
    if fit.carried.against and fit.carried.sentence:
        found.append(Item(Severity.INFO, fit.carried.sentence))
    return tuple(found)


def sentence(report: CheckReport, fit: HostFit) -> str:
    """Return the answer in one sentence, with what decides it."""
    if report.answer is Answer.NO:
        return f"REFUSED: {report.advice.why}"
    if report.answer is Answer.UNDECIDED:
        if fit.manifest is not None and not fit.manifest.host_has_fabric:
            return _no_fabric(fit)
        if fit.host:
            return f"CANNOT TELL: {report.advice.why}"
        return "CANNOT TELL from the image alone what the fabric path gets (a host snapshot would: --host)"
    if fit.fabric is Fabric.HOST:
        return f"no obstacle found: with the libraries of {fit.host} bound, the fabric path loads"
    return f"no obstacle found: it brings its own fabric libraries, and needs none of {fit.host or 'a host'}"


def advice(report: CheckReport) -> Advice:
    """Return what to do; why is a part of the sentence."""
    bound = [finding.remedy for finding in report.findings if finding.id is Code.BIND_LOADS]
    if report.answer is Answer.NO_OBSTACLE and bound:
        return Advice(None, first_command(bound[0]))
    return replace(report.advice, why=None)


def _no_fabric(fit: HostFit) -> str:
    return f"CANNOT TELL: the snapshot of {fit.host} has no libfabric with the cxi provider"


def sides_line(fit: HostFit) -> str:
    """Return what each side has, in one line."""
    parts = [f"image: glibc {fit.glibc or '?'}"]
    rccl = fit.static.path
    if rccl.rccl:
        parts.append(f"RCCL {rccl.rccl_version or '?'}")
    if fit.torch:
        parts.append(f"torch {fit.torch}")
    if fit.host:
        parts.append(f"host {fit.host}: glibc {fit.host_glibc or '?'}")
    return " · ".join(parts)


def _tree(fit: HostFit) -> tuple[Tree, ...]:
    """Return what is opened, and below it each library where it was first asked for."""
    path = fit.static.path
    below: dict[str | None, list[Loaded]] = {}
    for item in fit.loaded:
        above = item.object.requested_by
        below.setdefault(above.path if above else None, []).append(item)

    rccl = [item for item in fit.loaded if item.object.path == path.rccl]
    opened = [item for item in fit.loaded if item.object.name in (*path.plugin_files, LIBFABRIC)][:1]
    rows = [(0, _branch(item)) for item in rccl]
    pending = [(0, item) for item in opened]
    while pending:
        depth, item = pending.pop()
        rows.append((depth, _branch(item)))
        pending += [(depth + 1, child) for child in reversed(below.get(item.object.path, []))]
    return trees_of(rows)


def _branch(item: Loaded) -> Tree:
    side = "HOST " if item.host_path else "image"
    return Tree(f"{side}  {item.object.facts.soname or item.object.name}", item.host_path or item.object.path)


def _rules(fit: HostFit) -> Iterator[Block]:
    for rule in sorted(fit.rules, key=lambda rule: list(Severity)[::-1].index(rule.outcome.severity)):
        yield Item(
            rule.outcome.severity,
            _rule_words(rule) if rule.outcome is RuleOutcome.OK else words_of(rule),
            tag=rule.id,
            why=(rule.because,) if rule.because else (),
            source=rule.source,
            verbose=rule.outcome is RuleOutcome.OK,
        )
    for note in fit.manifest.notes if fit.manifest else ():
        yield Paragraph(note, Severity.UNKNOWN)


def _rule_words(rule: RuleResult) -> str:
    subject = f"{rule.because.removesuffix(_NEEDS_IT)} " if rule.because.endswith(_NEEDS_IT) else ""
    return subject + words_of(rule)


def _remedies(fit: HostFit) -> Iterator[Item]:
    """Yield what to do; where nothing loads, each way out is enough, else all of it is to be done."""
    if fit.remedies:
        any_one = fit.fabric is Fabric.NONE
        text = "Ways out, the nearest first; one is enough" if any_one else "What to do"
        yield Item(Severity.INFO, text, remedies=fit.remedies, any_one=any_one)


def _tightest_margins(fit: HostFit) -> Iterator[Block]:
    chosen = list(_tightest(fit.margins))
    yield from map(_meter, chosen)
    gates = [margin for margin in chosen if margin.provider.startswith("libc.so.") and margin.of_host]
    if gates and fit.answer is not Answer.NO:
        limit = f"libraries that need more than GLIBC_{gates[0].have}"
        yield Paragraph(f"After a system update to {limit}, this image cannot load them.")


def _margins(fit: HostFit) -> Iterator[Block]:
    crossing = sorted((margin for margin in fit.margins if margin.crosses), key=_spare)
    yield from map(_meter, crossing)
    if not crossing:
        words = "Without a snapshot of a node (--host) there is no other side to compare with."
        if fit.manifest:
            words = "No library of one side asks for a version of the other."
        yield Paragraph(words)


def _meter(margin: Margin) -> Meter:
    need, have = numbers_of(margin.need), numbers_of(margin.have)
    left = f"; {margin_left(margin)}" if margin_left(margin) else ""
    words = f"needs {margin.needed} of {margin.provider_side}, which has up to {margin.offered}{left}"
    if need[:1] != have[:1]:
        return Meter(margin.library_side, words, 0.0)
    severity = Severity.PROBLEM if need > have else Severity.OK if have > need else Severity.UNKNOWN
    return Meter(margin.library_side, words, min(_minor(need) / max(_minor(have), 1), 1.0), severity)


def _spare(margin: Margin) -> tuple[float, str]:
    need, have = numbers_of(margin.need), numbers_of(margin.have)
    return (_minor(have) - _minor(need) if need[:1] == have[:1] else float("inf"), margin.library)


def _minor(numbers: tuple[int, ...]) -> int:
    return numbers[1] if len(numbers) > 1 else 0


def _tightest(margins: Sequence[Margin]) -> Iterator[Margin]:
    """Yield, of the pairs across the fit, the one that needs most for each provider and family."""
    best: dict[tuple[str, str], Margin] = {}
    for margin in margins:
        key = (margin.provider, margin.family)
        if margin.provider.startswith(_LOADERS):
            continue  # of one build with the C library, which has a line of its own
        if margin.crosses and (key not in best or numbers_of(margin.need) > numbers_of(best[key].need)):
            best[key] = margin
    yield from best.values()


def margin_left(margin: Margin) -> str:
    """Return how many minor versions are left, where both are of one major."""
    need, have = numbers_of(margin.need), numbers_of(margin.have)
    if len(need) != 2 or len(have) != 2 or need[0] != have[0]:
        return ""
    left = have[1] - need[1]
    if left < 0:
        return f"{-left} too few"
    return "no margin" if left == 0 else f"{count(left, 'version')} left"


def _files(fit: HostFit) -> Iterator[Block]:
    rows = tuple(
        Row(
            (
                item.object.facts.soname or item.object.name,
                "host" if item.host_path else "image",
                item.host_path or item.object.path,
            )
        )
        for item in fit.loaded
    )
    if rows:
        caption = "The process of RCCL and its plugin, as the loader would fill it"
        yield Table(("library", "of the", "file"), rows, caption, "libraries")
    if fit.missing:
        yield Paragraph(f"Not in the image: {', '.join(fit.missing)}")
