"""All output passes one gate, which removes secrets of many kinds in every place of what is printed, and after every
option of every command; what is not a secret is unchanged.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lumiimg
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.cli.commands import COMMANDS, INTERNAL, make_parser
from lumiimg.cli.main import main
from lumiimg.core import redact as redaction
from lumiimg.core.errors import BadInputError, ExitCode, LumiimgError, one_safe_line
from lumiimg.core.findings import Advice, Remedy, Severity
from lumiimg.core.redact import HIDDEN, known_secrets, redact, secrets_here
from lumiimg.report import json_output
from lumiimg.report.document import Document, Facts, Item, Lines, Meter, Paragraph, PathSteps, Row, Section, Table, Tree
from lumiimg.report.junit import junit_text
from lumiimg.report.page import to_page
from lumiimg.report.progress import LineProgress
from lumiimg.report.text import show
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import EVERYTHING
from tests.shared.secret_texts import DIGEST, SECRETS, WORDS, leaked

PUBLIC = (
    f"docker://rocm/pytorch:latest@{DIGEST}",
    f"docker://localhost:5000/rocm/pytorch@{DIGEST}",
    f"digest = {DIGEST}; key: {DIGEST}",
    "https://host.test:8443/a@b/c?version=6.2.4&page=2&sort=monkey",
    "pip install x @ git+https://git@github.com/x/y@v1.2.3",
    "git@github.com:x/y.git and mail@host.test",
    "http://[::1]:8080/a@b",
    "/opt/rocm-6.2.4/lib/librccl.so.1.0.60204:/scratch/project_1/me@site/x",
    "--bind /a:/me@x/y,/var/spool/slurmd:/var/spool/slurmd",
    "/run/secrets/db_password: cannot be read: No such file or directory",
    "https://auth.test/token: the server answers 503",
    "PWD=/users/me OLDPWD=/tmp pwd=/users/me BYPASS=1 COMPASS=north",
    "PASS: test_rccl, pass: 12, code=3, exit code: 1",
    "sort --key=2 --sort key=name; cache key: 0123456789ab",
    "max_tokens=4096 tokenizer: fast eos_token_id: 2 tokens: 17 TOKENIZERS_PARALLELISM=false",
    "--token-file /users/me/token --password-file=/users/me/p",
    "NCCL_NET_PLUGIN=librccl-net.so FI_CXI_DEFAULT_CQ_SIZE=131072 SLURM_JWT=daemon AWS_REGION=eu-north-1",
    "torch==2.7.1+rocm6.2.4 (CPython 3.12, manylinux_2_28_x86_64)",
    "variable coll_mcast_token=<not set>, --token <TOKEN>",
    "unpacked passwd:amd64 1:4.13, python3-jwt:all",
    "basic installation of the bearer network, authentication by key",
    "ENV PATH /opt/bin and setenv LD_LIBRARY_PATH /lib of the environment; ENV KEYBOARD us",
    '{"auth": "kerberos", "auths": {}} and -----BEGIN PUBLIC KEY----- in the keyring',
    "next=https%3A%2F%2Fhost.test%3A8080%2Fa%40b%3Fv%3D6.2.4%26page%3D2",
    "git@host:x and a@b and /a?b=c; docker://busybox@sha256:0123 and git+ssh://git@host/x",
    "https://host/a@b?version=1&monkey=2; the key of it=x",
    "bash: line 3: HF_TOKEN: unbound variable; sh: 1: HF_TOKEN: parameter not set; HF_TOKEN: Undefined variable.",
    'bash: X_TOKEN: parameter null or not set; for key in "${!TOKENS[@]}"; path[0]=/bin pat-1 PATH+=:/opt/bin',
)


def document_of(text: str) -> Document:
    """Return a document with a text in each of its places; a public text has another word beside it in its line."""
    word = text if leaked(text) else "word"
    texts = (text,)
    item = Item(Severity.PROBLEM, text, word, texts, texts, texts, (word, text), texts, (Remedy(text),), source=text)
    facts, table = Facts(((word, text),)), Table(texts, (Row(texts, Severity.OK),))
    tree, meter = Tree(text, word, branches=(Tree(text),)), Meter(word, text, 0.5)
    blocks = item, Paragraph(text), Lines(texts), facts, table, tree, PathSteps((), text), meter
    advice, sections = Advice(text, word, word), (Section(text, blocks, is_headed=True),)
    return Document(text, word, text, Severity.OK, advice, texts, sections, texts, is_named=True, is_list=True)


def places(text: str, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """Yield each place where a text can be output, and the output."""
    for error in (LumiimgError(text), BadInputError("x", where=text), LumiimgError("x", hint=text)):
        yield "error", str(error)
    document = document_of(text)
    for quiet, stderr in ((False, False), (True, True)):
        show(document, verbose=True, quiet=quiet, stderr=stderr)
    lines = LineProgress()
    lines.notice(text)
    lines._say(text)
    with pytest.raises(SystemExit):
        make_parser().error(text)
    yield "terminal", "".join(capsys.readouterr())
    value = {"a": [{"b": text, text: ""}], "environment": {"DB_PASS": "".join(WORDS)}}
    yield "JSON", json_output.strict_json(json_output._builtins(value, None, "", redact))
    yield "page", to_page(document)
    yield "JUnit", junit_text(document)


@pytest.mark.threat
def test_no_secret_passes_the_gate_in_any_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SECRETS) > 800
    bad = [text for text in SECRETS if leaked(one_safe_line(text)) or leaked(redact(text))]
    assert bad == []
    assert [text for text in SECRETS if one_safe_line(one_safe_line(text)) != one_safe_line(text)] == [], (
        "twice is as once"
    )
    for text in SECRETS[:: 7 if EVERYTHING else 29]:
        for place, out in places(text, capsys):
            assert not leaked(out), (place, text, out)


TOKENS = {mark: (before, rest) for before, marks, rest in redaction._TOKENS for mark in marks.split()}


@pytest.mark.threat
@pytest.mark.parametrize("mark", TOKENS)
@given(st.data())
@settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_a_token_of_every_shape_is_found_through_the_quick_look(mark: str, data: st.DataObject) -> None:
    before, rest = TOKENS[mark]
    token = data.draw(st.from_regex(rest, fullmatch=True, alphabet=st.characters(codec="ascii")))
    place = re.sub(r"[(?<=)\\]", "", before) if before.startswith("(?<=") else ""
    is_cut_off_key = mark == "-----BEGIN" and "-----END" not in token
    assert redact(f"in {place}{mark}{token} of it") == f"in {place}{HIDDEN}{'' if is_cut_off_key else ' of it'}"


@pytest.mark.threat
def test_a_value_of_every_name_of_a_secret_is_found_through_the_quick_look() -> None:
    """The names are the words in the patterns and all pairs of them."""
    patterns = (redaction._WORD, redaction._SHORT, redaction._VARIABLE)
    words = {word.upper() for pattern in patterns for word in re.findall("[A-Za-z]{2,}", pattern)} | {"X", "X1"}
    names = {*words, *(f"{first}{mark}{last}" for first in words for last in words for mark in ("", "_"))}
    called = [name for name in names if redaction.is_secret_name(name)]
    assert len(called) > 900
    for name in called:
        for text in (f"{name}=Canary", f"export {name}+='Canary'", f"{name}[1]=Canary", f"ENV {name} Canary"):
            assert not leaked(redact(text)), text


@pytest.mark.threat
def test_what_is_beside_a_secret_stays() -> None:
    for text in SECRETS:
        for kept in ("host.test", "6.2.4", DIGEST, "run --", "https://", "docker://"):
            if kept in text and not (kept == "host.test" and "/here/" in text):
                assert kept in one_safe_line(text), text


@pytest.mark.threat
def test_paths_digests_and_versions_stay_readable(capsys: pytest.CaptureFixture[str]) -> None:
    for text in PUBLIC:
        assert one_safe_line(text) == redact(text) == text
        for place, out in places(text, capsys):
            assert out.count(HIDDEN) == (place == "JSON"), (place, text, out)


@pytest.mark.threat
def test_a_secret_of_the_environment_is_hidden_in_each_of_its_forms() -> None:
    known = known_secrets({"DB_PASS": "p@ss wo/rd+long", "X_TOKEN": "spring", "https_proxy": "http://me:wintér@h"})
    for text in ("p@ss wo/rd+long", "p%40ss%20wo%2Frd%2Blong", "p%40ss%20wo%2frd%2blong", "wint%C3%A9r", "spring"):
        assert redact(f"at x={text}&y", known) == f"at x={HIDDEN}&y"
        assert redact(f"/{text}/", known) == f"/{HIDDEN}/"
    assert redact("springer offsprings spring_2", known) == "springer offsprings spring_2", "words of the language"


def test_nothing_of_the_catalogue_is_taken_for_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*open_catalogue({}).layer_names(), *open_catalogue({}).recipe_names(), "lumi", "frontier", "generic"]
    for words in (
        ["list"],
        ["schema"],
        ["log", "--signatures"],
        *(["show", name] for name in names[:: 1 if EVERYTHING else 4]),
    ):
        for more in ([], ["--json"]) if words != ["schema"] else ([],):
            main([*words, *more])
            assert HIDDEN not in "".join(capsys.readouterr()), (words, more)


# ---- after every option of every command


def words_of_commands(word: str) -> Iterator[list[str]]:
    """Yield each command with the word in each place that accepts one."""

    def walk(parser: argparse.ArgumentParser, before: list[str]) -> Iterator[list[str]]:
        actions = parser._actions
        for action in actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, below in action.choices.items():
                    if name != INTERNAL:
                        yield from walk(below, [*before, name])
            elif action.option_strings and action.nargs != 0:
                needed = ["x" for other in actions if not other.option_strings and other.nargs in {None, "+"}]
                yield [*before, action.option_strings[-1], word, *needed]
                yield [*before, f"{action.option_strings[-1]}={word}", *needed]
            elif not action.option_strings:
                yield [*before, word]
                yield [*before, "--", word]
        yield [*before, "--no-such-option", word]

    yield from walk(make_parser(), [])


WORDS_WITH_A_SECRET = (
    "https://me:Canary/@Yranac@host.test/x.sif",
    "https://me:CanaryYranac@host.test/x.sif",
    "x.sif?pass=CanaryYranac",
    "DB_PASS=CanaryYranac",
    "known-of-the-environment",
)


@pytest.mark.threat
@pytest.mark.usefixtures("clean_home")
def test_no_command_repeats_a_secret_in_any_of_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each place of each command gets one of the words, as text or JSON; in `make test-all` all words, both ways."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SSHPASS", "known-of-the-environment")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    secrets_here.cache_clear()
    seen = set()
    for first, word in enumerate(WORDS_WITH_A_SECRET):
        for number, (argv, as_json) in enumerate(itertools.product(words_of_commands(word), (False, True))):
            place, way = divmod(number, 2)
            turn, whose = divmod(place, len(WORDS_WITH_A_SECRET))
            if not EVERYTHING and (whose, turn % 2) != (first, way):
                continue
            more = ["--json"] if as_json else []
            try:
                code = main([*argv, *more] if "--" not in argv else [argv[0], *more, *argv[1:]])
            except SystemExit as error:
                code = int(error.code or 0)
            output = "".join(capsys.readouterr())
            assert not leaked(output), (argv, output)
            assert "known-of-the" not in output, (argv, output)
            assert code in set(ExitCode), (argv, output)
            seen.add(argv[0])
            if "://" in word:
                assert code == ExitCode.BAD_INPUT, (argv, output)
    secrets_here.cache_clear()
    assert seen >= set(COMMANDS) - {"completion"}


@pytest.mark.threat
def test_explain_does_not_repeat_what_an_argument_holds(
    make_layer: MakeLayer, layers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("TEXT", "DB_PASS", "SSHPASS", "TOKENIZER")
    make_layer("a", BASE)
    make_layer("b", LAYER + "".join(f'[arguments.{name}]\ndefault = ""\nhelp = "text"\n' for name in names))
    request = ["--add", "b", "--layers", str(layers)]
    for name, value in [("TEXT", text) for text in SECRETS[:: 17 if EVERYTHING else 211]] + [
        ("DB_PASS", "Canary"),
        ("SSHPASS", "Yranac"),
    ]:
        for words in (["explain", "--base", "a"], ["explain"], ["build", "--dry-run", "--base", "a"]):
            assert main([*words, *request, "--arg", f"b.{name}={value}"]) == ExitCode.BAD_INPUT
            output = "".join(capsys.readouterr())
            assert "looks like a secret" in output or "with a password" in output or "contains a password" in output
            assert not leaked(output)
    assert main(["explain", "--base", "a", *request, "--arg", "b.TOKENIZER=fast"]) == ExitCode.GOOD
    for text in PUBLIC[:: 1 if EVERYTHING else 5]:
        assert main(["explain", "--base", "a", *request, "--arg", f"b.TEXT={text}"]) == ExitCode.GOOD, text
        assert shlex.quote(f"b.TEXT={text}") in capsys.readouterr().out


@pytest.mark.threat
def test_a_lock_with_a_secret_in_it_is_not_written(
    clean_home: Path, tmp_path: Path, make_layer: MakeLayer, layers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del clean_home
    make_layer("b", LAYER)
    for name, code in (("image", ExitCode.GOOD), ("DB_PASS=Canary", ExitCode.BAD_INPUT)):
        lock, base = tmp_path / f"{code.name}.lock", fabric_builder.image(tmp_path / name)
        assert main(["lock", "--base", str(base), "--add", "b", "--layers", str(layers), "-o", str(lock)]) == code
        assert not leaked("".join(capsys.readouterr()))
        assert lock.exists() == (code is ExitCode.GOOD)


# ---- no output bypasses the gate

AS_IT_IS = {
    "cli/bind.py": "binds and variables, to be evaluated",
    "cli/completion.py": "a script of argcomplete's",
    "cli/host.py": "the snapshot",
    "cli/job.py": "the script, which says what its user said",
    "cli/schema.py": "our own words",
}
"""Results that other programs read: they must be the same on standard output as in a file."""
GATED = ("one_safe_line(", "json_text(", "count(", "error", "a constant", "ground.no_headers")
"""What the gate returns, numbers, and errors, whose text has passed the gate."""
OWN = ("texts", "self.prog", "answered", "nodes")


@pytest.mark.threat
def test_what_cli_and_report_print_passes_the_gate() -> None:
    root = Path(lumiimg.__file__).parent
    for path in (*root.glob("cli/*.py"), *root.glob("report/**/*.py")):
        if str(path.relative_to(root)) in AS_IT_IS:
            continue
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            assert name not in {"sys.stdout.write", "sys.stderr.write"}, path
            parts = [part for text in call.args for part in getattr(text, "values", [text])] if name == "print" else []
            for part in parts:
                text = ast.unparse(getattr(part, "value", part)) if not isinstance(part, ast.Constant) else "a constant"
                assert text.startswith((*GATED, *OWN)), (path, ast.unparse(call))
