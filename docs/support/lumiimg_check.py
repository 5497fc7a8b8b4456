"""A ReFrame 4 test: does an image use the fast network here, on several nodes, and how fast?

    reframe -c lumiimg_check.py -r -S image=/path/to/vllm.sif -S site=lumi -S gpus_per_node=8 -S valid_systems=lumi:gpu

It needs `lumiimg` on PATH in the job. lumiimg itself starts the step on all nodes, with the variables that jobs on the
site set. See docs/support/index.md for the variables.
"""

import json
import os
import shlex

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher

MEASURED = "all_reduce_perf"
TESTS = ("lumiimg-torch-allreduce", "lumiimg-allreduce")  # what `lumiimg check` runs to measure it
MEANING = {
    0: "no obstacle was found",
    1: "the image does not use the fast network, or not on all nodes",
    2: "wrong usage: no such image, or another version of lumiimg",
    3: "it cannot be decided from what was seen",
    4: "something that the check needs is missing here (Slurm, a container engine)",
}


@rfm.simple_test
class lumiimg_check(rfm.RunOnlyRegressionTest):
    image = variable(str)
    site = variable(str, value="")
    host = variable(str, value="")
    nodes = variable(int, value=2)
    gpus_per_node = variable(int, value=0)
    gb_s = variable(float, value=0.0)
    least_gb_s = variable(float, value=0.0)

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    tags = {"lumiimg", "containers", "network"}
    time_limit = "15m"
    executable = "lumiimg"

    @run_after("init")
    def shape(self):
        self.descr = f"{self.image} uses the fast network on {self.nodes} nodes"
        self.num_tasks = self.nodes
        self.num_tasks_per_node = 1
        options = {"--site": self.site, "--host": self.host, "--nodes": str(self.nodes)}
        words = ["check", self.image, *(word for pair in options.items() if pair[1] for word in pair), "--json"]
        self.executable_opts = [shlex.quote(word) for word in words]
        self.postrun_cmds = ['echo "lumiimg ended with $?"']
        if self.gb_s:
            lower = self.least_gb_s / self.gb_s - 1 if self.least_gb_s else -0.1
            self.reference = {"*": {MEASURED: (self.gb_s, lower, None, "GB/s")}}

    @run_before("run")
    def one_process(self):
        self.job.launcher = getlauncher("local")()
        if self.gpus_per_node:
            self.job.options += [f"--gpus-per-node={self.gpus_per_node}"]

    @sanity_function
    def answer(self):
        code = sn.evaluate(sn.extractsingle(r"^lumiimg ended with (\d+)$", self.stdout, 1, int))
        return sn.assert_eq(code, 0, msg=f"lumiimg check: {MEANING.get(code, 'it did not run')} (exit {code})")

    @run_before("performance")
    def measured(self):
        best = max(self.bandwidths(), default=None)
        self.perf_variables = {}
        if best is not None:
            self.perf_variables[MEASURED] = sn.make_performance_function(sn.defer(best), "GB/s")

    def bandwidths(self):
        """Yield what the check measured. Without GPUs it measures nothing, and nothing is compared."""
        try:
            with open(os.path.join(self.stagedir, sn.evaluate(self.stdout)), encoding="utf-8") as stream:
                text = stream.read()
            pending = [json.JSONDecoder().raw_decode(text[text.index("{") :])[0]]
        except (OSError, ValueError):
            return
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                if item.get("test") in TESTS:
                    yield from (speed for _, speed in item.get("points", ()))
                pending.extend(item.values())
            elif isinstance(item, list):
                pending.extend(item)
