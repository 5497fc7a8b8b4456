"""What `lumiimg explain` says, and `lumiimg bind` where it refuses: the boundary as a person reads it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from lumiimg.check.boundary import Outcome
from lumiimg.elf.version_check import numbers_of
from lumiimg.errors import one_line
from lumiimg.host.manifest import Fabric
from lumiimg.report.console import MARKS, PLAIN_MARKS, STYLES, console
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from lumiimg.check.boundary import Boundary, Margin
    from lumiimg.host.manifest import Loaded, Refusal

SCHEMA = 1
_SEVERITIES = {Outcome.OK: "ok", Outcome.REFUSED: "problem", Outcome.UNKNOWN: "unknown"}
_STYLES = {Outcome.OK: "bold green", Outcome.REFUSED: "bold red", Outcome.UNKNOWN: "bold yellow"}
_SHOWN_MARGINS = 8
_LOADERS = ("ld-linux", "ld64.")


def to_json(boundary: Boundary) -> dict[str, Any]:
    """Return the account as JSON data (schema 1)."""
    manifest = boundary.manifest
    return {
        "schema": SCHEMA,
        "image": boundary.image,
        "host": boundary.host,
        "decision": boundary.decision.value,
        "fabric": boundary.fabric.value,
        "plugin": boundary.static.path.plugin,
        "torch": boundary.torch,
        "glibc": {"image": boundary.glibc, "host": boundary.host_glibc},
        "rules": [
            {
                "id": rule.id,
                "outcome": rule.outcome.value,
                "need": rule.need,
                "have": rule.have,
                "because": rule.because,
                "source": rule.source,
            }
            for rule in boundary.rules
        ],
        "nearest": None,
        "remedies": list(boundary.remedies),
        "loaded": [
            {"name": item.object.name, "path": item.object.path, "host_path": item.host_path}
            for item in boundary.loaded
        ],
        "missing": list(boundary.missing),
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
        "notes": list(manifest.notes) if manifest else [],
    }


def print_boundary(boundary: Boundary, *, verbose: bool, stderr: bool) -> None:
    """Print the account for a person."""
    out = console(stderr=stderr)
    style = _STYLES[boundary.decision]
    out.print(f"{one_line(boundary.image)}: {one_line(sentence(boundary))}", style=style, soft_wrap=True)
    out.print(f"    {sides_line(boundary)}", style="dim", soft_wrap=True)
    out.print()
    if boundary.loaded:
        _print_path(out, boundary)
    for rule in boundary.rules:
        if rule.outcome is not Outcome.OK:
            _print_mark(out, _SEVERITIES[rule.outcome], f"needs {rule.need}: {rule.have}  [{rule.id}]")
            out.print(f"    {one_line(rule.because)}", soft_wrap=True)
    if any(rule.outcome is not Outcome.OK for rule in boundary.rules):
        out.print()
    _print_margins(out, boundary, verbose=verbose)
    for note in boundary.manifest.notes if boundary.manifest else ():
        _print_mark(out, "unknown", note)
    _print_remedies(out, boundary)


def print_refusals(boundary: Boundary) -> None:
    """Print on standard error why no set of binds loads, attempt by attempt, and what to do."""
    out = console(stderr=True)
    manifest = boundary.manifest
    if manifest is None:
        first = next((finding.summary for finding in boundary.static.findings.found), "there is no loader in it")
        what = f"{'REFUSED' if boundary.decision is Outcome.REFUSED else 'CANNOT TELL'}: {first}"
    elif manifest.host_has_fabric:
        what = f"REFUSED: no set of binds of {boundary.host} loads"
    else:
        what = f"CANNOT TELL: the snapshot of {boundary.host} has no libfabric with the cxi provider"
    out.print(f"{one_line(boundary.image)}: {one_line(what)}", style=_STYLES[boundary.decision], soft_wrap=True)
    for refusal in manifest.refusals if manifest else ():
        _print_refusal(out, refusal)
    _print_remedies(out, boundary)


def print_doubts(boundary: Boundary) -> None:
    """Print on standard error what stands against RCCL's using what is bound."""
    out = console(stderr=True)
    for rule in boundary.rules:
        if rule.outcome is not Outcome.OK:
            would = "would" if rule.outcome is Outcome.REFUSED else "perhaps would"
            text = f"these binds load, but RCCL {would} not use them: {rule.need} is needed, {rule.have}"
            _print_mark(out, _SEVERITIES[rule.outcome], text)


