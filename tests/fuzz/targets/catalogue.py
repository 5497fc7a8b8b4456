"""Of `catalog/` and `definition/`: what people write, and what an image brings along."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from functools import cache
from typing import Annotated

import tomli_w
from msgspec import Meta, Struct

from lumiimg.catalog.catalogue import Catalogue, open_catalogue, read_recipe
from lumiimg.catalog.folders import unparsed_layers
from lumiimg.catalog.layers import read_layer
from lumiimg.catalog.settings import read_settings
from lumiimg.catalog.sites import read_site
from lumiimg.core.decode import DecodeError, Positive, Text, decode_json, decode_toml, encode, to_json
from lumiimg.definition.docker.draft import make_draft, write_draft
from lumiimg.definition.docker.read import split_words, value_of, with_values
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import parts, scratch, text_of, written


class _Part(Struct, forbid_unknown_fields=True):
    name: Annotated[Text, Meta(max_length=9)]
    size: Positive = 1
    shape: re.Pattern[str] | None = None
    parts: tuple[_Part, ...] = ()
    more: Mapping[str, _Part] = {}


@target("decoded", "core.decode.decode_json", "core.decode.decode_toml", refuses=(DecodeError,), form="json")
def _decoded(data: bytes) -> None:
    """The same value as JSON, and where it can be as TOML."""
    value = decode_json(data, _Part, where="part.json")
    assert decode_json(to_json(value).encode(), _Part) == value
    decode_toml(tomli_w.dumps(encode(value)), _Part, where="part.toml")


@target(
    "layer-toml",
    "catalog.layers.read_layer",
    "core.decode.read_toml",
    "core.toml.parse_toml",
    "catalog.folders.unparsed_layers",
    refuses=(DecodeError,),
    form="toml",
    rounds=15,
)
def _layer(data: bytes) -> None:
    toml, script = parts(data, 2)
    folder = written(toml, "layers/one/layer.toml").parent
    written(script, "layers/one/post.sh")
    unparsed_layers([folder.parent])
    read_layer(folder)


@target(
    "site-toml",
    "catalog.sites.read_site",
    refuses=(DecodeError,),
    form="toml",
    rounds=10,
)
def _site(data: bytes) -> None:
    read_site(written(data, "site.toml"))


@target("recipe-toml", "catalog.catalogue.read_recipe", refuses=(DecodeError,), form="toml")
def _recipe(data: bytes) -> None:
    read_recipe(written(data, "recipe.toml"))


@target("config-toml", "catalog.settings.read_settings", refuses=(DecodeError,), form="toml")
def _settings(data: bytes) -> None:
    written(data, "config/lumiimg/config.toml")
    read_settings({"HOME": str(scratch()), "XDG_CONFIG_HOME": str(scratch() / "config")})


@cache
def _catalogue() -> Catalogue:
    return open_catalogue({"HOME": str(scratch())})


@target(
    "dockerfile",
    "definition.docker.read.read_dockerfile",
    "definition.docker.draft.make_draft",
    "definition.docker.recognise.recognise",
    "definition.docker.script.Script",
    rounds=8,
)
def _dockerfile(data: bytes) -> None:
    file, folder = written(data, "Dockerfile"), scratch() / "drafted"
    try:
        write_draft(make_draft(file, None, {}, _catalogue()), folder, _catalogue())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@target("docker-words", "definition.docker.read.split_words", "definition.docker.read.value_of")
def _words(data: bytes) -> None:
    text = text_of(data)
    split_words(text)
    for line in text.split("\n"):
        with_values(value_of(line) or line, {"A": "a"})
