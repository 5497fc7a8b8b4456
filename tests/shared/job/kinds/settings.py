"""Variables: FI_PROVIDER as libfabric compares it, environment scripts with branches, files of settings, links in loops."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.shared.job.changes import NotHereError
from tests.shared.job.kinds.place import Planted, packages_of
from tests.shared.job.world import PLUGIN

if TYPE_CHECKING:
    import random

    from tests.shared.job.world import World

_WORDS = ("cxi", "CXI", "Cxi", " cxi", "cxi ", "tcp", "verbs", "ofi_rxm", "", "^cxi", "^tcp", "cx", "cxi2", "\tcxi", "cxi;ofi_rxm", "efa", "ofi_hook_debug", "shm", "lnx", "sockets")  # fmt: skip


def providers(world: World, draw: random.Random) -> Planted:
    value = draw.choice(["", "", "", "^", " ^", "^ ", "^^"]) + ",".join(
        draw.choices(_WORDS, k=draw.choice([1, 1, 2, 2, 3]))
    )
    name = "FI_PROVIDER"
    if draw.random() < 0.1:
        name = draw.choice(["FI_PROVIDERS", "fi_provider", "FI_PROV", "OFI_PROVIDER"])
    world.set(**{name: value})
    return Planted(f"{name}={value!r}")


_SCRIPTS = (
    "export NCCL_NET=Socket",
    "NCCL_NET=Socket",
    "NCCL_NET=Socket\nexport NCCL_NET",
    "export NCCL_NET=Socket\nunset NCCL_NET",
    "return 0\nexport NCCL_NET=Socket",
    "export NCCL_DEBUG=WARN\nreturn\nexport NCCL_NET=Socket",
    '[ -n "$NOTHING_SET" ] && export NCCL_NET=Socket',
    '[ -z "$NOTHING_SET" ] && export NCCL_NET=Socket',
    "test -d /opt/gone && export NCCL_NET=Socket",
    "test -d /opt/gone || export NCCL_NET=Socket",
    "test -d /opt && return\nexport NCCL_NET=Socket",
    'if [ "$X" = 1 ]; then return; fi\nexport NCCL_NET=Socket',
    "eval 'export NCCL_NET=Socket'",
    'eval "export NCCL_$(echo NET)=Socket"',
    'eval "export MY_VALUE=1"',
    "eval true",
    "set_net() { export NCCL_NET=Socket; }\nset_net",
    "set_net() { export NCCL_NET=Socket; }",
    'set_net() { export NCCL_NET="$1"; }\nset_net Socket',
    "f() { return 0; }\nf\nexport NCCL_NET=Socket",
    "f() { return 1; }\nf && export NCCL_NET=Socket",
    "f() { return 0; }\nf && export NCCL_NET=Socket",
    "true && export NCCL_NET=Socket",
    "false && export NCCL_NET=Socket",
    "false || export NCCL_NET=Socket",
    "true || export NCCL_NET=Socket",
    "! true && export NCCL_NET=Socket",
    "export NCCL_NET=${MY_NET:-Socket}",
    "export NCCL_NET=${NCCL_NET:-Socket}",
    'export NCCL_NET="${MY_NET:+Socket}"\n[ -z "$NCCL_NET" ] && unset NCCL_NET',
    ": ${NCCL_NET:=Socket}\nexport NCCL_NET",
    ": ${NCCL_NET:=Socket}",
    'case "$MY_MODE" in\n  slow) export NCCL_NET=Socket ;;\nesac',
    'case "$MY_MODE" in\n  "") export NCCL_NET=Socket ;;\nesac',
    "for v in NCCL_NET; do export $v=Socket; done",
    "for v in a b; do export MY_LAST=$v; done",
    "(export NCCL_NET=Socket)",
    "{ export NCCL_NET=Socket; }",
    "export NCCL_NET=Socket MY_OTHER=1",
    "NCCL_NET=Socket true",
    "NCCL_NET=Socket :",
    "# export NCCL_NET=Socket",
    "export MY_TEXT='\nexport NCCL_NET=Socket\n'",
    "cat <<EOF >/dev/null\nexport NCCL_NET=Socket\nEOF",
    ". /opt/gone/setup.sh 2>/dev/null\nexport MY_NOTHING=1",
    "[ -f /opt/setup.sh ] && . /opt/setup.sh",
    "export LD_LIBRARY_PATH=/opt/nothing${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",
    "export LD_LIBRARY_PATH=/opt/nothing:$LD_LIBRARY_PATH",
    "export LD_LIBRARY_PATH=/opt/nothing",
    "export FI_PROVIDER='cxi'",
    'export FI_PROVIDER="tcp"',
    "export FI_PROVIDER=$(echo tcp)",
    "export FI_PROVIDER=$(echo cxi)",
    "export FI_PROVIDER=`echo cxi`",
    "export MY_DATE=$(date)",
    "alias ll='ls -l'",
    "export NCCL_NET_PLUGIN=none",
    "export PATH=/opt/nothing/bin:$PATH",
    "export PS1='$(export NCCL_NET=Socket)'",
    "while false; do export NCCL_NET=Socket; done",
    "until true; do export NCCL_NET=Socket; done",
    "if true; then :; else export NCCL_NET=Socket; fi",
    "if false; then :; else export NCCL_NET=Socket; fi",
    "if [ -e /opt/plugin ]; then export FI_PROVIDER=cxi; else export NCCL_NET=Socket; fi",
    "trap 'export NCCL_NET=Socket' EXIT",
    "readonly NCCL_NET=Socket",
    "readonly NCCL_NET=Socket\nexport NCCL_NET",
    "declare -x NCCL_NET=Socket",
    "typeset -x NCCL_NET=Socket",
    "local NCCL_NET=Socket 2>/dev/null",
    "set -a\nNCCL_NET=Socket\nset +a",
    "export -n NCCL_NET",
    "export NCCL_NET=Socket\nexport -n NCCL_NET",
    "export NCCL_NET=Sock\\\net",
    'export "NCCL_NET=Socket"',
    "X=NCCL_NET; export $X=Socket",
    'X=NCCL_NET; export "$X"=Socket',
    "export {NCCL_NET,MY_OTHER}=Socket",
    "printf -v NCCL_NET Socket; export NCCL_NET",
    "read NCCL_NET <<< Socket; export NCCL_NET",
    "command export NCCL_NET=Socket",
    "builtin export NCCL_NET=Socket",
    "[[ $MY_X == 1 ]] || export NCCL_NET=Socket",
    "[[ $MY_X == 1 ]] && export NCCL_NET=Socket",
    "export MY_A=1 && export NCCL_NET=Socket",
    "export MY_A=1; export NCCL_NET=Socket",
    "export NCCL_NET=${MY_X=Socket}",
    "export NCCL_NET=${MY_X?not set}",
    "((1)) && export NCCL_NET=Socket",
    "((0)) && export NCCL_NET=Socket",
    "export MY_N=$((1 + 1))",
    "if ! false; then export NCCL_NET=Socket; fi",
    "if [ 1 = 1 -a 2 = 3 ]; then export NCCL_NET=Socket; fi",
    "if [ 1 = 1 ] && [ 2 = 2 ]; then\n  export NCCL_NET=Socket\nfi",
    "f() { local NCCL_NET=Socket; }\nf",
    "f() { unset FI_PROVIDER; }\nf",
    'f() { [ "$1" = on ] && export NCCL_NET=Socket; }\nf off',
    'f() { [ "$1" = on ] && export NCCL_NET=Socket; }\nf on',
    "f() { case $1 in on) export NCCL_NET=Socket;; esac; }\nf on",
    "f() ( export NCCL_NET=Socket )\nf",
    "function f { export NCCL_NET=Socket; }\nf",
    "export NCCL_NET=Socket\nunset -v NCCL_NET",
    "export NCCL_NET=Socket\nNCCL_NET=",
    "export NCCL_NET=Socket\nNCCL_NET='AWS Libfabric'",
    "export NCCL_NET=Socket\nexport NCCL_NET=${NCCL_NET/Socket/AWS Libfabric}",
    "export NCCL_NET=${MY_X:-${MY_Y:-Socket}}",
    "export FI_PROVIDER=${FI_PROVIDER:-cxi}",
    "export FI_PROVIDER=${FI_PROVIDER:-tcp}",
    "MY=tcp\nexport FI_PROVIDER=$MY",
    "MY=cxi\nexport FI_PROVIDER=${MY}",
    "MY=(tcp cxi)\nexport FI_PROVIDER=${MY[1]}",
    "export FI_PROVIDER=${MY_LONG:0:3}cxi",
    "export FI_PROVIDER=$'cxi'",
    'export FI_PROVIDER=c"x"i',
    "export FI_PROVIDER=cxi;export NCCL_DEBUG=INFO",
    "export FI_PROVIDER=cxi # ; export NCCL_NET=Socket",
    "export LD_PRELOAD=",
    "export LD_PRELOAD=/opt/gone.so",
    "unset LD_LIBRARY_PATH",
    "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/opt/nothing",
    'export LD_LIBRARY_PATH="/opt/a b:$LD_LIBRARY_PATH"',
    "for d in /opt/nothing /opt/nothing2; do LD_LIBRARY_PATH=$d:$LD_LIBRARY_PATH; done\nexport LD_LIBRARY_PATH",
    "echo export NCCL_NET=Socket >/dev/null",
    "true; return; export NCCL_NET=Socket",
    "{ return; }\nexport NCCL_NET=Socket",
    "(return)\nexport NCCL_NET=Socket",
    "if true; then return 0; fi\nexport NCCL_NET=Socket",
    "if false; then return 0; fi\nexport NCCL_NET=Socket",
    "false || return 0\nexport NCCL_NET=Socket",
    "true || return 0\nexport NCCL_NET=Socket",
    "export NCCL_NET='AWS Libfabric'",
    'export NCCL_NET="aws libfabric" # as the plugin is called',
)  # fmt: skip
_UNSURE = ("eval", "return", "&&", "||", "$(", "`", "case", "for ", "() {", ". /opt", "while", "until", "if ", "trap", "set -", "readonly", "declare", "typeset", "local", "((", "[[", "printf", "read ", "<<<", "command", "builtin", "function", "{NCCL", "$X", "[1]", ":0:3", "/Socket/", "$'", "?not", "f() (")  # fmt: skip


def environment_scripts(world: World, draw: random.Random) -> Planted:
    """What bash makes of them is what the engine's shell makes of them."""
    text = draw.choice(_SCRIPTS)
    name = draw.choice(["91-environment.sh", "10-docker2singularity.sh", "95-apps.sh", "91-environment.sh"])
    path = f"/.singularity.d/env/{name}"
    world.put(path, f"{text}\n" if draw.random() < 0.5 else f"#!/bin/sh\n# ours\n\n{text}\n\n", 0o755)
    if "/opt/setup.sh" in text and draw.random() < 0.5:
        world.put("/opt/setup.sh", "export NCCL_NET=Socket\n", 0o644)
    files = sorted(file.name for file in world.at("/.singularity.d/env").iterdir() if file.suffix == ".sh")
    # beyond the first line as a shell does it; paths of the image are those of this machine's root
    script = "".join(f". ./{file}\n" for file in files) + "env -0\n"
    root = f"{world.root}/opt"
    folder = world.parts / "env"
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        source = world.at(f"/.singularity.d/env/{file}").read_text()
        for word in ("-d ", "-e ", "-f ", ". "):
            source = source.replace(f"{word}/opt", f"{word}{root}")
        (folder / file).write_text(source)
    shell = ["bash", "--norc", "--noprofile", "-c", script]
    done = subprocess.run(
        shell, cwd=folder, env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, capture_output=True, check=False
    )
    found = dict(part.split("=", 1) for part in done.stdout.decode().split("\0") if "=" in part)
    world.variables = {key: value for key, value in found.items() if key not in {"PWD", "SHLVL", "_", "OLDPWD"}}
    shown = text.replace("\n", "; ")
    return Planted(shown, name if any(word in text for word in _UNSURE) else None)


