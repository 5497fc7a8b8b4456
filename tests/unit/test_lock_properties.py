"""What holds of every lock: it is read back as it was, takes whatever a user can type, and nothing else is let in."""

from __future__ import annotations

import copy
import datetime as dt
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.catalog.sites import find_site
from lumiimg.core.errors import BadInputError, RefusedError
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_check import lock_of
from lumiimg.resolve.lock_file import read_document, to_text
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.fuzz.locks import REQUESTS, lock_of_document, with_digests
from tests.shared.layer_builder import BASE, LAYER, catalogue_of
from tests.shared.programs import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lumiimg.resolve.lock import Lock

CATALOGUE = open_catalogue({"HOME": "/nonexistent"})
NO_MIRRORS = Mirrors({})
PROGRAMS = "/usr/sbin:/usr/bin:/bin"
FREE = (
    LAYER + '[arguments.NOTE]\ndefault = ""\nhelp = "free text"\n[arguments.OTHER]\ndefault = "x"\nhelp = "more"\n'
    '[sources.one]\nurl = "https://h.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
    f'[sources.one.sha256]\none = "{"0" * 64}"\n'
)
TEXT = st.text(st.characters(exclude_characters="\0"), max_size=30)
"""What a user can type; a byte that is no UTF-8 comes as a surrogate."""
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A base, and a layer whose arguments take any text."""
    return catalogue_of(tmp_path_factory.mktemp("layers"), base=BASE, free=FREE)


def made(request: Request, catalogue: Catalogue = CATALOGUE) -> Lock:
    site = find_site(request.site, {}) if request.site else None
    return with_digests(decide(request, PlanContext(catalogue, NO_MIRRORS, PROGRAMS, site)).require_lock())


def read_again(text: str | bytes, path: Path, catalogue: Catalogue = CATALOGUE) -> Lock:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return lock_of(read_document(path), [catalogue], NO_MIRRORS, PROGRAMS, path)


def same(again: Lock, lock: Lock) -> bool:
    """Whether a lock is another, but for why its base is had in this way, which is looked up anew."""
    return replace(again, bootstrap=replace(again.bootstrap, because=lock.bootstrap.because)) == lock


@settings(max_examples=examples(25), deadline=None, suppress_health_check=SLOW)
@given(note=TEXT, other=TEXT, address=st.text("abc/.-_%~", max_size=20))
@example(note="\udcff", other="", address="")
@example(note="two\nlines %post {{ x }} \r\x1b[2J \x85\u2028", other="'\"`$(id)\\", address="t.tar.gz")
def test_any_text_of_a_user_is_preserved_or_refused(
    own: Catalogue, tmp_path: Path, note: str, other: str, address: str
) -> None:
    arguments = {"free.NOTE": note, "free.OTHER": other}
    sources = {"one": f"https://h.test/{address}#sha256={'1' * 64}"}
    request = Request("base", ("free",), arguments=arguments, sources=sources)
    try:
        lock = made(request, own)
        text = to_text(lock)
    except BadInputError as error:
        assert str(error).isprintable()  # noqa: PT017 - or nothing is raised
        return
    again = read_again(text, tmp_path / "lumiimg.lock", own)
    assert same(again, lock)
    assert again.request == request
    turned = structs.replace(request, arguments=dict(reversed(arguments.items())))
    assert to_text(made(turned, own)) == text, "the order in which arguments are given is no part of a lock"
    try:
        chain = write_chain(lock)
    except DefinitionError:
        return
    assert write_chain(again) == chain


def paths_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a document, tables and values alike."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def changed(document: dict[str, Any], path: tuple[Any, ...], value: object) -> bytes:
    """Return a lock with another value somewhere, and the digest of what it is now."""
    document = copy.deepcopy(document)
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return lock_of_document(document)


REQUEST = next(request for request in REQUESTS if "vllm" in request.add)
TEXT_OF_LOCK = to_text(made(REQUEST)).encode()
DOCUMENT = tomllib.loads(TEXT_OF_LOCK.decode())
PLACES = [path for path in paths_of(DOCUMENT) if path[0] not in {"format", "lumiimg", "digest"}]
TABLES = [path for path in PLACES if isinstance(path[-1], int) and path[0] not in {"rule", "request"}]
"""Layers; those that `request` means are among them."""


@pytest.mark.threat
@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
@given(place=st.one_of(st.sampled_from(PLACES), st.sampled_from(TABLES)), count=st.sampled_from([0, 2]))
def test_a_value_of_another_type_and_what_is_left_out_or_there_twice_is_refused(
    tmp_path: Path, place: tuple[Any, ...], count: int
) -> None:
    with pytest.raises((BadInputError, RefusedError)) as caught:
        read_again(changed(DOCUMENT, place, 7), tmp_path / "lumiimg.lock")
    named = next(str(key) for key in reversed(place) if isinstance(key, str))
    assert named in str(caught.value)
    if place in TABLES:
        document = copy.deepcopy(DOCUMENT)
        array: Any = document
        for key in place[:-1]:
            array = array[key]
        array[place[-1] : place[-1] + 1] = [array[place[-1]]] * count
        with pytest.raises(
            BadInputError,
            match=r"twice|left out|need each other|is missing|but the lock has|is in the lock|not among the layers",
        ):
            read_again(changed(document, ("request",), document["request"]), tmp_path / "lumiimg.lock")


@pytest.mark.threat
def test_a_lock_that_is_not_of_one_mind_is_refused(tmp_path: Path) -> None:
    for place, value, expected in (
        (("request", "base"), "rocm-7.0", "request.base is 'rocm-7.0', and the base is rocm-6.4.4"),
        (("request", "add"), ["sglang"], "request.add names sglang, which is not among the layers"),
        (("request", "arguments"), {"vllm.ARCH": "x"}, "argument vllm.ARCH is 'x', which does not match"),
        (("request", "arguments"), {"vllm.TEA": "x"}, "no layer of this image takes the argument vllm.TEA"),
        (("request", "sources"), {"vllm": "/etc/passwd"}, "the source vllm: '/etc/passwd' is not a valid"),
        (("request", "sources"), {"vllm": f"a.tar#sha256={'0' * 64}"}, "'a.tar' is not a valid http(s) address"),
        (("request", "sources"), {"tea": "https://h.test/tea"}, "no layer of this image takes a source named 'tea'"),
        (("first-download",), {"https://tea": "0" * 64}, "is missing, or does not belong in the lock"),
        (
            ("layer", 0, "wheels"),
            {"https://h.test/tea": "0" * 64},
            "which is not a plain address that ends in the name",
        ),
        (("base", "release"), "9", "'9' is not a release of rocm-6.4.4"),
        (("base", "wheels"), {"https://h.test/a-1-py3-none-any.whl": "0" * 64}, "has Python packages, but needs none"),
        (("base", "agent"), "oras", "'base.agent' is 'oras'; one of debootstrap, docker, "),  # of an earlier lumiimg
        # where this machine finds things
        *((("request", key), [], f"key 'request.{key}' is not known") for key in ("mirrors", "layers", "brought")),
        (("site",), "x" * (2 << 20), "is larger than 2097152 bytes"),
    ):
        with pytest.raises(BadInputError) as caught:
            read_again(changed(DOCUMENT, place, value), tmp_path / "lumiimg.lock")
        assert expected in str(caught.value)
        assert len(str(caught.value)) < 4000, expected


@pytest.mark.threat
def test_a_row_of_a_lock_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    entry = {**DOCUMENT["layer"][0], "release": "9.9", "wheels": {}}
    document = {**DOCUMENT, "request": {**DOCUMENT["request"], "add": []}}
    for row, expected in (
        ({"wheels": ["a==1.."]}, "a pin is not valid"),
        ({"has": {"x": "{NOPE}"}}, "has.x holds {NOPE}"),
        ({"has": {"net-api": "many"}}, "has.net-api is 'many'; the number of an API"),
        ({"arguments": {"NOPE": "x"}}, "arguments.NOPE is not"),
        ({"version": "nine"}, "not of a release '9.9' that was read"),
        ({"read": None}, "not of a release '9.9' that was read"),
    ):
        written = {"version": "9.9", "read": dt.date(2026, 11, 1), "source": "s", **row}
        entry["row"] = {key: value for key, value in written.items() if value is not None}
        with pytest.raises(BadInputError) as caught:
            read_again(changed(document, ("layer", 0), entry), tmp_path / "lumiimg.lock")
        assert expected in str(caught.value), row


@pytest.mark.threat
def test_what_the_head_of_a_lock_says_beside_format_and_digest_is_noticed(tmp_path: Path) -> None:
    """The digest is of what stands below the head."""
    for line in ('site = "lumi"', 'layer = [{name = "netprobe"}]', 'request = {base = "x"}'):
        with pytest.raises(BadInputError, match="was changed after it was written"):
            read_again(TEXT_OF_LOCK.replace(b"format = 3\n", f"format = 3\n{line}\n".encode()), tmp_path / "a.lock")
