"""What `lumiimg explain` says, and `lumiimg bind` where it refuses: the boundary as a person reads it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from lumiimg.check.static.comparisons import Outcome
from lumiimg.elf.versions import numbers_of
from lumiimg.errors import printable
from lumiimg.fabric.names import LIBFABRIC
from lumiimg.fabric.path import Fabric
from lumiimg.report.console import (
    Priority,
    advise,
    branch,
    console,
    detail,
    evidence,
    headline,
    marked,
    remedies,
    say,
    screen,
)
from lumiimg.report.gpu_code import summary_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.check.static.boundary import Boundary
    from lumiimg.host.manifest import Loaded
    from lumiimg.host.margins import Margin
    from lumiimg.report.console import Console

KINDS = {Outcome.OK: "ok", Outcome.UNKNOWN: "unknown", Outcome.REFUSED: "problem"}
_SHOWN_MARGINS = 8
_OF_ATTEMPTS = frozenset({"glibc-gate", "library"})
_LOADERS = ("ld-linux", "ld64.")


def json_keys(boundary: Boundary) -> dict[str, Any]:
    """Return the keys of the JSON beside the attributes of the account."""
    return {
        "plugin": boundary.static.path.plugin,
        "glibc": {"image": boundary.glibc, "host": boundary.host_glibc},
        "margins": [
            {
                "library": margin.library,
                "from": _side(of_host=margin.of_host),
                "provider": margin.provider,
                "provider_from": _side(of_host=margin.provider_of_host),
                "need": f"{margin.family}_{margin.need}",
                "have": f"{margin.family}_{margin.have}",
            }
            for margin in boundary.margins
        ],
        "notes": boundary.manifest.notes if boundary.manifest else (),
    }


def print_boundary(boundary: Boundary, *, verbose: bool, quiet: bool = False, stderr: bool = False) -> None:
    with screen(verbose=verbose, quiet=quiet, stderr=stderr) as out:
        headline(out, f"{boundary.image}: {sentence(boundary)}", KINDS[boundary.decision])
        advise(out, boundary.advice)
        detail(out, sides_line(boundary), style="dim")
        if boundary.gpu is not None:
            detail(out, summary_of(boundary.gpu), style="dim")
        out.print()
        if boundary.loaded:
            _print_path(out, boundary)
        for rule in boundary.rules:
            if rule.outcome is not Outcome.OK:
                marked(out, KINDS[rule.outcome], f"{rule}  [{rule.id}]")
                if rule.because:
                    detail(out, rule.because, priority=Priority.WELL)
        if any(rule.outcome is not Outcome.OK for rule in boundary.rules):
            out.print()
        _print_margins(out, boundary, verbose=verbose)
        for note in boundary.manifest.notes if boundary.manifest else ():
            marked(out, "unknown", note)
        # where nothing loads, each way out is enough; what findings ask for is all to be done
        if boundary.fabric is Fabric.NONE:
            remedies(out, boundary.remedies, then="or")
        else:
            for remedy in boundary.remedies:
                remedies(out, [remedy])


def print_refusals(boundary: Boundary) -> None:
    """Print on standard error why no set of binds loads, attempt by attempt, and what to do."""
    out = console(stderr=True)
    manifest = boundary.manifest
    if manifest is None:
        first = next((finding.summary for finding in boundary.static.findings), "there is no loader in it")
        what = f"{'REFUSED' if boundary.decision is Outcome.REFUSED else 'CANNOT TELL'}: {first}"
    elif manifest.host_has_fabric:
        what = f"REFUSED: no set of binds of {boundary.host} loads"
    else:
        what = sentence(boundary)
    headline(out, f"{boundary.image}: {what}", KINDS[boundary.decision])
    advise(out, boundary.advice)
    for refusal in manifest.refusals if manifest else ():
        marked(out, "problem", f"{refusal.attempt}: {refusal}")
        evidence(out, refusal.words)
    remedies(out, boundary.remedies, then="or")


def print_doubts(boundary: Boundary) -> None:
    """Print on standard error what stands against RCCL's using what is bound."""
    out = console(stderr=True)
    for severity, text in doubts_of(boundary):
        marked(out, severity, text)


def doubts_of(boundary: Boundary) -> Iterator[tuple[str, str]]:
    """Yield, for each rule that stands against RCCL's using what is bound, (its kind of mark, a sentence).

    Also in what the manifest that the image carries differs from what is bound.
    """
    for rule in boundary.rules:
        if rule.outcome is not Outcome.OK:
            would = "would" if rule.outcome is Outcome.REFUSED else "perhaps would"
            yield KINDS[rule.outcome], f"with these binds RCCL {would} not use the fabric: {rule.clause}"
    if boundary.carried.against and boundary.carried.sentence:
        yield "info", boundary.carried.sentence