def settings_files(world: World, draw: random.Random) -> Planted:
    text = draw.choice(["NCCL_NET=Socket", "NCCL_NET = Socket", " NCCL_NET=Socket", "#NCCL_NET=Socket", "NCCL_NET=AWS Libfabric", "NCCL_NET_PLUGIN=none", "nccl_net=Socket", "NCCL_DEBUG=INFO\nNCCL_NET=Socket", "NCCL_NET=", "NCCL_NET=Socket # no", "export NCCL_NET=Socket", "FI_PROVIDER=tcp", "\nNCCL_NET=Socket\n\n"])  # fmt: skip
    end = draw.choice(["\n", ""])
    place = draw.choice(
        [
            "/etc/rccl.conf",
            "/etc/rccl.conf",
            "/etc/nccl.conf",
            "/opt/rccl.conf",
            "/root/.rccl.conf",
            "/etc/rccl.conf.d/a",
        ]
    )
    world.put(place, text + end, 0o644)
    return Planted(f"{place}: {text!r}", cause=place)


def loops(world: World, draw: random.Random) -> Planted:
    """Links in loops, where something is looked for."""
    form = draw.choice(
        [
            "plugin",
            "plugin in front",
            "folder in front",
            "python in front",
            "libfabric",
            "pth",
            "torch in front",
            "rccl.conf",
            "ld.so.preload",
        ]
    )
    name = world.plugin_file.rpartition("/")[2]
    if form == "plugin":
        world.link(world.plugin_file, name)
    elif form == "plugin in front":
        world.link(f"/opt/loop/{name}", name)
        world.prepend("LD_LIBRARY_PATH", "/opt/loop")
    elif form == "folder in front":
        world.link("/opt/loop", "/opt/loop")
        world.prepend("LD_LIBRARY_PATH", "/opt/loop")
    elif form == "python in front":
        world.link("/opt/loop/bin/python", "python3")
        world.link("/opt/loop/bin/python3", "python")
        world.prepend("PATH", "/opt/loop/bin")
    elif form == "libfabric":
        world.link("/opt/loop/libfabric.so.1", "libfabric.so.1")
        world.prepend("LD_LIBRARY_PATH", "/opt/loop")
    elif form == "pth":
        world.link(f"{packages_of(world)}/loop.pth", "loop.pth")
    elif form == "torch in front":
        if world.package is None:
            raise NotHereError
        world.link("/opt/loop/torch", "torch")
        world.set(PYTHONPATH="/opt/loop")
    elif form == "rccl.conf":
        world.link("/etc/rccl.conf", "rccl.conf")
    else:
        world.link("/etc/ld.so.preload", "ld.so.preload")
    return Planted(form)


