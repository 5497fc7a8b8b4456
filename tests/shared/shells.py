"""Scripts that set variables, what real shells make of them, and whether the reader of an image is right where it is sure."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from lumiimg.image.environment import source
from lumiimg.image.shell import DEFAULT_PATH, VOLATILE, Shell

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PLAIN = (
    "export A=b",
    "export A='b c' B=\"d e\"; export C=f",
    'export A="${A:-"v w"}"',
    'export A="${A:-"it\'s"}"',
    'export A="${A:-"quote \\" dollar \\$X back \\\\ tick \\`"}"',
    'export LD_LIBRARY_PATH="/x:${LD_LIBRARY_PATH:-}"',
    'export LD_LIBRARY_PATH="/x${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
    'export L=/a\nexport L="/b${L:+:$L}"',
    "A=1\nB=2\nexport B",
    "export A",
    "export A=1 # a comment\n# export B=2\nexport C='#no comment' D=a#b",
    'export A="two\nlines"',
    "export A=a\\\nb",
    "\texport   A=1\t  B=2  ",
    'export A="it\'s" B=\'say "hi"\'',
    "export A=",
    'export A=""',
    "export PATH=/opt/x/bin:$PATH",
    "PATH=/opt/x/bin:$PATH",
    "export LD_LIBRARY_PATH=/opt/fast:/opt/rocm/lib\nunset LD_LIBRARY_PATH",
    "export A=1; unset A; A=2",
    "use_fast () {\n  export LD_LIBRARY_PATH=/opt/fast\n}\nexport A=1",
    "f()\n{\n  export A=1\n}\nexport B=2",
    'if [ -z "$NCCL_NET" ]; then export NCCL_NET=ofi; fi',
    'if [ -n "${LD_LIBRARY_PATH:-}" ]; then\n export LD_LIBRARY_PATH=/a:$LD_LIBRARY_PATH\nelse\n export LD_LIBRARY_PATH=/a\nfi',
    'if test "$A" = b; then export X=1; elif [ "x$A" != x ]; then export X=2; else export X=3; fi',
    '[ -z "$LD_LIBRARY_PATH" ] && export LD_LIBRARY_PATH=/a || export LD_LIBRARY_PATH=/b',
    '[ -n "$X" ] || export NCCL_NET=ofi',
    "! true || export A=1",
    'export A="x" && export B="$A"',
    "{ export A=1; export B=$A; }",
    "(export NCCL_NET=Socket)\nexport NCCL_NET=Socket &",
    "export A=1 >/dev/null 2>&1",
    "mkdir -p /nonexistent/x 2>/dev/null\necho welcome\nulimit -c 0\nexport A=1",
    "OMP_NUM_THREADS=4 nproc\nexport A=1",
    "export A=1\n[[ $B == x && -d /opt ]]\nexport B=2 2>/dev/null",
)
"""All that they set is sure."""

OPEN = (
    "A=set; export B=${A:-${C:=not}}; export C",
    "[ -d /opt/rocm ] && export OMP_NUM_THREADS=1\nexport B=2",
    "export OMP_NUM_THREADS=$(nproc)",
    "export WHO=`id -un`",
    "if [ -f /etc/x ]; then CONDA_EXE=/opt/conda/bin/conda; fi; export CONDA_EXE",
    "for name in a b; do export LAST=$name; done",
    "case $TERM in xterm) export COLORS=1;; *) export COLORS=0;; esac",
    "export CACHE=$HOME/.cache",
    "export A | B=2\nwhile false; do export C=1; done",
    ": ${NCCL_NET:=ofi}; export NCCL_NET",
    "export LD_LIBRARY_PATH=/a:/b:\nexport LD_LIBRARY_PATH=${LD_LIBRARY_PATH%:}",
    'export A="${Z:=set}$Z"',
    "export A=${A:-${B:=c}}${B}",
    "export A=1; unset -v A",
    "A=1; f() { A=2; g; }; g() { B=3; }; f; export A B",
    'f() { [ -n "$1" ] || return; export A=$1; }; f; export B=1',
    ". /opt/site.sh",
    "source /opt/conda/etc/profile.d/conda.sh",
    ". /opt/miniconda/bin/activate base",
    "$WITH_CONDA",
    'eval "$(/opt/conda/bin/conda shell.bash hook)"',
    "[ -d /opt/rocm ] && export NCCL_NET=Socket",
    "if [ -d /opt/rocm ]; then NCCL_NET=Socket; fi; export NCCL_NET",
    "declare -x NCCL_NET=Socket",
    "readonly NCCL_NET=Socket; export NCCL_NET",
    "case a in a) export NCCL_NET=Socket;; esac",
    "for NCCL_NET in a b; do :; done; export NCCL_NET",
    "export LD_LIBRARY_PATH=$(echo /x)",
    "export LD_LIBRARY_PATH=`echo /x`",
    "X=$(echo /x); export LD_LIBRARY_PATH=$X/lib",
    "export PATH=$HOME/bin:$PATH",
    "export PATH=~/bin:$PATH",
    "f() { export NCCL_NET=Socket; }\nf",
    "function f { export NCCL_NET=Socket; }\nf",
    "echo() { export NCCL_NET=Socket; }\necho x",
    "while f; do f() { export NCCL_NET=Socket; }; done",
    "cat <<EOF\nexport NCCL_NET=Socket\nEOF",
    "export NCCL_NET='open",
    "export LD_LIBRARY_PATH=${X%%*}",
    ": ${NCCL_NET:=$(echo Socket)}; export NCCL_NET",
    "[ -d /x ] || : ${NCCL_NET:=Socket}; export NCCL_NET",
    "set -a\nNCCL_NET=Socket",
    "return\nexport NCCL_NET=Socket",
    "[ -d /x ] || exit 0\nexport NCCL_NET=Socket",
    "trap 'export NCCL_NET=Socket' EXIT",
    "alias export=:\nexport NCCL_NET=Socket",
    "printf -v NCCL_NET Socket; export NCCL_NET",
    "read NCCL_NET </etc/hostname; export NCCL_NET",
    "echo $((NCCL_DEBUG=1)); export NCCL_DEBUG",
    "((NCCL_DEBUG=1)); export NCCL_DEBUG",
    "NCCL_NET=(a b); export NCCL_NET",
    "NCCL_NET+=x; export NCCL_NET",
    "export NCCL_NET=Socket >/nonexistent/x",
    "command export NCCL_NET=Socket",
    "\\export NCCL_NET=Socket",
    'export "NCCL_NET=Socket"',
    "export A=Socket NCCL_NET=$A",
    "export NCCL_NET=So\\cket",
    "export NCCL_NET=ofi\r\nexport A=1",
    "true | export NCCL_NET=Socket",
    "[[ -n $X ]] || export NCCL_NET=Socket",
)
"""What somebody sets by them is known only to a shell."""


NAMES = ("NCCL_NET", "FI_PROVIDER", "LD_LIBRARY_PATH")
"""Variables by which somebody goes."""
CONDITIONS = (
    "true",
    "false",
    "[ -d / ]",
    "[ -d /nonexistent ]",
    '[ -n "$NCCL_NET" ]',
    '[ "$FI_PROVIDER" = tcp ]',
    "! true",
)
SETTINGS = (
    *("export {name}=a", "export {name}=b", "{name}=c", "unset {name}", "export {name}") * 5,
    *("export {name}=${{{other}}}:d", "export {name}=${{{other}:-e}}", "export {name}=${{{other}:+g}}") * 5,
    "export -n {name}",
    "return",
    "return 1",
    "eval 'export {name}=f'",
    "eval unset {name}",
    "eval return",
    "set -- a; shift",
    "command unset {name}",
    "use_it",
)
FRAMES = (
    "{one}",
    "{one}",
    "{condition} && {one}",
    "{condition} || {one}",
    "{one} && {two}",
    "{one} || {two}",
    "if {condition}; then {one}; else {two}; fi",
    "if {condition}; then\n {one}\n {two}\nfi",
    "({one}; {two})",
    "{{ {one}; {two}; }}",
    "{one} | cat",
    "({one}) &",
    "for each in 1 2; do {one}; done",
    "case $FI_PROVIDER in tcp) {one};; *) {two};; esac",
    "use_it() {{ {one}; }}",
    "! {one}",
)
"""How a statement may stand, so that it is run or not: only a shell knows of some."""


def doubtful(chance: random.Random) -> Iterator[str]:
    """Yield scripts of a few statements of these kinds, without end."""
    while True:
        lines = []
        for _ in range(chance.choice((2, 3, 4, 5))):
            words = {key: _setting(chance) for key in ("one", "two")}
            lines.append(chance.choice(FRAMES).format(condition=chance.choice(CONDITIONS), **words))
        yield "\n".join((*(f"export {name}=first" for name in NAMES), *lines))


def _setting(chance: random.Random) -> str:
    return chance.choice(SETTINGS).format(name=chance.choice(NAMES), other=chance.choice(NAMES))


def wrongly_sure(script: str, real: dict[str, str] | None, ignored: frozenset[str] = frozenset()) -> str | None:
    """Return a variable of which the reader is sure, and a shell has something else; None where there is none."""
    after = read(script)
    if after.lost:
        return None
    if real is None:
        return f"{script!r} ends the shell"
    names = ({*_NAMES.findall(script)} | real.keys() | after.environment.keys()) - VOLATILE - ignored
    return next(
        (
            f"{script!r}: {name}: {after.environment.get(name)!r} where the shell has {real.get(name)!r}"
            for name in sorted(names - after.doubts.keys())
            if after.environment.get(name) != real.get(name)
        ),
        None,
    )


def read(*scripts: str) -> Shell:
    """Read scripts as an engine sources them, from the PATH that it sets."""
    shell = Shell()
    shell.set_default_path()
    for script in scripts:
        source(script, "/.singularity.d/env/90-environment.sh", shell)
    return shell


def exported(shell: str, scripts: Sequence[str], folder: Path) -> list[dict[str, str] | None]:
    """Return what each script exports, all in one process of a shell; None where it ends the shell."""
    subprocess.run([shell, "-c", driver(scripts, folder)], env={"PATH": DEFAULT_PATH}, cwd=folder, check=False)
    return collected(scripts, folder)


def driver(scripts: Sequence[str], folder: Path) -> str:
    """Write the scripts to files; return the script that sources each in a subshell of its own."""
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(f"{script}\n:\n", newline="")
        (folder / f"{number}.out").unlink(missing_ok=True)
    silent = "</dev/null >/dev/null 2>/dev/null"
    lines = [f"( . {folder}/{n}.sh {silent}; /usr/bin/env -0 >{folder}/{n}.out )" for n in range(len(scripts))]
    return "exec 2>/dev/null\n" + "\n".join(lines) + "\n:\n"


def collected(scripts: Sequence[str], folder: Path) -> list[dict[str, str] | None]:
    """Return what a driver left."""
    found: list[dict[str, str] | None] = []
    for number in range(len(scripts)):
        path = folder / f"{number}.out"
        items = os.fsdecode(path.read_bytes()).split("\0") if path.exists() else None
        pairs = (item.partition("=") for item in items or () if item)
        found.append(None if items is None else {name: value for name, _, value in pairs})
    return found


def generated(chance: random.Random) -> Iterator[str]:
    """Yield scripts without end."""
    writer = _Writer(chance)
    while True:
        yield "\n".join(writer.command(0) for _ in range(chance.choice((1, 2, 3, 4))))


class _Writer:
    def __init__(self, chance: random.Random) -> None:
        self._pick = chance.choice
        self._chance = chance.random

    def name(self) -> str:
        return self._pick(("A", "B", "C", "NCCL_NET", "LD_LIBRARY_PATH", "HOME"))

    def word(self, depth: int = 0) -> str:
        return "".join(self._part(depth) for _ in range(self._pick((1, 1, 1, 2, 3))))

    def _part(self, depth: int) -> str:
        literal = self._pick(
            ("x", "/opt/x", "y:", "a b", "it's", "*", "~", "{a,b}", "é", "a#b", "\\", "=", "!", "-n", "]")
        )
        match self._pick("llllqqqddddvvveeeets"):
            case "l":
                return self._pick(("x", "/opt/x", "y:z", ":", "=", "~", "*", "\\ ", "\\$", "\\\n", "{", "}", "!", "#"))
            case "q":
                return "'" + literal.replace("'", "") + "'"
            case "d":
                return '"' + "".join(self._in_quotes(literal) for _ in range(self._pick((0, 1, 2)))) + '"'
            case "e" if depth < 3:
                operator = self._pick((":-", "-", ":+", "+", ":=", "="))
                return f"${{{self.name()}{operator}{self._pick(('', self.word(depth + 1)))}}}"
            case "t":
                return self._pick(("${%s%%:}", "${%s#/opt}", "${%s%%%%*}", "${#%s}", "${%s:?x}")) % self.name()
            case "s":
                return self._pick(("$(echo hi)", "`echo hi`", "$((1+1))", "$(echo $(echo ')'))", "$?", "$1", "$$"))
        return self._pick((f"${self.name()}", f"${{{self.name()}}}"))

    def _in_quotes(self, literal: str) -> str:
        word = self._pick(("x", "a b", '"q r"', "$A", '"it\'s"', "'s'", "", '"a}b"', "~", "\\}"))
        return self._pick(
            (
                literal.replace("\\", "\\\\"),
                f"${self.name()}",
                f"${{{self.name()}{self._pick((':-', '-', ':+', '+', ':='))}{word}}}",
            )
        )

    def test(self) -> str:
        name = self.name()
        words = (
            f'"${name}"',
            f"${name}",
            f'"${{{name}:-}}"',
            f'"x${name}"',
            "x",
            '""',
            f'"${{{name}+x}}"',
            self.word(),
        )
        if self._chance() < 0.6:
            inner = f"{self._pick(('-z', '-n', '', '!', '! -z', '-d'))} {self._pick(words)}"
        else:
            inner = f"{self._pick(words)} {self._pick(('=', '!=', '='))} {self._pick(words)}"
        return self._pick((f"[ {inner} ]", f"test {inner}", f"[ {inner} ]", f"[[ {inner} ]]"))

    def command(self, depth: int) -> str:
        if depth > 2 or self._chance() < 0.6:
            return self._simple(depth)
        one, two = self.command(depth + 1), self.command(depth + 1)
        return self._pick(
            (
                f"if {self.test()}; then {one}; fi",
                f"if {self.test()}\nthen\n{one}\nelse {two}\nfi",
                f"if {self.test()}; then {one}; elif {two}; then {one}; else {two}; fi",
                f"{one} {self._pick(('&&', '||'))} {two}",
                f"{self.test()} {self._pick(('&&', '||'))} {one}",
                f"for {self.name()} in a b; do {one}; done",
                f"case $A in x|y) {one};; *) {two};; esac",
                f"{{ {one}\n{two}\n}}",
                f"({one})",
                f"! {one}",
                f"{one} | {two}",
                f"{one} & wait",
            )
        )

    def _simple(self, depth: int) -> str:
        name = self.name()
        odd = self._pick(OPEN) if depth == 0 else "return"
        return self._pick(
            (
                *[f"export {name}={self.word()}"] * 6,
                *[f"{name}={self.word()}"] * 3,
                f"export {name}",
                f"export {name}",
                f"unset {name}",
                f"export {name}={self.word()} {self.name()}={self.word()}",
                f": ${{{name}:={self.word(1)}}}",
                f"echo ${{{name}:={self.word(1)}}}",
                self._pick((":", "true", "false", "echo hi", "/bin/true", "nonexistent x", "printf hi", "ulimit -c 0")),
                self._pick(("f() { export A=f; }", "f ()\n{\n A=f\n}", "f")),
                self.test(),
                odd,
            )
        )
