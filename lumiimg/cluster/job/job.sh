#!/bin/bash@LOGIN@
@HEAD@
@DIRECTIVES@

@MODULES@
set -euo pipefail
@START@
@ROBUST@
#? Engines interpret these characters in the path of a bind
case $PWD in *[:,\\]*) echo "no engine binds a folder with ':', ',' or a backslash, submit from another: $PWD" >&2; exit 2 ;; esac
#? The folder of this job: its network logs, and the files below, which are run. mkdir fails if somebody else has made
#? the folder, and nobody else can ever write to it; a job that is started again gets a new folder
export LUMIIMG_JOB="$PWD/lumiimg-@NUMBER@"
if [ -e "$LUMIIMG_JOB" ]; then LUMIIMG_JOB+="-$(date +%s)"; fi
(umask go-w; mkdir "$LUMIIMG_JOB" "$LUMIIMG_JOB/nccl")
#? Reports which network carried the traffic; the exit code of the job stays that of the step. All nodes wait for this,
#? so if reading the logs would take long, as for more than 4,096 ranks, only the command is printed
trap @END@ EXIT
@VARIABLES@

@CLEANUP@
cat >"$LUMIIMG_JOB/task.sh" <<'END_OF_TASK_SH'
@TASK@
END_OF_TASK_SH
@STEP@