def plugin_names(world: World, draw: random.Random) -> Planted:
    """NCCL_NET_PLUGIN and NCCL_NET as people write them."""
    name = world.plugin_file.rpartition("/")[2]
    value = draw.choice(["ofi", "", "none", "None", "librccl-net.so", "libnccl-net.so", f"{PLUGIN}/{name}", f"{PLUGIN}/gone.so", "gone", "gone,ofi", f"gone,{name}", f"{name},gone", " ", f" {name}", f"{name} ", "aws-ofi", ",", f",{name}", f"{PLUGIN}/./{name}", f"./{name}"])  # fmt: skip
    world.set(NCCL_NET_PLUGIN=value)
    extra = ""
    if draw.random() < 0.3:
        net = draw.choice(["AWS Libfabric", "aws libfabric", "OFI", "IB", "", "Socket", "socket", "AWS"])
        world.set(NCCL_NET=net)
        extra = f", NCCL_NET={net!r}"
    if draw.random() < 0.3:
        world.link(f"{PLUGIN}/librccl-net-ofi.so", name)
        extra += ", -ofi there"
    asked = name if "NCCL_NET=" in extra else None  # which name a plugin gives itself is data that it may change
    return Planted(f"NCCL_NET_PLUGIN={value.replace(name, 'PLUGIN')!r}{extra}", asked)
