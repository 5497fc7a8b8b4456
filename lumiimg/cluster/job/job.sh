#!/bin/bash@LOGIN@
@HEAD@
@DIRECTIVES@

@MODULES@
set -euo pipefail
@START@
@ROBUST@
#? Engines take these signs in a path that is bound for their own
case $PWD in *[:,\\]*) echo "no engine binds a folder with ':', ',' or a backslash, submit from another: $PWD" >&2; exit 2 ;; esac
#? The folder of this job: what it logs of its network, and the files below, which are run. mkdir takes none that
#? somebody else has made, and nobody else may write to it from its first moment; a job that is started again gets a
#? new one
export LUMIIMG_JOB="$PWD/lumiimg-@NUMBER@"
if [ -e "$LUMIIMG_JOB" ]; then LUMIIMG_JOB+="-$(date +%s)"; fi
(umask go-w; mkdir "$LUMIIMG_JOB" "$LUMIIMG_JOB/nccl")
#? Which network carried the traffic; the exit code of the job stays that of the step. All nodes wait for it: so of logs
#? that take long, as of more than 4,096 ranks, only the command is printed
trap @END@ EXIT
@VARIABLES@

@CLEANUP@
cat >"$LUMIIMG_JOB/task.sh" <<'END_OF_TASK_SH'
@TASK@
END_OF_TASK_SH
@STEP@
