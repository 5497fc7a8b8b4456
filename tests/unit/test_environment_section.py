"""`%environment` of a definition of others: what passes the check sets variables, and runs nothing; a real bash says so."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lumiimg.definition.definition import LAYER_LABEL, Definition, Header, Sections
from lumiimg.definition.reader import check_definition, read_sections
from lumiimg.definition.text import DefinitionError, quote_sh
from tests.shared.programs import examples, patient

GOOD = "    export A='x'"
TEXT = Sections(
    Header("localimage", "01-a.sif"),
    environment=(("A", "'x'"),),
    post="true\n",
    labels=((f"{LAYER_LABEL}02", "b"),),
    version="0.1.0",
).text
REPORTER = """
set -T
shopt -s expand_aliases
alias harmless='touch aliased'
command_not_found_handle() { :; }
before=$(compgen -v)
trap 'printf "%s\\0" "$BASH_COMMAND" >&3' DEBUG
. "$1"
trap - DEBUG
exec >&3
printf '\\0'
comm -13 <(sort <<<"$before") <(compgen -v | sort)
"""
"""Reports each command that a script runs, in a substitution too, then the variables that are new."""


def taken(environment: str) -> tuple[tuple[str, str], ...] | None:
    """Return what the check lets through where `environment` stands in `%environment`; None where it refuses it."""
    text = TEXT.replace(f"{GOOD}\n", environment)
    try:
        sections = read_sections(text, "02-b.def")
        check_definition(Definition("02-b", ("b",), "01-a", sections, ()))
    except DefinitionError:
        return None
    return sections.environment


def ran(environment: str, folder: Path) -> tuple[list[str], set[str]]:
    """Return the commands that bash runs of a script, and the variables that it sets."""
    script, report, room = folder / "script", folder / "report", folder / "room"
    room.mkdir(exist_ok=True)
    script.write_text(environment)
    command = ["bash", "--norc", "-c", f"exec 3>{report}\n{REPORTER}", "bash", str(script)]
    subprocess.run(
        command, cwd=room, capture_output=True, check=False, timeout=patient(30), env={"PATH": "/usr/bin:/bin"}
    )
    commands, _, names = report.read_text().rpartition("\0\0")
    made = [f"made {file.name}" for file in room.iterdir()]
    for file in room.iterdir():
        file.unlink()
    return [*commands.split("\0")[1:-1], *made], set(names.split()) - {"before", "BASH_COMMAND", "_"}


ATTACKS = {
    "a command": "export A='x'; touch y",
    "a command in a value": "export A='x'$(touch y)",
    "backticks": "export A='x'`touch y`",
    "a default that is assigned": "export A='x'\"${B:=y}\"",
    "a default with a command": "export A='x'\"${B:-$(touch y)}\"",
    "arithmetic": "export A='x'$((B=1))",
    "behind an ampersand": "export A='x'& touch y",
    "a file": "export A='x'> y",
    "a here-string": "export A='x'<<<$(touch y)",
    "an alias": "export A='x'\n    harmless",
    "quotes that end and begin again": "export A='x''; touch y; '''",
    "a name that is a subscript": "export A[$(touch y)]='x'",
    "another command": "eval export A='x'",
    "no quotes": "export A=x",
    "half a quote": "export A='x",
    "an escape": "export A='\x1b[2J'",
}


@pytest.mark.threat
def test_what_does_more_than_set_a_variable_is_refused() -> None:
    assert taken(f"{GOOD}\n") == (("A", "'x'"),)
    assert [name for name, attack in ATTACKS.items() if taken(f"    {attack}\n") is not None] == []


def test_the_bash_that_reports_what_ran_sees_attacks(tmp_path: Path) -> None:
    seen = {name for name, attack in ATTACKS.items() if ran(f"    {attack}\n", tmp_path)[0] != ["export A='x'"]}
    assert {"a command", "backticks", "a file", "an alias", "a here-string", "a default with a command"} <= seen
    assert len(seen) > len(ATTACKS) * 2 // 3
    assert ran(ATTACKS["a default that is assigned"], tmp_path)[1] == {"A", "B"}


PIECES = (
    *("'", '"', "\\", "`", "$(touch y)", "`touch y`", "${B:=y}", '"${A:+:$A}"', "$'\\n'", ";", "&", "|", "<<E", "> y"),
    *("#", " ", "\t", "\n", "\r", "\v", "\u00a0", "\u2028", "\u3000", "x", "touch y", "harmless", "{{", "{''{"),
    *("'\"'\"'", "~", "\n    ", "export ", "B=", "!", "*", "é", "''", "'x'"),
)
SOUP = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
CLEAN = SOUP.filter(str.isprintable).map(lambda text: quote_sh(text, "test"))
WORD = st.one_of(SOUP, CLEAN, CLEAN.map('{}"${{A:+:$A}}"'.format), st.tuples(CLEAN, SOUP).map("".join))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORD, min_size=1, max_size=3))
@example(words=["'x'; touch y"])
@example(words=["'{''{ .Id }}'"])
@pytest.mark.threat
def test_what_passes_runs_nothing_and_sets_what_it_says(words: list[str], tmp_path: Path) -> None:
    environment = "".join(f"    export {name}={word}\n" for name, word in zip("ABC", words, strict=False))
    variables = taken(environment)
    if variables is None:
        return
    commands, names = ran(environment, tmp_path)
    assert [command.partition("=")[0] for command in commands] == [f"export {name}" for name, _ in variables]
    assert names == {name for name, _ in variables}
    printed = "".join(f'printf "%s\\0" "${name}"\n' for name in names)
    for shell in ("bash", "sh"):
        said = subprocess.run([shell], input=environment + printed, capture_output=True, text=True, check=True)
        values = dict(zip(names, said.stdout.split("\0"), strict=False))
        for name, word in variables:
            assert values[name] == shlex.split(word.removesuffix(f'"${{{name}:+:${name}}}"'))[0]


@settings(max_examples=examples(25), deadline=None)
@given(st.binary(max_size=40).map(lambda data: data.decode("utf-16", "ignore")))  # st.text reads all of Unicode first
@pytest.mark.threat
def test_each_value_that_is_quoted_as_the_writer_does_is_taken(value: str) -> None:
    if value.isprintable():
        word = quote_sh(value, "test")
        assert taken(f"    export A={word}\n") == (("A", word),)
