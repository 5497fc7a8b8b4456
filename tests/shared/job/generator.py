"""The pairs of the prediction score: images, nodes and variables, the same each time."""

from __future__ import annotations

import random
import shutil
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.shared.job.bases import BASES, make
from tests.shared.job.changes import CHANGES as OF_FILES
from tests.shared.job.changes import NotHereError
from tests.shared.job.pairs import Pair, pair_of
from tests.shared.job.process_changes import PROCESS_CHANGES
from tests.shared.job.world import CXI_VERSIONS, FABRIC_VERSIONS, PLUGIN, ROCM, Node, World, clone, node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared.job.system import SystemFiles

CHANGES = OF_FILES | PROCESS_CHANGES
VARIABLES: dict[str, dict[str, str]] = {
    "": {},
    "the-path-of-rocm": {"LD_LIBRARY_PATH": ROCM},
    "the-path-of-both": {"LD_LIBRARY_PATH": f"{PLUGIN}:{ROCM}"},
    "no-path": {"LD_LIBRARY_PATH": ""},
    "plugin-by-a-word": {"NCCL_NET_PLUGIN": "ofi"},
    "plugin-by-its-name": {"NCCL_NET_PLUGIN": "librccl-net.so"},
    "plugin-by-its-path": {"NCCL_NET_PLUGIN": f"{PLUGIN}/librccl-net.so"},
    "plugin-of-a-list": {"NCCL_NET_PLUGIN": "gone,librccl-net.so"},
    "plugin-none": {"NCCL_NET_PLUGIN": "none"},
    "plugin-nothing": {"NCCL_NET_PLUGIN": ""},
    "sockets": {"NCCL_NET": "Socket"},
    "network-by-name": {"NCCL_NET": "aws libfabric"},
    "tcp": {"FI_PROVIDER": "tcp"},
    "cxi": {"FI_PROVIDER": "cxi"},
    "providers-elsewhere": {"FI_PROVIDER_PATH": "/opt/providers"},
    "rccl-preloaded": {"LD_PRELOAD": f"{ROCM}/librccl.so.1"},
    "nothing-preloaded": {"LD_PRELOAD": "/opt/gone/libnothing.so"},
    "plugin-preloaded": {"LD_PRELOAD": f"{PLUGIN}/librccl-net.so"},
    "vllm-by-path": {"VLLM_NCCL_SO_PATH": f"{ROCM}/librccl.so.1"},
    "python-path": {"PYTHONPATH": "/opt/nothing:/opt/second/lib"},
    "python-home": {"PYTHONHOME": "/usr"},
    "system-path": {"PATH": "/usr/bin:/bin"},
    "all-bound-at-once": {"LD_BIND_NOW": "1"},
}
"""What a user sets for the engine."""


@dataclass(frozen=True)
class Case:
    """What a pair is about."""

    base: str
    changes: tuple[str, ...] = ()
    node: str = ""
    variables: str = ""
    bundled: bool = True

    def __str__(self) -> str:
        parts = [self.base if self.bundled else f"{self.base} without a fabric", *self.changes]
        return " / ".join(
            [*parts, *([f"on {self.node}"] if self.node else []), *([self.variables] if self.variables else [])]
        )


ONCE_WRONG = (
    Case("torch-with-rccl", ("plugin-with-a-function-that-has-moved-to-another-version",)),
    Case("torch-with-rccl", ("preloaded-with-the-function-of-libcxi",)),
    Case("torch-with-rccl", ("preloaded-with-the-function-of-libfabric",), "lumi", bundled=False),
    Case("torch-with-rccl", ("opened-for-all-with-the-function-of-libfabric",)),
    Case("two-venvs", ("libcxi-without-its-function",), variables="plugin-preloaded"),
    Case("conda-below-path", ("plugin-with-what-hip-has",), variables="plugin-preloaded"),
    Case("in-the-cache", ("no-python", "torch-behind-a-link"), variables="rccl-preloaded"),
    Case("two-venvs", ("a-sitecustomize-that-puts-a-folder-in-front", "torch-with-what-a-library-beside-it-has")),
    Case("torch-with-rccl", ("line-of-a-pth-that-runs",)),
    Case("by-name", ("provider-with-what-libfabric-has",)),
    Case("by-name", ("libcxi-without-its-function", "preloaded-with-the-function-of-libcxi")),
    Case("in-the-cache", ("plugin-with-a-function-that-has-moved-to-another-version",), "newer-libcxi", "", False),
    Case("in-the-cache", ("a-sitecustomize-that-puts-a-folder-in-front",), "old-libfabric", "plugin-nothing", False),
)
"""Images of which an answer was wrong when they were first drawn; the answers of all are stored in fixtures/planted.toml."""
NODES = ("lumi", "old-libfabric", "newer-libcxi", "newer-glibc", "broken-libcxi")
_WITH_NODES, _WITH_TWO, _WITH_ALL = 500, 250, 250


