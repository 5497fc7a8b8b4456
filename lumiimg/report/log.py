"""What `lumiimg log` says: the verdict, the line that proves it, the cause, the remedy, the nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lumiimg.errors import ExitCode, printable
from lumiimg.findings import NO_ADVICE, Advice, Finding, Severity
from lumiimg.nccl.report import Confidence, Verdict, answer_of
from lumiimg.nccl.vocabulary import vocabulary
from lumiimg.report.check import print_finding
from lumiimg.report.console import (
    INDENT,
    Priority,
    advise,
    console,
    cut,
    detail,
    heading,
    remedies,
    say,
    screen,
    verbatim,
)
from lumiimg.report.console import evidence as print_evidence
from lumiimg.report.console import headline as print_headline
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.check.run.job_log import ImageOfJob
    from lumiimg.nccl.report import Cause, Death, Evidence, LogReport, RankResult, VerdictGroup
    from lumiimg.report.console import Console

_SENTENCES = {
    Verdict.OFI_CXI: "the traffic went over Slingshot (libfabric, provider cxi)",
    Verdict.OFI_EFA: "the traffic went over EFA (libfabric, provider efa)",
    Verdict.OFI_OTHER: "libfabric was used, but not on Slingshot",
    Verdict.SOCKET: "the traffic went over TCP sockets, not over the fast network",
    Verdict.IB: "the traffic went over InfiniBand or RoCE verbs",
    Verdict.PLUGIN_MISSING: "the net plugin was not found; the log ends before a network is chosen",
    Verdict.PLUGIN_LOAD_ERROR: "the net plugin could not be loaded",
    Verdict.PLUGIN_INIT_ERROR: "the net plugin, or the provider under it, was loaded and failed to start",
    Verdict.INTRA_NODE_ONLY: "nothing crossed a network: each communicator stays on one node",
    Verdict.NONE: "this log does not say which network was used",
    Verdict.MIXED: "ranks used different networks",
}
_SELECTED = {
    Verdict.OFI_CXI: "Slingshot, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_EFA: "EFA, it seems: this log does not prove that traffic went over it",
    Verdict.OFI_OTHER: "libfabric was used; the log does not name its provider: Slingshot or TCP",
    Verdict.IB: "InfiniBand or RoCE verbs, it seems: this log does not prove that traffic went over them",
}
_CHOSEN = {
    _SENTENCES[Verdict.SOCKET]: "TCP sockets were chosen, not the fast network",
    _SELECTED[Verdict.IB]: "InfiniBand or RoCE verbs were chosen",
    _SENTENCES[Verdict.OFI_OTHER]: "libfabric was chosen, but not on Slingshot",
    _SELECTED[Verdict.OFI_OTHER]: "libfabric was chosen; the log does not name its provider: Slingshot or TCP",
    _SENTENCES[Verdict.MIXED]: "ranks chose different networks",
}
"""What is said in place of a sentence where no line shows that any rank was connected."""
KINDS = {ExitCode.GOOD: "ok", ExitCode.NO: "problem"}
_CONFIDENCE = {Confidence.PROVED: "proved by the log", Confidence.LIKELY: "likely", Confidence.UNKNOWN: "not certain"}
_NAMES = frozenset({"Slingshot", "Slurm"})
"""That keep their capital within a sentence."""
_CAUSES_SHOWN, _LINES_SHOWN, _GROUPS_SHOWN, _RUNS_SHOWN = 3, 3, 12, 5


def headline(report: LogReport) -> str:
    """Return the answer in one line: what ended the job, where something did, else the network."""
    if report.ended is not None:
        return f"{report.ended.id}: {died(report.ended)}"
    if report.verdict is Verdict.NONE and report.progress and report.stall:
        return f"stalled: {_ranks(report.stall.ranks)} {report.stall.reason}"
    return network(report)


def died(death: Death) -> str:
    """Return what ended a job, and whom it hit."""
    many = death.rank is not None and not death.rank.isdecimal()
    rank = f"{'ranks' if many else 'rank'} {death.rank}" if death.rank else ""
    node = f"{'on ' if rank else ''}{death.node}" if death.node else ""
    where = " ".join(part for part in (rank, node) if part)
    return f"{death.summary} ({where})" if where else death.summary


def network(report: LogReport) -> str:
    """Return which network the job used, in one line."""
    failed = "; then a transfer or a collective failed" if report.failed_running and report.ended is None else ""
    if report.nothing_crossed:
        unsure = "; what other nodes did it does not show" if report.other_nodes_silent else ""
        return f"{report.verdict.value}: {_SENTENCES[Verdict.INTRA_NODE_ONLY]}{failed}{unsure}"
    answer = answer_of(report.verdict, report.provider, report.confidence)
    sentence = _sentence(report.verdict, answer)
    if not _shows_traffic(report) and (chosen := _CHOSEN.get(sentence)):
        sentence = f"{chosen}; no line shows traffic"
    return f"{report.verdict.value}: {sentence}{failed} ({_CONFIDENCE[report.confidence]}{_of_which(report)})"


def _shows_traffic(report: LogReport) -> bool:
    """Whether anything shows that ranks were connected, as what proves libfabric does."""
    proved = report.verdict is Verdict.OFI_OTHER and report.confidence is Confidence.PROVED
    measured = any(one.best_gb_s is not None for one in report.measurements)
    return proved or measured or report.connected or report.failed_running


def _of_which(report: LogReport) -> str:
    """Return by whose lines it is proved, where not all ranks told theirs."""
    told = report.told
    if report.confidence is not Confidence.PROVED or told.ranks >= (told.of_ranks or 0):
        return ""
    return f" of {_of(told.ranks, told.of_ranks, 'rank')}"


def _sentence(verdict: Verdict, answer: ExitCode) -> str:
    text = _SENTENCES[verdict]
    return _SELECTED.get(verdict, text) if answer is ExitCode.UNDECIDED else text


def json_keys(
    report: LogReport, measured: Sequence[Finding], image: ImageOfJob | None, answer: ExitCode
) -> dict[str, Any]:
    """Return the keys of the JSON beside the attributes of the report."""
    return {
        "answer": answer.name.lower(),
        "advice": advice_of(report),
        "ranks": dict(_keyed(report.ranks)),
        **asdict(report.transport),
        "environment": dict(report.environment),
        "findings": measured,
        "image": image,
    }


def _keyed(ranks: tuple[RankResult, ...]) -> list[tuple[str, RankResult]]:
    """Ranks by number; by number and process where several say to be the same (two jobs in one log)."""
    taken = Counter(r.rank for r in ranks)
    return [
        (r.process if r.rank is None else str(r.rank) if taken[r.rank] == 1 else f"{r.rank} {r.process}", r)
        for r in ranks
    ]


def to_junit_text(report: LogReport, measured: Sequence[Finding]) -> str:
    """Return the report as JUnit XML: a case for the job, one for each group of nodes and for each benchmark."""
    from lumiimg.report.junit import Case, to_junit  # xml is not for everyone

    causes = tuple(f"{cause.summary} [{cause.id}]" for cause in report.causes)
    proof = tuple(place(evidence) for evidence in report.proof)
    of_network = report.answer if report.ended is None else replace(report, ended=None).answer
    cases = [Case("network of the job", of_network, network(report), (*proof, *causes))]
    if report.ended is not None:
        cases.append(Case("end of the job", ExitCode.NO, headline(report), causes[:1]))
    for group in report.nodes:
        answer = answer_of(group.verdict, group.provider, group.confidence)
        answer = ExitCode.GOOD if report.nothing_crossed else answer
        verdict = Verdict.INTRA_NODE_ONLY if report.nothing_crossed else group.verdict
        cases.append(Case(f"network of {group.names}", answer, _sentence(verdict, answer)))
    for finding in measured:
        answer = ExitCode.NO if finding.severity is Severity.PROBLEM else ExitCode.GOOD
        cases.append(Case(f"{finding.id} {finding.where}", answer, finding.summary))
    return to_junit("lumiimg log", cases)


def print_log(
    report: LogReport,
    measured: Sequence[Finding],
    image: ImageOfJob | None,
    *,
    verbose: bool,
    quiet: bool = False,
    stderr: bool = False,
) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        print_headline(out, headline(report), KINDS.get(report.answer, "unknown"))
        causes, said = list(report.causes), set[str]()
        first = causes.pop(0) if causes and report.answer is not ExitCode.GOOD else None
        if first is not None:
            advise(out, advice_of(report))
            out.print()
        if report.ended is not None:
            say(out, f"network: {network(report)}", priority=Priority.ALWAYS)
        stall = "" if headline(report).startswith("stalled: ") else stall_line(report)
        for line in [*filter(None, [stall]), *known(report)]:
            detail(out, line, style="dim")
        proof = report.proof[: 1 if report.ended is not None else _LINES_SHOWN]
        for evidence in proof:
            print_evidence(out, place(evidence), priority=Priority.REASON)
        if first is not None:
            if report.ended is not None or report.proof or stall or known(report):
                out.print()
            said.update(first.remedy[:1])
            _print_rest(out, first, said, proof)
        # on one node a plugin that is not there is no reason to worry
        few = report.single_node or report.ended is not None
        limit = (
            len(causes)
            if verbose
            else max(0, (2 if report.ended else 1) - (first is not None))
            if few
            else (_CAUSES_SHOWN - (first is not None))
        )
        word = "note" if report.answer is ExitCode.GOOD or report.ended is not None else "why"
        for cause in causes[:limit]:
            _print_cause(out, cause, word, said)
        if len(causes) > limit:
            out.print(f"\n{len(causes) - limit} more with --verbose", style="dim")
        _print_nodes(out, report, verbose=verbose)
        _print_differences(out, report, verbose=verbose)
        if shown := [
            f for f in measured if verbose or f.severity is not Severity.INFO or len(measured) < _GROUPS_SHOWN
        ]:
            out.print()
            for finding in shown:
                print_finding(out, finding)
        if image is not None:
            _print_image(out, image)
        if verbose and report.environment:
            heading(out, "variables in the log")
            for name, value in report.environment:
                verbatim(out, f"{INDENT}{name}={value}")


def known(report: LogReport) -> list[str]:
    """Return what the answer is about, what was used, and how, in a few lines."""
    way = report.transport
    first = [f"{part.name} {part.version}" for part in (report.library, report.plugin) if part is not None]
    first += [f"provider {report.provider}"] if report.provider else []
    second = [f"{way.nics} NICs"] if way.nics else []
    second += [f"protocol {way.protocol}"] if way.protocol else []
    second += [] if way.gdr is None else ["GPUDirect RDMA" if way.gdr else "no GPUDirect RDMA"]
    second += ["PXN"] if way.pxn else []
    second += [f"sockets on {', '.join(way.interfaces)}"] if way.interfaces else []
    return [*_parts_of_log(report), *(", ".join(parts) for parts in (first, second) if parts)]


def _parts_of_log(report: LogReport) -> list[str]:
    """Return what part of a job the log is, or which of several."""
    lines = []
    if before := report.runs_before:
        runs = [
            f"from line {run.first_line} on {run.verdict.value}{f', ended by {run.ended.id}' if run.ended else ''}"
            for run in before[-_RUNS_SHOWN:]
        ]
        more = "the last of them " if len(before) > _RUNS_SHOWN else ""
        lines.append(
            f"the log holds {len(before) + 1} runs; this is about the last one, from line {report.first_line} on. "
            f"Before it: {more}{'; '.join(runs)}"
        )
    if report.excerpt:
        lines.append("an excerpt: no line of it that counts here names its process, so it proves nothing alone")
    return lines


def next_command(remedy: Sequence[str]) -> tuple[str, str | None]:
    """Return (the first thing to do, as it is typed; where, or what for)."""
    step = remedy[0]
    reason, colon, command = step.partition(": ")
    if not colon or not reason[:1].isupper() or reason.startswith("LD_"):
        return step, None
    is_name = not reason[1:2].islower() or reason.partition(" ")[0] in _NAMES
    return command, reason if is_name else f"{reason[0].lower()}{reason[1:]}"


def advice_of(report: LogReport) -> Advice:
    """Return why, and one command: with the headline they are what is read first, and often alone."""
    if not report.causes or report.answer is ExitCode.GOOD:
        return NO_ADVICE
    cause = report.causes[0]
    is_end = report.ended is not None and cause.id == report.ended.id and cause.because
    why = cause.because[0] if is_end else f"{cause.summary}  [{cause.id}]"
    return Advice(why, *next_command(cause.remedy)) if cause.remedy else Advice(why)


def _print_cause(out: Console, cause: Cause, word: str, said: set[str]) -> None:
    out.print()
    say(out, f"{word}: {cause.summary}  [{cause.id}]")
    _print_rest(out, cause, said)


def _print_rest(out: Console, cause: Cause, said: set[str], shown: Sequence[Evidence] = ()) -> None:
    """Print what stands behind a cause, but for evidence and remedies that are printed already."""
    for evidence in cause.evidence[:_LINES_SHOWN]:
        if evidence not in shown:
            print_evidence(out, place(evidence))
    for number, reason in enumerate(cause.because, 1):
        say(out, f"{number}. {reason}", first=INDENT, rest=INDENT + "   ", priority=Priority.WELL)
    remedies(out, [remedy for remedy in cause.remedy if remedy not in said])
    said.update(cause.remedy)
    say(out, f"source: {cause.source}", first=INDENT, style="dim", priority=Priority.MORE)


def _print_nodes(out: Console, report: LogReport, *, verbose: bool) -> None:
    groups, silent = report.nodes, told_line(report)
    told = report.told
    missing = told.ranks < (told.of_ranks or 0) or told.nodes < (told.of_nodes or 0)
    out.print()
    if silent:
        out.print(silent, style="yellow" if missing else "dim")
    if len(groups) < 2 and not missing and not verbose:
        return
    for group in groups if verbose else groups[:_GROUPS_SHOWN]:
        names = group.names if verbose else cut(out, group.names, " " * 14)
        say(out, _group(group, names), first="  ", rest=" " * 14)
    if len(groups) > _GROUPS_SHOWN and not verbose:
        out.print(f"{len(groups) - _GROUPS_SHOWN} more groups with --verbose", style="dim")


def stall_line(report: LogReport) -> str:
    """Return with which ranks a stall began."""
    if report.stall is None:
        return ""
    return f"the stall began with {_ranks(report.stall.ranks)}, which {report.stall.reason}"


def _ranks(ranks: str) -> str:
    return f"{'rank' if ranks.isdecimal() else 'ranks'} {ranks}"


def progress_lines(report: LogReport) -> list[str]:
    """Return how far each rank came, where dumps of the flight recorder say so."""
    return [
        f"rank {one.rank}, process group {one.group}: began {max(one.begun, 0)}, ended {max(one.completed, 0)}"
        f"{f', waits in {one.waits_in}' if one.waits_in else ''}"
        for one in report.progress
    ]


def differences(report: LogReport) -> list[str]:
    """Return the values that are not the same in all processes, a line each."""
    lines = []
    for one in report.differing:
        who = _ranks(one.ranks) if one.ranks else count(one.count, "process")
        lines.append(f"{one.name}={one.value}  {who}{f' on {one.nodes}' if one.nodes else ''}")
    return lines


def _print_differences(out: Console, report: LogReport, *, verbose: bool) -> None:
    if lines := differences(report):
        heading(out, "variables that differ between ranks")
        shown = lines if verbose else lines[:_GROUPS_SHOWN]
        for line in shown:
            verbatim(out, f"{INDENT}{line if verbose else cut(out, line, INDENT)}")
    if verbose and report.progress:
        heading(out, "how far each rank came")
        for line in progress_lines(report):
            verbatim(out, f"{INDENT}{line}")
    if verbose and report.channels:
        heading(out, "how ranks were connected")
        for way in report.channels:
            out.print(f"{way.ranks:>6} {'rank ' if way.ranks == 1 else 'ranks'}  {way.way}")


def told_line(report: LogReport) -> str:
    """Return how many ranks and nodes reported their network; nothing where no process of a job is seen."""
    told = report.told
    if not told.ranks and not told.of_ranks:
        return ""
    # where no line names a host, none of the nodes could tell
    of_nodes = told.of_nodes if told.nodes else None
    parts = [_of(told.ranks, told.of_ranks, "rank"), _of(told.nodes, of_nodes, "node") if told.nodes else ""]
    return f"reported their network: {', '.join(part for part in parts if part)}"


def _group(group: VerdictGroup, names: str) -> str:
    what = ", ".join(part for part in (group.network, group.provider, group.cause) if part)
    noun = "node " if len(group.nodes) == 1 else "nodes"
    return printable(f"{len(group.nodes):>6} {noun}  {group.verdict.value:<18} {what:<24} {names}")


def _of(number: int, total: int | None, noun: str) -> str:
    return f"{number} of {total} {noun}s" if total else count(number, noun)


def _print_image(out: Console, image: ImageOfJob) -> None:
    out.print()
    say(out, f"image {image.image}: {image.sentence}", style="bold")
    for finding in image.findings:
        print_finding(out, finding)


def print_signatures() -> None:
    """Print the messages that the log reader knows, for a person."""
    out = console()
    known = vocabulary()
    kinds, troubles = len(known.entries), len(known.signatures)
    print_headline(out, f"{kinds} kinds of messages, {troubles} of them troubles; --json has all")
    for signature in known.signatures.values():
        versions = f", {signature.versions}" if signature.versions else ""
        say(out, f"{signature.id}  [{signature.weight.value}{versions}]", style="bold")
        detail(out, signature.summary)
        print_evidence(out, signature.example)
        detail(out, f"source: {signature.source} ({signature.date})", style="dim")


def place(evidence: Evidence) -> str:
    """Return a line with where it stands."""
    return printable(f"{evidence.file}:{evidence.line}: {evidence.text}")
