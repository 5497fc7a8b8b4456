"""The kernel's own engine: containers from user namespaces, for machines without a container engine.

It accepts the options and variables of Apptainer that lumiimg uses, and starts a program like Apptainer 1.4, with the
same mounts, and the same environment scripts in the same order. The only set-user-id programs that it needs are
newuidmap and newgidmap, and only to be root with many ids.
"""

import sys
from pathlib import Path

import lumiimg

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from lumiimg.engine.namespaces.__main__ import main; main()"
PROGRAM = (sys.executable, "-I", "-c", _START, str(Path(lumiimg.__file__).parents[1]))
"""The command that starts it, without modules from the current folder or of the user."""
