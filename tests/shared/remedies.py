"""The beginnings of commands in remedies."""

from __future__ import annotations

import re

COMMAND = re.compile(
    r"(?:ray|vllm|qstat|python|find|tail|ss|rm|mkdir|sbatch|export|unset|env|echo|ls|ln|df|cp|file|grep|sed|strings|sha256sum|ldd|ldconfig|nm|readelf|rpm|apt-get|git|ulimit"
    r"|module|srun|sacct|sacctmgr|squeue|scontrol|sinfo|sysctl|singularity|podman|docker|systemctl|fi_info|cxi_service|lumiimg) |\./configure |#SBATCH |LD_\w+="
)
