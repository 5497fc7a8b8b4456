"""Definition files contain what was meant, or are refused: no trap of the format is ever written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.definition.definition import Definition, export
from lumiimg.definition.text import LINE_LIMIT_BYTES, DefinitionError, checked_body, quote_bash
from lumiimg.definition.writer import write_chain, write_flat
from tests.shared.layer_builder import BASE, FREE, LAYER, ODD, MakeLayer, catalogue_of, locked
from tests.shared.programs import examples

GOLDEN = Path(__file__).parents[1] / "fixtures" / "definitions"
TRAPS = {
    "section": ("cat <<E\n%labels\nE", "begins with '%labels'"),
    "build argument": ("echo '{{ VERSION }}'", "contains '{{'"),
    "carriage return": ("echo x\r\necho y", "carriage return"),
    "NUL": ("echo \0", "NUL byte"),
    "another stage": ("cat <<E\nbootStrap: x\nE", "begins with 'Bootstrap:'"),
    "escape": ("echo \x1b[31m", "control character"),
    "overlong": ("x" * (LINE_LIMIT_BYTES + 1), "longer than"),
}


@pytest.mark.parametrize(("body", "what"), TRAPS.values(), ids=TRAPS.keys())
def test_a_script_that_the_engine_would_misread_is_refused_with_its_line(body: str, what: str) -> None:
    with pytest.raises(DefinitionError, match=what) as caught:
        checked_body(f"true\n{body}\n", "layers/x/post.sh")
    trap = max(body.find("%"), body.find("bootStrap"), 0)
    line = 2 + body[:trap].count("\n")
    assert str(caught.value).startswith(f"layers/x/post.sh:{line}: ")
    assert caught.value.hint
    assert "\n" not in str(caught.value)


# What the kernel passes in an argument: anything but NUL; surrogates stand for bytes that are not UTF-8.
VALUES = st.text(st.characters(exclude_characters="\0"), max_size=40).filter(
    lambda text: all(not 0xD800 <= ord(c) <= 0xDFFF for c in text)
)


def read_back(shell: str, exports: list[str]) -> list[bytes]:
    """Return the value of V in a shell after each line, all in one process."""
    script = "".join(f"( {line}\nprintf '%s\\0' \"$V\" )\n" for line in exports)
    done = subprocess.run([shell], input=script.encode(), capture_output=True, check=True, env={"PATH": "/bin"})
    assert not done.stderr
    return done.stdout.split(b"\0")[:-1]


@pytest.mark.threat
@given(values=st.lists(VALUES, min_size=1, max_size=40))
@example(values=ODD)
@settings(max_examples=examples(10), deadline=None)
def test_bash_reads_back_every_value(values: list[str]) -> None:
    assert read_back("bash", [f"export V={quote_bash(value)}" for value in values]) == [one.encode() for one in values]


TOP = LAYER + (
    'files = ["tool.c"]\n'
    '[arguments.PREFIX]\ndefault = "/opt/top"\nhelp = "where"\n'
    '[arguments.NOTE]\ndefault = ""\nhelp = "free text"\n'
    '[sources.top-src]\nurl = "https://x.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
    f'[sources.top-src.sha256]\none = "{"0" * 64}"\n'
    '[environment.set]\nTOP_MODE = "it\'s {PREFIX}"\n'
    '[environment.prepend]\nLD_LIBRARY_PATH = "{PREFIX}/lib"\n'
)


@pytest.fixture
def stack(layers: Path, make_layer: MakeLayer) -> tuple[tuple[Definition, ...], Definition]:
    make_layer("base", BASE, post="echo base\n")
    make_layer("middle", post="cat >/etc/x <<'E'\n# kept as it is\n\tE\nE\n", test_sh="test -e /etc/x\n")
    make_layer("top", TOP, post='make -C "$LAYER_FILES" PREFIX="$PREFIX"\n', tool_c="int x;\n", test_sh="true\n")
    arguments = {"top.NOTE": "two\nlines, %post and {{x}}"}
    lock = locked(Catalogue((layers,), ()), "base", "middle", "top", arguments=arguments)
    return write_chain(lock), write_flat(lock)


def test_the_chain_and_the_flat_definition_are_written_as_agreed(
    stack: tuple[tuple[Definition, ...], Definition], request: pytest.FixtureRequest
) -> None:
    """Golden texts; after an intended change, run pytest --update-golden and read the diff."""
    chain, flat = stack
    for definition in (*chain, flat):
        assert_read_as_it_is(definition)
        golden = GOLDEN / f"{definition.name}.def"
        if request.config.getoption("--update-golden"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(definition.text)
        assert definition.text == golden.read_text(), golden.name


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A base, and a layer whose argument appears in its script and its environment."""
    return catalogue_of(tmp_path_factory.mktemp("layers"), base=BASE, free=FREE)


def assert_read_as_it_is(definition: Definition) -> None:
    """Assert that an engine, which reads line by line, finds exactly the sections that are meant."""
    sections, head = definition.sections, definition.sections.header.text
    meant = {"post": sections.post, "test": sections.test}
    meant["files"] = "".join(f"    {path} {target}\n" for path, target in sections.files)
    meant["environment"] = "".join(f"    {export(variable)}\n" for variable in sections.environment)
    meant["labels"] = "".join(f"    {key} {value}\n" for key, value in sections.labels)
    parts = re.split(r"(?m)^\s*%(\w+).*\n", definition.text)
    found = {name: text.rstrip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    assert found == {name: text.rstrip("\n") for name, text in meant.items() if text}
    assert parts[0].partition("\n")[2].rstrip("\n") == head.rstrip("\n")


def exports_of(definition: Definition) -> tuple[str, str]:
    """Return the lines that set the value: in the script, as NOTE, and in the environment."""
    (note,) = (line for line in definition.sections.post.splitlines() if line.startswith("export NOTE="))
    section = definition.text.partition("\n%environment\n")[2].partition("\n%")[0]
    (value,) = (line.strip() for line in section.splitlines() if line.startswith("    export V="))
    return note.replace("export NOTE=", "export V=", 1), value


@given(values=st.lists(VALUES, min_size=1, max_size=15))
@example(values=ODD)
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_arrives_as_it_was_typed_or_is_refused_with_its_layer(free: Catalogue, values: list[str]) -> None:
    arrived: list[tuple[str, tuple[str, str]]] = []
    for value in values:
        lock = locked(free, "base", "free", arguments={"free.NOTE": value})
        try:
            chain, flat = write_chain(lock), write_flat(lock)
        except DefinitionError as error:
            assert str(error).startswith("free")  # noqa: PT017 - or it is written
            assert str(error).isprintable()  # noqa: PT017
            assert not value.isprintable()
            continue
        for definition in chain:
            assert_read_as_it_is(definition)
        headers = [line for line in flat.text.splitlines() if line.lstrip().startswith("%")]
        assert headers == ["%environment", "%post -c /bin/bash", "%labels"]
        assert "{{" not in flat.text
        arrived += [(value, exports_of(flat)), (value, exports_of(chain[1]))]
    expected = [value.encode() for value, _ in arrived]
    assert read_back("bash", [note for _, (note, _) in arrived]) == expected
    assert read_back("/bin/sh", [line for _, (_, line) in arrived]) == expected
