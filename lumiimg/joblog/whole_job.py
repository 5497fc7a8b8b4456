"""What only all ranks of a job together show: nodes that differ from others, variables that do, where stalls began."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.core.redact import is_secret_name, redact
from lumiimg.core.text import shell_quote
from lumiimg.joblog.node_names import folded
from lumiimg.joblog.report import FAST, Cause, Channels, DifferentValue, RankResult, Stall, Told, Verdict, VerdictGroup
from lumiimg.joblog.vocabulary import Occasion, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.joblog.events import ProcessState

_VARIABLES, _NAMED = 32, 64
"""Variables that are reported to differ, and ranks that are named."""


def some_nodes(verdict: Verdict, groups: Sequence[VerdictGroup], *, out_of_time: bool) -> Cause | None:
    """Return what is said first of a job that used the fast network on most of its nodes, and not on others.

    Of one that was `out_of_time`, it is said of any number of them.
    """
    fast = sum(group.count for group in groups if group.verdict in FAST)
    slow = [node for group in groups if group.verdict not in FAST for node in group.nodes]
    most_are_fast = verdict is Verdict.MIXED and fast >= len(slow)
    when = Occasion.SOME_NODES if most_are_fast else Occasion.TIME_LIMIT
    advice = next((one for one in vocabulary().advice if one.when is when and verdict in one.verdicts), None)
    if not slow or advice is None or not (most_are_fast or out_of_time):
        return None
    names = folded(slow)
    counts = {"slow": f"{len(slow)}", "all": f"{fast + len(slow)}", "fast": f"{fast}"}
    # names in brackets are a pattern for a shell, and those of a log are anybody's
    words = {"without": shell_quote(f"--exclude={names}"), "only": shell_quote(f"--nodelist={names} --gpus-per-node=8")}
    summary, *because = (text.format_map({**counts, "nodes": names}) for text in (advice.summary, *advice.because))
    remedy = tuple(step.filled(counts | words) for step in advice.remedy)
    return Cause(advice.id, summary, tuple(because), remedy, advice.source, ())


def differing(
    holders: Mapping[tuple[str, str], set[str]], processes: Iterable[ProcessState]
) -> tuple[DifferentValue, ...]:
    """Return each value of the variables that have another value in other processes, the most common value first."""
    names = {process.name: process for process in processes}
    values: dict[str, list[str]] = {}
    for name, value in holders:
        values.setdefault(name, []).append(value)
    found = []
    for name in sorted(values):
        several = Counter(process for value in values[name] for process in holders[name, value])
        once = {value: {p for p in holders[name, value] if several[p] == 1} for value in values[name]}
        who = {value: of for value, of in once.items() if of}
        if len(who) < 2 or is_secret_name(name):
            continue
        for value, of in sorted(who.items(), key=lambda pair: (-len(pair[1]), pair[0])):
            nodes = {node for process in of if (p := names.get(process)) and (node := p.node)}
            found.append(DifferentValue(name, redact(value), len(of), _ranks(of, names), folded(nodes)))
    return tuple(found[: 2 * _VARIABLES])


def _ranks(of: Iterable[str], names: Mapping[str, ProcessState]) -> str:
    """Return the ranks of processes: `0-3,8`; nothing where one of them does not say its own."""
    ranks = set()
    for process in of:
        known = {c.rank for p in [names.get(process)] if p for c in p.communicators.values()}
        task = process.removeprefix("task ")
        known = known or ({int(task)} if task.isdecimal() else set())
        if len(known) != 1:
            return ""
        ranks |= known
    return spans(ranks)


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as Slurm writes them: `0-3,8`; of very many the first."""
    text = folded(f"rank{number}" for number in sorted(numbers)[: _NAMED * 64])
    inner = text.removeprefix("rank").strip("[]")
    parts = inner.split(",")
    return inner if len(parts) <= _NAMED else f"{','.join(parts[:_NAMED])},…"


def channels(processes: Sequence[ProcessState]) -> tuple[Channels, ...]:
    """Return by which ways ranks were connected, and how many of them by each."""
    ways: Counter[str] = Counter()
    for process in processes:
        kinds = {f"{s.value('what')} connected" for s in process.saw("connected")}
        kinds |= {s.value("way") for s in process.saw("local-channel")}
        kinds |= {f"NET/{s.value('network')}{s.value('gdr')}" for s in process.saw("channel")}
        kinds |= {
            f"{s.value('coll')} channels of collectives, {s.value('p2p')} of send and receive"
            for s in process.saw("channels")
        }
        ways.update(kinds)
    return tuple(Channels(way, count) for way, count in sorted(ways.items(), key=lambda pair: (-pair[1], pair[0])))


def stall(job: ProcessState, ranks: Sequence[RankResult], told: Told) -> Stall | None:
    """Return which ranks a stall began with: those behind the others, or those that never said that they waited."""
    begun = {int(s.value("rank")): int(s.value("enqueued")) for s in job.saw("work-begun")}
    last = max(begun.values(), default=-1)
    if behind := {rank for rank, number in begun.items() if 0 <= number < last}:
        return Stall(
            spans(behind), f"had begun {min(begun[rank] for rank in behind)} collectives where others had begun {last}"
        )
    waited = {int(s.value("rank")) for s in job.saw("collective-waited")}
    everyone = {rank.rank for rank in ranks if rank.rank is not None}
    if told.of_ranks and len(waited) <= told.of_ranks:
        everyone = set(range(told.of_ranks))
    missing = everyone - waited
    if waited and missing and 2 * len(missing) <= len(everyone):
        return Stall(spans(missing), "never reported that a collective timed out, as the others did")
    return None