def sentence(boundary: Boundary) -> str:
    """Return the decision in one sentence."""
    if boundary.decision is Outcome.REFUSED:
        refused = [rule for rule in boundary.rules if rule.outcome is Outcome.REFUSED]
        # of several attempts, the one that the C library ends is the one that no bind can mend
        attempts = [rule for rule in refused if rule.id in _OF_ATTEMPTS]
        rule = next((rule for rule in attempts if rule.id == "glibc-gate"), (attempts or refused)[-1])
        return f"REFUSED: {rule.clause}"
    if boundary.decision is Outcome.UNKNOWN:
        if boundary.manifest is not None and not boundary.manifest.host_has_fabric:
            return f"CANNOT TELL: the snapshot of {boundary.host} has no libfabric with the cxi provider"
        if boundary.host:
            unknown = (rule.clause for rule in boundary.rules if rule.outcome is Outcome.UNKNOWN)
            found = (finding.summary for finding in boundary.static.findings)
            return "CANNOT TELL: " + next(itertools.chain(unknown, found), "there is no loader in it")
        return "CANNOT TELL from the image alone what the fabric path gets (a host snapshot would: --host)"
    if boundary.fabric is Fabric.BUNDLED:
        return f"no obstacle found: it brings its own fabric libraries, and needs none of {boundary.host}"
    return f"no obstacle found: with the libraries of {boundary.host} bound, the fabric path loads"


def sides_line(boundary: Boundary) -> str:
    """Return what each side has, in one line."""
    parts = [f"image: glibc {boundary.glibc or '?'}"]
    rccl = boundary.static.path
    if rccl.rccl:
        parts.append(f"RCCL {rccl.rccl_version or '?'}")
    if boundary.torch:
        parts.append(f"torch {boundary.torch}")
    if boundary.host:
        parts.append(f"host {boundary.host}: glibc {boundary.host_glibc or '?'}")
    return printable(" · ".join(parts))


def _print_path(out: Console, boundary: Boundary) -> None:
    """Print the fabric path as a tree: what is opened, and below it each library where it was first asked for."""
    path = boundary.static.path
    shown = {item.object.path: item for item in boundary.loaded}
    below: dict[str | None, list[Loaded]] = {}
    opened = [item for item in boundary.loaded if item.object.name in (*path.plugin_files, LIBFABRIC)]
    for item in boundary.loaded:
        above = item.object.requested_by
        below.setdefault(above.path if above else None, []).append(item)
    if path.rccl in shown:
        _print_file(out, shown[path.rccl], "")
    pending = [(item, 1) for item in reversed(opened[:1])]
    while pending:
        item, depth = pending.pop()
        _print_file(out, item, "    " * (depth - 1) + "└── ")
        pending += [(child, depth + 1) for child in reversed(below.get(item.object.path, []))]
    out.print()


def _print_file(out: Console, item: Loaded, indent: str) -> None:
    path = item.host_path or item.object.path
    side = "HOST " if item.host_path else "image"
    left = f"{side}  {indent}{item.object.facts.soname or item.object.name}"
    branch(out, left, path, below=" " * (len(side) + 2 + len(indent)), style="cyan" if item.host_path else None)


def _print_margins(out: Console, boundary: Boundary, *, verbose: bool) -> None:
    chosen = list(boundary.margins if verbose else _tightest(boundary.margins))
    if not chosen:
        return
    say(
        out,
        "every pair of versions" if verbose else "what meets at the boundary",
        style="bold",
        priority=Priority.REASON,
    )
    for margin in chosen if verbose else chosen[:_SHOWN_MARGINS]:
        left = f"; {margin_left(margin)}" if margin_left(margin) else ""
        detail(
            out,
            f"{margin.library_side} needs {margin.family}_{margin.need} of {margin.provider_side}: "
            f"it has up to {margin.family}_{margin.have}{left}",
        )
    gates = [margin for margin in chosen if margin.provider.startswith("libc.so.") and margin.of_host]
    if gates and boundary.decision is not Outcome.REFUSED:
        limit = f"libraries that need more than GLIBC_{gates[0].have}"
        detail(out, f"After a system update to {limit}, this image cannot load them.")
    out.print()


def _tightest(margins: Sequence[Margin]) -> Iterator[Margin]:
    """Yield, of the pairs across the boundary, the one that needs most for each provider and family."""
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


def _side(*, of_host: bool) -> str:
    return "host" if of_host else "image"
