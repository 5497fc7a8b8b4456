"""Scripts that set variables, their effect in real shells, and a check of what our reader of scripts is sure of."""

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
    'export "A=b c" \'B=$X\' "C=$PATH"',
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
"""Scripts of which the reader knows all that they set."""

CRASHES = ("export A=1 3>&-", "export A=1 9>/dev/null")
"""On these, Apptainer 1.4.5 crashes and starts no container."""
OPEN = (
    'export A=1; : "${A:=2}"; : ${B=$A}; export B',
    ": ${NCCL_NET:=ofi}; export NCCL_NET",
    "A=set; export B=${A:-${C:=not}}; export C",
    "[ -d /opt/rocm ] && export OMP_NUM_THREADS=1\nexport B=2",
    "export OMP_NUM_THREADS=$(nproc)",
    "export WHO=`id -un`",
    "if [ -f /etc/x ]; then CONDA_EXE=/opt/conda/bin/conda; fi; export CONDA_EXE",
    "for name in a b; do export LAST=$name; done",
    "case $TERM in xterm) export COLORS=1;; *) export COLORS=0;; esac",
    "export CACHE=$HOME/.cache",
    "export A | B=2\nwhile false; do export C=1; done",
    "export LD_LIBRARY_PATH=/a:/b:\nexport LD_LIBRARY_PATH=${LD_LIBRARY_PATH%:}",
    'export A="${Z:=set}$Z"',
    "export A=${A:-${B:=c}}${B}",
    "A=; : ${A=x}$B/y; export A",
    "export A=1; unset -v A",
    "for IFS in a b; do :; done; export A=1",
    "A=1; unset IFS; export A",
    "[ -d /x ] && : ${IFS:=x}; export A=1",
    "if true; then fi; export A=1",
    "f() export A=1; f",
    "export A=1; { export A=2; } | cat",
    "export A=1; export A=2 && export A=3 &",
    "A=1; f() { A=2; g; }; g() { B=3; }; f; export A B",
    'f() { [ -n "$1" ] || return; export A=$1; }; f; export B=1',
    "f() { shift; export A=1; }; f; export B=1",
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
    "export A=Socket NCCL_NET=$A",
    "export NCCL_NET=So\\cket",
    "export NCCL_NET=ofi\r\nexport A=1",
    "true | export NCCL_NET=Socket",
    "[[ -n $X ]] || export NCCL_NET=Socket",
    "break\nexport A=1",
    "if true; then continue; fi; export A=1",
    "for x in a; do break 2; done; export A=1",
    "export A=1 &>/dev/null",
    "f() { export A=1; }; f &>/dev/null",
    "export A; unset A; A=1",
    "export A; : ${A:=x}; A=y",
    "export A; for A in b; do :; done; A=c",
    "[ -z = -z ] && export A=1",
    "[ ! = ! ] && export A=1",
    '[ "(" = "(" ] && export A=1',
    "export A=1 # x \\\nexport B=2",
    "export A=1 \\\n # x \\\n C=3",
    *CRASHES,
)
"""Scripts whose effect only a shell knows."""


