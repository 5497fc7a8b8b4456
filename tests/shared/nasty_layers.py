"""Layer scripts that do to files everything that can be done to them, in several stacks side by side in one image.

A script runs in the container. Its actions follow from its numbers (layer, stacks, seed), and it records in a file of
the image which actions the system refused.
"""

from __future__ import annotations

LAYERS = 3
"""Layers per stack: the lowest makes files of every kind, and those above change them."""
_PROGRAM = r"""
import os, random, subprocess

NAMES = ["a", "b", "c", "d d", "é", "new\nline", os.fsdecode(b"\xff"), "n" * 255, "\\", "[a*?", "-e", "..b", "\x1b\""]
PATHS = [folder + name for folder in ("", "x/", "y/") for name in NAMES]
KINDS = ["file"] * 4 + ["empty", "folder", "full", "fifo", "socket", "link a", "link x", "link nowhere", "link /nasty"]
MODES = [0o600, 0o755, 0o4755, 0o2711, 0o1777, 0]
ATTRIBUTES = [("user.one", b"1"), ("user.one", b"2"), ("user.two", b"")]
CHANGES = ["make", "remove", "swap", "swap", "append", "append", "truncate", "mode", "owner", "time", "touch", "set"]
CHANGES += ["unset", "link", "link", "link", "move", "move", "rename"]
AT_FIRST = ["link", "link", "mode", "owner", "time", "set"]


def make(path):
    kind, _, target = chance.choice(KINDS).partition(" ")
    if kind in ("file", "empty"):
        with open(path, "x") as file:
            file.write(f"{chance.random()}" if kind == "file" else "")
    elif kind == "link":
        os.symlink(target, path)
    elif kind in ("fifo", "socket"):
        os.mknod(path, 0o010644 if kind == "fifo" else 0o140644)
    else:
        os.mkdir(path)
        if kind == "full":
            os.mkdir(path + "/b")
            with open(path + "/a", "x") as file:
                file.write("in it")


def remove(path):
    subprocess.run(["rm", "-r", "--", path], check=True, stderr=subprocess.DEVNULL)


def change(what, path):
    is_link, is_file = os.path.islink(path), os.path.isfile(path)
    if what == "make":
        make(path)
    elif what == "remove":
        remove(path)
    elif what == "swap":
        remove(path)
        make(path)
    elif what == "append" and is_file:
        with open(path, "a") as file:
            file.write("+")
    elif what == "truncate" and is_file:
        os.truncate(path, chance.choice([0, 1, 2, 1 << 20]))
    elif what == "mode" and not is_link:
        os.chmod(path, chance.choice(MODES))
    elif what == "owner":
        os.chown(path, chance.choice([0, 1, 2, 1000]), chance.choice([0, 1, 5, -1]), follow_symlinks=False)
    elif what == "time":
        os.utime(path, (1, chance.choice([-5, 0, 100_000_000, 300_000_000, 1 << 33])), follow_symlinks=False)
    elif what == "touch":
        os.utime(path, follow_symlinks=False)
    elif what == "set" and not is_link:
        os.setxattr(path, *chance.choice(ATTRIBUTES))
    elif what == "unset" and not is_link:
        os.removexattr(path, chance.choice(ATTRIBUTES)[0])
    elif what == "link":
        os.link(path, chance.choice(PATHS), follow_symlinks=False)
    elif what == "move":
        subprocess.run(["mv", "-T", "--", path, chance.choice(PATHS)], check=True, stderr=subprocess.DEVNULL)
    elif what == "rename" and (is_link or not os.path.isdir(path)):  # of folders an overlay has `mv` make copies
        os.rename(path, chance.choice(PATHS))


for stack in range(STACKS):
    chance = random.Random(f"{SEED} {stack} {LAYER}")
    os.makedirs(f"/nasty/{stack}", exist_ok=True)
    os.chdir(f"/nasty/{stack}")
    if LAYER == 0:
        todo = [("make", path) for path in ("x", "y", *PATHS) if chance.random() < 0.6]
        todo += [(chance.choice(AT_FIRST), chance.choice(PATHS)) for _ in range(20)]
    else:
        todo = [(chance.choice(CHANGES), chance.choice(["x", "y", *PATHS])) for _ in range(16)]
    refused = []
    for what, path in todo:
        try:
            change(what, path)
        except (OSError, subprocess.CalledProcessError) as error:
            refused.append(f"{what} {path!a}: {getattr(error, 'errno', 'failed')}")
    with open(f"/nasty/{stack}.{LAYER}", "x") as file:
        file.write("\n".join(refused))
"""


def script(layer: int, stacks: int, seed: int) -> str:
    """Return the script of one layer, for all stacks."""
    return f"python3 - <<'EOF'\nLAYER, STACKS, SEED = {layer}, {stacks}, {seed}\n{_PROGRAM}EOF\n"