def _print_refusal(out: Console, refusal: Refusal) -> None:
    _print_mark(out, "problem", f"{refusal.attempt}: {refusal}")
    out.print(f"    > {one_line(refusal.words)}", soft_wrap=True)


def _print_remedies(out: Console, boundary: Boundary) -> None:
    for position, remedy in enumerate(boundary.remedies):
        out.print(f"    {'or' if position else 'do'}:  {one_line(remedy)}", soft_wrap=True)


def _print_mark(out: Console, severity: str, text: str) -> None:
    mark = (MARKS if out.encoding.startswith("utf") else PLAIN_MARKS)[severity]
    out.print(f"{mark} {one_line(text)}", style=STYLES[severity], soft_wrap=True)


def sentence(boundary: Boundary) -> str:
    """Return the decision in one sentence."""
    if boundary.decision is Outcome.REFUSED:
        refused = [rule for rule in boundary.rules if rule.outcome is Outcome.REFUSED]
        # of several attempts, the one that the C library ends is the one that no bind can mend
        rule = next((rule for rule in refused if rule.id == "glibc-gate"), refused[-1])
        return f"REFUSED: {rule.need} is needed, {rule.have}"
    if boundary.decision is Outcome.UNKNOWN:
        if boundary.manifest is not None and not boundary.manifest.host_has_fabric:
            return f"CANNOT TELL: the snapshot of {boundary.host} has no libfabric with the cxi provider"
        if boundary.host:
            unknown = (f"{r.need}: {r.have}" for r in boundary.rules if r.outcome is Outcome.UNKNOWN)
            found = (finding.summary for finding in boundary.static.findings.found)
            return "CANNOT TELL: " + next(itertools.chain(unknown, found), "there is no loader in it")
        return "CANNOT TELL from the image alone what the fabric path gets (a host snapshot would: --host)"
    if boundary.fabric is Fabric.BUNDLED:
        return f"no obstacle found: it brings its own fabric libraries, and needs none of {boundary.host}"
    return f"no obstacle found: with the libraries of {boundary.host} bound, the fabric path loads (`lumiimg bind`)"


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
    return one_line(" · ".join(parts))


def _print_path(out: Console, boundary: Boundary) -> None:
    """Print the fabric path as a tree: what is opened, and below it each library where it was first asked for."""
    path = boundary.static.path
    shown = {item.object.path: item for item in boundary.loaded}
    below: dict[str | None, list[Loaded]] = {}
    opened = [item for item in boundary.loaded if item.object.name in (*path.plugin_files, "libfabric.so.1")]
    for item in boundary.loaded:
        above = item.object.requested_by
        below.setdefault(above.path if above else None, []).append(item)
    if path.rccl in shown:
        _print_file(out, shown[path.rccl], "")
    tree = "└── " if out.encoding.startswith("utf") else "`-- "
    pending = [(item, 1) for item in reversed(opened[:1])]
    while pending:
        item, depth = pending.pop()
        _print_file(out, item, "    " * (depth - 1) + tree)
        pending += [(child, depth + 1) for child in reversed(below.get(item.object.path, []))]
    out.print()


def _print_file(out: Console, item: Loaded, indent: str) -> None:
    path = item.host_path or item.object.path
    side = "HOST " if item.host_path else "image"
    line = f"{side}  {indent}{one_line(item.object.facts.soname or item.object.name)}  {one_line(path)}"
    out.print(line, style="cyan" if item.host_path else None, soft_wrap=True)


def _print_margins(out: Console, boundary: Boundary, *, verbose: bool) -> None:
    chosen = list(boundary.margins if verbose else _tightest(boundary.margins))
    if not chosen:
        return
    out.print("What meets at the boundary" if not verbose else "Every pair of versions", style="bold")
    for margin in chosen if verbose else chosen[:_SHOWN_MARGINS]:
        left = f"; {margin_left(margin)}" if margin_left(margin) else ""
        out.print(
            one_line(
                f"    {margin.library_side} needs {margin.family}_{margin.need} of {margin.provider_side}: "
                f"it has up to {margin.family}_{margin.have}{left}"
            ),
            soft_wrap=True,
        )
    gates = [margin for margin in chosen if margin.provider.startswith("libc.so.") and margin.of_host]
    if gates and boundary.decision is not Outcome.REFUSED:
        have = gates[0].have
        out.print(
            f"    After a system update to libraries that need more than GLIBC_{have}, this image cannot load them.",
            soft_wrap=True,
        )
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
