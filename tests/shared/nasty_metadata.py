"""Images and definitions that say of themselves whatever can be said: what engines write about them is held against ours."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from lumiimg.definition.engine_reader import read_definition
from tests.shared.oci_builder import Layout, link, make_config, member, tar

if TYPE_CHECKING:
    import tarfile

SAYINGS: dict[str, list[str]] = tomllib.loads((Path(__file__).parents[1] / "fixtures/nasty-metadata.toml").read_text())


@dataclass(frozen=True, slots=True)
class Chain:
    """Definitions, each on the image of the one before."""

    definitions: tuple[str, ...]
    members: tuple[tuple[tarfile.TarInfo, bytes], ...]
    """The files of the base, for the agents `oci` and `localimage`."""
    config: dict[str, Any]

    @property
    def agent(self) -> str:
        return read_definition(self.definitions[0]).header["bootstrap"]

    def layout(self) -> Layout:
        layer = tar(*self.members)
        layout = Layout()
        layout.index(layout.manifest(layer, config=make_config(layer) | {"config": self.config}))
        return layout


def chains(count: int, seed: int) -> list[Chain]:
    """Return chains of definitions; the agents of their bases take turns."""
    chance = Random(seed)  # noqa: S311
    agents = ("oci", "scratch", "localimage", "oci")
    return [_chain(chance, agents[number % len(agents)]) for number in range(count)]


def _chain(chance: Random, agent: str) -> Chain:
    heads = {"scratch": "", "oci": "From: base\n", "localimage": "From: base\n"}
    first = f"Bootstrap: {agent}\n{heads[agent]}"
    more = chance.randrange(3)
    definitions = [_definition(chance, head) for head in (first, *["Bootstrap: localimage\nFrom: below.sif\n"] * more)]
    return Chain(tuple(definitions), tuple(_members(chance)), _config(chance))


def _definition(chance: Random, head: str) -> str:
    sections = [
        f"%{name}{chance.choice(SAYINGS['arguments'])}\n{chance.choice(SAYINGS['scripts'])}"
        for name in ("help", "environment", "environment", "runscript", "startscript", "test")
        if chance.random() < 0.4
    ]
    if chance.random() < 0.6:
        lines = chance.sample(SAYINGS["label_lines"], chance.randrange(1, 6))
        sections.append("%labels\n" + "".join(f"{line}\n" for line in lines))
    if chance.random() < 0.5:
        sections.append(
            f'%setup\nR="$APPTAINER_ROOTFS"\n{"".join(chance.sample(SAYINGS["setup"], chance.randrange(1, 3)))}'
        )
    chance.shuffle(sections)
    note = chance.choice(("", "# a note\n", "\n"))
    text = note + head + chance.choice(("", "\n")) + chance.choice(("", "\n")).join(sections)
    return text if chance.random() < 0.8 else text.removesuffix("\n")


def _config(chance: Random) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("Entrypoint", "Cmd"):
        if (kind := chance.random()) < 0.7:
            config[name] = chance.sample(SAYINGS["words"], chance.randrange(4)) if kind > 0.1 else None
    if chance.random() < 0.9:
        variables = [
            f"{chance.choice(SAYINGS['names'])}={chance.choice(SAYINGS['words'])}" for _ in range(chance.randrange(8))
        ]
        config["Env"] = [*variables, *chance.sample(SAYINGS["names"], chance.randrange(3))]
    if chance.random() < 0.7:
        config["Labels"] = {
            name: chance.choice(SAYINGS["words"]) for name in chance.sample(SAYINGS["labels"], chance.randrange(5))
        }
    return config


def _members(chance: Random) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return a root file system that has some of what engines write, otherwise than they would."""
    own, env = ".singularity.d", ".singularity.d/env"
    groups: list[list[tuple[tarfile.TarInfo, bytes]]] = [
        [member("etc"), member("etc/hosts", b"127.0.0.1 here\n", mode=0o600)],
        [member("etc"), member("etc/resolv.conf", b"nameserver 1.1.1.1\n", mode=0o444)],
        [
            member("run"),
            member("etc"),
            link("etc/resolv.conf", "../run/resolv.conf"),
            member("run/resolv.conf", b"it\n"),
        ],
        [member("tmp", mode=0o1777), member("var"), member("var/tmp", mode=0o1777)],
        [member("root", mode=0o700), member("home", mode=0o711)],
        [member("mnt"), link("home", "mnt")],
        [member("private"), link("var", "private")],
        [member("environment", b"mine\n"), member("singularity"), link(".run", "etc")],
        [member(own), member(f"{own}/labels.json", json.dumps({"old": "yes", "a.b": "<&>"}).encode(), mode=0o640)],
        [member(own), member(f"{own}/Singularity", b"Bootstrap: older\n", mode=0o600)],
        [
            member(own),
            member(f"{own}/runscript", b"#!/bin/old\n", mode=0o711),
            member(f"{own}/test", b"old\n", mode=0o744),
        ],
        [member(own), member(env), member(f"{env}/90-environment.sh", b"export OLD=1", mode=0o644)],
        [member(own), member(env), member(f"{env}/10-docker2singularity.sh", b"export OLDER=1\n", mode=0o600)],
        [member(own), member(env, mode=0o750), member(f"{env}/94-appsbase.sh", b"old\n", mode=0o700)],
        [member(own), member(f"{own}/runscript.help", b"old help\n\n", mode=0o600)],
    ]
    chosen = [one for group in groups if chance.random() < 0.3 for one in group]
    # a name is in a layer once, and what was chosen first counts
    unique = {info.name: (info, content) for info, content in reversed(chosen)}
    linked = {name for name, (info, _) in unique.items() if info.issym()}
    found = [item for name, item in unique.items() if name.partition("/")[0] not in linked - {name}]
    mode = chance.choice((0o755, 0o755, 0o555, 0o700))
    return [member("./", mode=mode), *sorted(found, key=lambda item: item[0].name)]