GRAMMAR = {
    "script": ("<commands>", "export NCCL_NET=first\nexport FI_PROVIDER=first LD_LIBRARY_PATH=first\n<commands>"),
    "commands": ("<command>", "<command>\n<command>", "<command>\n<command>\n<command>", "<commands>\n<commands>"),
    "command": (*["<simple>"] * 4, *["<compound>"] * 3),
    "compound": (
        "<test> && <command>",
        "<test> || <command>",
        "<command> && <command>",
        "<command> || <command>",
        "if <test>; then <command>; fi",
        "if <test>\nthen\n<command>\n <command>\nelse <command>\nfi",
        "if <test>; then <command>; elif <command>; then <command>; else <command>; fi",
        "for <name> in a b; do <command>; done",
        "while <test>; do <command>; break; done",
        "case $FI_PROVIDER in tcp|<plain>) <command>;; *) <command>;; esac",
        "{ <command>; <command>\n}",
        "(<command>; <command>)",
        "(<command>) &",
        "! <command>",
        "<command> | cat",
        "<command> | <command>",
        "<command> & wait",
        "use_it() { <command>; }",
    ),
    "test": (
        "true",
        "false",
        "! true",
        "[ -d / ]",
        "[ -d /nonexistent ]",
        '[ <unary> "$<name>" ]',
        '[ "$<name>" <equal> <plain> ]',
        "[ <unary> <operand> ]",
        "test <operand> <equal> <operand>",
        "[[ <operand> <equal> <operand> ]]",
        "<simple>",
    ),
    "unary": ("-n", "-z", "!", "! -z", ""),
    "equal": ("=", "!="),
    "operand": ('"$<name>"', "$<name>", '"${<name>:-}"', '"x$<name>"', "x", '""', '"${<name>+x}"', "<word>"),
    "simple": (
        *["export <name>=<plain>", "<name>=<plain>", "export <name>", "unset <name>"] * 4,
        *["export <name>=<word>", "<name>=<word>", "export <name>=<word> <name>=<word>"] * 4,
        *[": ${<name>:=<word>}", ': "${<name>=<plain>}"', "export <name>; : ${<name>:=<plain>}${<name>}"] * 2,
        "echo ${<name>=<word>}",
        "<test>",
        "<program>",
        "use_it",
        "f() { export A=f; }",
        "f ()\n{\n A=f\n}",
        "f",
        "<odd>",
    ),
    "program": (":", "echo hi", "/bin/true", "nonexistent x", "printf hi", "ulimit -c 0", "A=1 env"),
    "odd": (
        "return",
        "return 1",
        "export -n <name>",
        "eval 'export <name>=f'",
        "eval unset <name>",
        "eval return",
        "set -- a; shift",
        "command unset <name>",
        "unset -f f",
        *OPEN,
    ),
    "word": ("<plain>", "<part>", "<part>", "<part><part>", "<part><part><part>"),
    "part": (
        "<plain>",
        "$<name>",
        "${<name>}",
        "${<name><operator><word>}",
        "${<name><operator>}",
        "'<text>'",
        '"<quoted>"',
        '"<quoted><quoted>"',
        '""',
        *("<text>", "<literal>"),
        *("${<name>%:}", "${<name>#/opt}", "${<name>%%*}", "${#<name>}", "${<name>:?x}"),
        *("$(echo hi)", "`echo hi`", "$((1+1))", "$(echo $(echo ')'))", "$?", "$1", "$$"),
    ),
    "plain": ("x", "/opt/x", "y:z", "ofi", "first"),
    "literal": (":", "=", "~", "*", "\\ ", "\\$", "\\\n", "{", "}", "!", "#", "$<name>\\\nA"),
    "text": ("x", "a", "*", "{a,b}", "é", "a#b", "=", "!", "-n", "]", "a b"),
    "quoted": ("<text>", "it's", "$<name>", "${<name><operator><inner>}", "\\\\", "$<name>\\\nA"),
    "inner": ("x", "a b", '"q r"', "$<name>", '"it\'s"', "'s'", "", '"a}b"', "~", "\\}"),
    "operator": (":-", "-", ":+", "+", ":=", "="),
    "name": ("A", "B", "NCCL_NET", "FI_PROVIDER", "LD_LIBRARY_PATH", "HOME"),
}
"""Grammar of the generated scripts: the alternatives of each symbol; the first is used when nesting gets too deep."""
_DEEP = 9


def generated(chance: random.Random) -> Iterator[str]:
    """Yield scripts endlessly."""

    def written(kind: str, depth: int) -> str:
        text = GRAMMAR[kind][0] if depth > _DEEP else chance.choice(GRAMMAR[kind])
        return re.sub("<([a-z]+)>", lambda found: written(found[1], depth + 1), text)

    while True:
        yield written("script", 0)


def wrongly_sure(script: str, real: dict[str, str] | None, ignored: frozenset[str] = frozenset()) -> str | None:
    """Return a message about a variable that the reader is sure of but a shell sets differently, or None."""
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
    """Read scripts as an engine sources them, starting from its default PATH."""
    shell = Shell()
    shell.set_default_path()
    for script in scripts:
        source(script, "/.singularity.d/env/90-environment.sh", shell)
    return shell


def exported(shell: str, scripts: Sequence[str], folder: Path) -> list[dict[str, str] | None]:
    """Return what each script exports, or None if it ends the shell; all run in one shell."""
    subprocess.run([shell, "-c", driver(scripts, folder)], env={"PATH": DEFAULT_PATH}, cwd=folder, check=False)
    return collected(scripts, folder)


def driver(scripts: Sequence[str], folder: Path) -> str:
    """Write the scripts to files; return a script that sources each in its own subshell."""
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(f"{script}\n:\n", newline="")
        (folder / f"{number}.out").unlink(missing_ok=True)
    silent = "</dev/null >/dev/null 2>/dev/null"
    lines = [f"( . {folder}/{n}.sh {silent}; /usr/bin/env -0 >{folder}/{n}.out )" for n in range(len(scripts))]
    return "exec 2>/dev/null\n" + "\n".join(lines) + "\n:\n"


def collected(scripts: Sequence[str], folder: Path) -> list[dict[str, str] | None]:
    """Return the environments that a driver wrote, None for each missing one."""
    found: list[dict[str, str] | None] = []
    for number in range(len(scripts)):
        path = folder / f"{number}.out"
        items = os.fsdecode(path.read_bytes()).split("\0") if path.exists() else None
        pairs = (item.partition("=") for item in items or () if item)
        found.append(None if items is None else {name: value for name, _, value in pairs})
    return found