def nodes(folder: Path) -> dict[str, Node]:
    """Return the nodes: one that fits, and each way in which its libraries may not fit an image or each other."""
    newer = (*CXI_VERSIONS, "LIBCXI_1.8")
    return {
        "lumi": node(folder, "lumi"),
        "old-libfabric": node(folder, "old-libfabric", fabric=FABRIC_VERSIONS[:2]),
        "newer-libcxi": node(folder, "newer-libcxi", cxi=newer, wants="LIBCXI_1.8"),
        "newer-glibc": node(folder, "newer-glibc", needs_glibc="GLIBC_2.99"),
        "broken-libcxi": node(folder, "broken-libcxi", cxi=CXI_VERSIONS[:2], wants="LIBCXI_1.1"),
    }


def cases() -> list[Case]:
    """Return all cases: each image with each change, with each variable, and drawn ones of all at once."""
    found = [Case(base) for base in BASES]
    found += [Case(base, (change,)) for base in BASES for change in CHANGES]
    found += [Case(base, variables=name) for base in BASES for name in VARIABLES if name]
    draw = random.Random(22)  # noqa: S311 - the same each time
    names = [*CHANGES]
    for _ in range(_WITH_NODES):
        changes = (draw.choice(names),) if draw.random() < 0.6 else ()
        variables = draw.choice([*VARIABLES]) if draw.random() < 0.3 else ""
        found.append(Case(draw.choice([*BASES]), changes, draw.choice(NODES), variables, draw.random() < 0.3))
    for _ in range(_WITH_TWO):
        found.append(Case(draw.choice([*BASES]), tuple(draw.sample(names, 2))))
    for _ in range(_WITH_ALL):
        found.append(Case(draw.choice([*BASES]), (draw.choice(names),), variables=draw.choice([*VARIABLES])))
    return list(dict.fromkeys(found))


class Machine:
    """Makes images on the files of a system, and asks about them."""

    def __init__(self, folder: Path, system: SystemFiles) -> None:
        self._folder = folder
        self._system = system
        self._bases: dict[tuple[str, bool], World] = {}
        self.nodes = nodes(folder / "nodes")

    def pairs(self, wanted: list[Case]) -> Iterator[Pair]:
        """Yield a pair for each case, but where an image has nothing that a change could be made to."""
        for case in wanted:
            with self.image(case) as world:
                if world is not None:
                    yield pair_of(str(case), world, VARIABLES[case.variables], self.nodes.get(case.node))

    @contextmanager
    def image(self, case: Case) -> Iterator[World | None]:
        """Make the image of a case; None where it has nothing that a change could be made to."""
        key = case.base, case.bundled
        if key not in self._bases:
            name = f"{case.base}{'' if case.bundled else '-alone'}"
            self._bases[key] = make(case.base, self._folder / name, self._system, bundled=case.bundled)
        made = clone(self._bases[key], self._folder / "image")
        world: World | None = made
        try:
            for change in case.changes:
                CHANGES[change](made)
        except (NotHereError, OSError, LookupError, ValueError, struct.error) as error:
            if not isinstance(error, NotHereError) and len(case.changes) < 2:
                raise  # of two changes, the first may have taken, made or emptied what the second is about
            world = None
        yield world
        shutil.rmtree(self._folder / "image")
