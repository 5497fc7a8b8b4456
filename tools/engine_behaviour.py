"""Show how this machine's engine behaves where SingularityCE and Apptainer differ, in tests that take seconds.

python -m tools.engine_behaviour IMAGE

It runs the script of each row of tools/engine_differences.toml that has `shows`, and prints one line per row: `same`,
`other` with the expected answer, or `open` with the reason. The exit code is 1 if any row is `other`.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumiimg.core.errors import LumiimgError, one_line
from lumiimg.engine.engine import clean_environment, container_engines
from lumiimg.engine.process import run

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

TABLE = Path(__file__).with_name("engine_differences.toml")
NO_SUCH_OPTION = "no such option"
_LIMIT_S = 60.0
_CHARS_LIMIT = 300
"""Maximum length of an answer in characters."""
_BEGIN = """\
set -eu -o pipefail
open() { echo "$*" >&2; exit 9; }
last() { sed 's/\\x1b\\[[0-9;]*m//g' "$1" | grep . | tail -n 1 || echo "nothing is said"; }
inside() { "$ENGINE" exec "${@:2}" "$IMAGE" /bin/sh -c "$1"; }
# what a script in the container says behind `said: `; the image and the engine print more
said() {
    inside "$@" >out 2>&1 || open "$(last out)"
    sed -n 's/^said: *//p' out | grep . || open "it says nothing"
}
is_set_user_id() {
    local its
    its=$(said 'echo "said: $(readlink /proc/self/ns/user)"') || exit 9
    [ "$its" = "$(readlink /proc/self/ns/user)" ]
}
options() {
    local found='' help
    for option; do
        help=$("$ENGINE" ${option% *} --help 2>&1)
        case $help in *[!a-z-]"${option##* }"[!a-z-]*) found="$found, $option" ;; esac
    done
    found=${found#, }
    echo "${found:-no such option}"
}
"""
"""The beginning of every script, which runs in an empty folder that is removed afterwards."""


def tried_differences() -> list[Mapping[str, Any]]:
    """Return the rows that can be tested."""
    return [row for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["difference"] if "shows" in row]


def options_of(row: Mapping[str, Any]) -> list[str]:
    """Return the options of either engine that a row is about, such as `exec --oci`."""
    return [text for shown in row["shows"].values() for text in shown.split(", ") if text != NO_SUCH_OPTION]


def shown_by(engine: Engine, image: Path, row: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a row can be tested here, and the engine's answer, or why it cannot."""
    script = row.get("try") or f"options {shlex.join(options_of(row))}\n"
    with tempfile.TemporaryDirectory(prefix="lumiimg-engine-") as folder:
        own = clean_environment(environment) | {f"{engine.prefix}_TMPDIR": folder, "LC_ALL": "C"}
        own |= {"ENGINE": str(engine.path), "IMAGE": str(image)}
        done = run(("bash", "-c", _BEGIN + script), env=own, cwd=Path(folder), timeout_s=_LIMIT_S)
    if done.timed_out:
        return False, f"no end within {_LIMIT_S:.0f} s"
    return done.ok, one_line(done.last_line or f"exit {done.exit_code}, without a word")[:_CHARS_LIMIT]


def main() -> int:
    engine, image = next(container_engines(os.environ)), Path(sys.argv[1]).absolute()
    print(engine.name)
    others = 0
    for row in tried_differences():
        could_be_tried, shown = shown_by(engine, image, row, os.environ)
        expected = row["shows"].get(engine.name.partition(" ")[0].lower())
        if not could_be_tried or expected is None:
            print(f"open   {row['id']}: {shown}")
        elif shown == expected:
            print(f"same   {row['id']}: {shown}")
        else:
            others += 1
            print(f"other  {row['id']}: {shown}; expected: {expected}")
    return int(others > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LumiimgError as error:
        sys.exit(f"{error}")
