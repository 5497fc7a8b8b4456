"""Write the catalogue page, docs/reference/compatibility.md; `lumiimg list` and `lumiimg show` print the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.ledger import status_of
from lumiimg.catalog.sites import find_site
from lumiimg.fabric.rccl import rccl_table
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.planner import decide, possible_bases
from lumiimg.resolve.request import Request
from lumiimg.resolve.rules import RuleOutcome
from tools.reference import WRITTEN, cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lumiimg.catalog.catalogue import Catalogue
    from lumiimg.catalog.layers import Layer
    from lumiimg.resolve.plan import Plan

HOME = {"HOME": "/nonexistent"}
NEWEST = {"pytorch": "PyTorch", "vllm": "vLLM", "jax": "JAX"}
SITES = ("lumi", "frontier", "aurora", "alps", "generic")


def compatibility() -> Iterator[str]:
    catalogue = open_catalogue(HOME)
    yield "# What goes with what\n\nWhich versions fit LUMI and each other, and which do not."
    yield f"\n{WRITTEN} `lumiimg explain --base … --add … --site …` decides by the same data, of any site."
    yield from on_lumi(catalogue)
    yield from troubles(catalogue)
    yield from rccl()


def rccl() -> Iterator[str]:
    yield "\n## What RCCL's generations do with a plugin\n\n[How RCCL finds its plugin](../explanation/plugin.md) says what it means.\n"
    yield "| RCCL from | ROCm | net API, in its order | file it looks for | ncclGetUniqueId without a GPU | basis |\n|---|---|---|---|---|---|"
    for entry in rccl_table().generation:
        api = " ".join(f"v{version}" for version in entry.accepts)
        unique = "opens the plugin" if entry.unique_id_loads_plugin else "does not look for it"
        yield f"| {entry.since} | {entry.rocm} | {api} | {', '.join(entry.files)} | {unique} | {entry.basis} |"


def on_lumi(catalogue: Catalogue) -> Iterator[str]:
    """Yield a table of the bases on LUMI: whether each runs there, and the newest release of each layer that fits."""
    yield "\n## Bases, and on LUMI the newest release that fits each\n"
    yield "What is not named is not known until the base is read.\n"
    yield f"| base | has | on LUMI | fabric | {' | '.join(NEWEST.values())} |\n|---|---|---|---|{'---|' * len(NEWEST)}"
    lumi = PlanContext(catalogue, Mirrors({}), "", find_site("lumi", HOME))
    fitting = {layer: {p.base.name: p for p in possible_bases(Request("", (layer,)), lumi).bases} for layer in NEWEST}
    for name in natural(catalogue.base_names()):
        plan = decide(Request(name), lumi)
        if plan.refused:
            against = next(rule for rule in plan.rules if rule.outcome is RuleOutcome.REFUSED)
            yield f"| {name} | {holding(catalogue.base(name))} | no: {cell(against.have)} | | {' | ' * (len(NEWEST) - 1)} |"
            continue
        cells = [newest(catalogue.base(name), layer, fitting[layer]) for layer in NEWEST]
        doubts = dict.fromkeys(
            cell(rule.have).replace(f"{name} (net", "plugin (net")
            for rule in plan.rules
            if rule.outcome is not RuleOutcome.OK
        )
        answer = f"with doubts: {'; '.join(doubts)}" if doubts else "yes"
        yield f"| {name} | {holding(catalogue.base(name))} | {answer} | {plan.fabric.value} | {' | '.join(cells)} |"


def newest(base: Layer, layer: str, fitting: Mapping[str, Plan]) -> str:
    """Return the release chosen for a base, or the base's own version."""
    component = "torch" if layer == "pytorch" else layer
    if component in base.has:
        return f"{base.has[component]} (in it)"
    plan = fitting.get(base.name)
    return "" if plan is None or plan.stack is None else plan.stack.version(component) or "yes"


def natural(names: Iterable[str]) -> list[str]:
    """Return names in version order: 0.8 before 0.10."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def holding(base: Layer) -> str:
    """Return the known facts about a base's contents, and how far it was tested."""
    names = {"os": "", "glibc": "glibc ", "python": "Python ", "rocm": "ROCm ", "rccl": "RCCL "}
    return ", ".join([f"{word}{base.has[key]}" for key, word in names.items() if key in base.has] + [status_of(base)])


def troubles(catalogue: Catalogue) -> Iterator[str]:
    yield "\n## Known troubles\n"
    warned = set()
    for name in catalogue.layer_names():
        entry = catalogue.entry(name)
        for trouble in entry.troubles:
            given = ", ".join([*map(str, trouble.given), *(f"not {need}" for need in trouble.unless)])
            outcome = "refused" if trouble.refused else "warning"
            row = f"- **{entry.folder.name}** with {given}: {outcome}. {cell(trouble.because)} ({cell(trouble.source)})"
            if row not in warned:
                warned.add(row)
                yield row


PAGES: dict[str, Callable[[], Iterator[str]]] = {"compatibility.md": compatibility}
