"""Of `catalog/` and `definition/`: what people write, and what an image brings along."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from lumiimg.build.provenance import _Carried, _ChainEntry, _definition
from lumiimg.catalog.catalogue import Catalogue, open_catalogue, read_recipe
from lumiimg.catalog.layers import read_layer
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import read_site
from lumiimg.catalog.toml_table import CatalogError
from lumiimg.cluster.job.shape import seconds
from lumiimg.definition.definition import Definition, StagedFile
from lumiimg.definition.docker.draft import make_draft, write_draft
from lumiimg.definition.docker.instructions import split_words
from lumiimg.definition.docker.shell import is_plain
from lumiimg.definition.docker.substitution import Scope, expand
from lumiimg.definition.docker.substitution import text_of as text_of_value
from lumiimg.definition.reader import check_definition, read_sections
from lumiimg.definition.text import DefinitionError
from lumiimg.engine.binds import parse_binds
from lumiimg.errors import BadInputError
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import BORDER, FIXTURES, PACKAGE, parts, root_of, scratch, text_of, written


def _layer(data: bytes) -> None:
    toml, script = parts(data, 2)
    folder = written(toml, "layers/one/layer.toml").parent
    written(script, "layers/one/post.sh")
    read_layer(folder)


def _site(data: bytes) -> None:
    read_site(written(data, "site.toml"))


def _recipe(data: bytes) -> None:
    read_recipe(written(data, "recipe.toml"))


def _settings(data: bytes) -> None:
    written(data, "config/lumiimg/config.toml")
    read_settings({"HOME": str(scratch()), "XDG_CONFIG_HOME": str(scratch() / "config")})


@cache
def _catalogue() -> Catalogue:
    return open_catalogue({"HOME": str(scratch())})


def _dockerfile(data: bytes) -> None:
    file, folder = written(data, "Dockerfile"), scratch() / "drafted"
    try:
        write_draft(make_draft(file, None, {}, _catalogue()), folder, _catalogue())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _words(data: bytes) -> None:
    text = text_of(data)
    split_words(text)
    is_plain(text, "E")


def _value(data: bytes) -> None:
    for text in text_of(data).split("\n"):
        for keeps in (False, True):
            text_of_value(expand(text, Scope(), "Dockerfile:1", keep_quotes=keeps))


def _definition_text(data: bytes) -> None:
    """As the definition of each place in a chain of three."""
    text = text_of(data)
    named = re.findall(r"(?m)^    (files/\S+) ", text)[:50]
    files = tuple(StagedFile(path, Path(path)) for path in named)
    below = None
    for number, layer in enumerate(("base", "middle", "top"), 1):
        name = f"{number:02}-{layer}"
        try:
            sections = read_sections(text, f"{name}.def")
            check_definition(Definition(name, (layer,), below, sections, files))
        except DefinitionError:
            if number == 3:
                raise
        else:
            return
        below = name


def _chain(data: bytes) -> None:
    """One entry of chain.json, and the definition that it names."""
    entry, text = parts(data, 2)
    try:
        document = msgspec.json.decode(entry, type=_ChainEntry)
    except (ValueError, RecursionError):
        return
    root = root_of("carried", {"/.lumiimg/definitions/01-base.def": text})
    carried = _Carried(root, scratch() / "taken", lambda _: True)
    with contextlib.suppress(ValueError):  # which its caller tells as damage
        _definition(document, [], carried)


def _binds(data: bytes) -> None:
    for bind in parse_binds(text_of(data)):
        str(bind)


def _duration(data: bytes) -> None:
    seconds(text_of(data))


def _layer_seeds() -> Iterator[bytes]:
    for path in sorted(FIXTURES.parents[1].glob("layers/*/layer.toml")):
        data = path.read_bytes()
        script = path.with_name("post.sh").read_bytes()[:500]
        yield re.sub(rb"(?ms)^files = \[.*?\]\n", b"", data) + BORDER + script


def _toml_seeds(pattern: str) -> Iterator[bytes]:
    for path in sorted(PACKAGE.parent.glob(pattern)):
        yield path.read_bytes()


def _dockerfile_seeds() -> Iterator[bytes]:
    yield (
        b'# syntax=docker/dockerfile:1\nARG V=6.2.4\nFROM rocm/dev-ubuntu-22.04:$V AS build\nENV A=1 B="x $A"\n'
        b"RUN --mount=type=cache,target=/c apt-get update && \\\n  # c\n  apt-get install -y git\n"
        b'WORKDIR /w\nUSER 77\nSHELL ["/bin/bash", "-c"]\nCOPY --chown=1 a b/ /c/\nADD https://h.test/x.tar.gz /o\n'
        b"RUN <<E\necho $A\nE\nFROM build\nCOPY --from=build /x /y\nONBUILD RUN x\nHEALTHCHECK NONE\nEXPOSE 80/tcp\n"
    )
    yield b"FROM a\nRUN pip install torch==2.9.1 vllm && git clone https://github.com/ROCm/aws-ofi-rccl -b v1\n"
    yield b'# escape=`\nFROM scratch\nENV P ${A:-${B%.*}} \nRUN ["a", "b"]\nLABEL a=b \'c\'="d"\nENTRYPOINT x\n'


def _definition_seeds() -> Iterator[bytes]:
    for path in sorted(FIXTURES.rglob("*.def")):
        yield path.read_bytes()[:20000]


def _chain_seeds() -> Iterator[bytes]:
    source = {"name": "s", "variable": "S", "file": "f", "sha256": "0" * 64, "location": "https://h.test/f"}
    source |= {"note": "", "version": ""}
    entry = {
        "name": "01-base",
        "layers": ["base"],
        "parent": None,
        "needs": [],
        "plain_http": False,
        "origin": None,
        "origin_sha256": None,
        "files": [{"path": "files/base/source/s/f", "source": source}],
    }
    text = (FIXTURES / "definitions/01-base.def").read_bytes()
    yield json.dumps(entry).encode() + BORDER + text
    yield json.dumps({**entry, "files": []}).encode() + BORDER + text
    yield json.dumps({**entry, "files": [], "origin": "/x.sif", "origin_sha256": "0" * 64}).encode() + BORDER + text


_CATALOG = (CatalogError,)
TARGETS = (
    Target(
        "layer-toml",
        ("catalog.layers.read_layer", "catalog.toml_table.read_toml", "toml.parse_toml", "catalog.needs.read_needs"),
        _layer,
        _layer_seeds,
        _CATALOG,
        "toml",
        rounds=15,
    ),
    Target(
        "site-toml",
        ("catalog.sites.read_site", "catalog.launch.read_module"),
        _site,
        lambda: _toml_seeds("lumiimg/catalog/sites/*.toml"),
        _CATALOG,
        "toml",
        rounds=10,
    ),
    Target(
        "recipe-toml",
        ("catalog.catalogue.read_recipe",),
        _recipe,
        lambda: _toml_seeds("recipes/*.toml"),
        _CATALOG,
        "toml",
    ),
    Target(
        "config-toml",
        ("catalog.settings.read_settings",),
        _settings,
        lambda: [b'cache = "/c"\n[mirrors]\ndebian = "http://h.test/debian"\n'],
        _CATALOG,
        "toml",
    ),
    Target(
        "dockerfile",
        (
            "definition.docker.dockerfile.read_dockerfile",
            "definition.docker.draft.make_draft",
            "definition.docker.instructions.read_instructions",
            "definition.docker.stages.follow",
            "definition.docker.recognition.recognise",
            "definition.docker.script.write_script",
        ),
        _dockerfile,
        _dockerfile_seeds,
        (BadInputError,),
        rounds=8,
    ),
    Target(
        "docker-words",
        ("definition.docker.instructions.split_words", "definition.docker.shell.is_plain"),
        _words,
        lambda: [b'a \'b c\' "d\\" e" f\\ g $(h) <<E 1>2 # x', b"x <<'E'\nE\n"],
    ),
    Target(
        "docker-value",
        ("definition.docker.substitution.expand",),
        _value,
        lambda: [b"${A:-x}${B:+y}$C\\$D'${E}'\"${F:-${G##*/}}\"${H//a/b}${I%%.*}"],
    ),
    Target(
        "definition",
        ("definition.reader.read_sections", "definition.reader.check_definition"),
        _definition_text,
        _definition_seeds,
    ),
    Target("chain", ("build.provenance._definition",), _chain, _chain_seeds, (BadInputError,), "json"),
    Target("bind-option", ("engine.binds.parse_binds",), _binds, lambda: [b"/a:/b:ro,/c\\:d,/e:/f,image-src=/x"]),
    Target("duration", ("cluster.job.shape.seconds",), _duration, lambda: [b"1-02:03:04", b"30", b"1:30", b"2h"], ()),
)
