"""Groups of tests that one worker runs in sequence: those of a file, which share images, and all on the one Slurm."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SLURM = "Slurm"
ON_SLURM = (
    "test_documents.py",
    "test_jobs.py",
    "test_nodes.py",
    "test_trial.py",
    "test_a_real_srun_starts_ranks",
    "test_the_one_file_starts_itself_on_other_nodes",
)
"""Parts of the ids of all tests on the one Slurm: nodes die in some, so no other test may use it meanwhile."""
LONGEST = (SLURM, "test_strategies.py", "test_stack.py", "test_build.py", "test_prediction.py", "test_adapt.py")
"""The groups that run first, so that no worker has a long one left at the end."""


def group(nodeid: str) -> str:
    """Return the group of a test: its file, or Slurm."""
    path, _, name = nodeid.partition("::")
    file = path.rpartition("/")[2]
    return SLURM if file in ON_SLURM or name.startswith(ON_SLURM) else file


def place(nodeid: str) -> int:
    """Return the position of a test's group in the order of groups."""
    name = group(nodeid)
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns one group at a time to a worker. (pytest-xdist's `loadgroup` has no effect under pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
