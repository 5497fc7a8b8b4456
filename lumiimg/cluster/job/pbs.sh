#!/bin/bash -l
@HEAD@
@DIRECTIVES@

@MODULES@
set -euo pipefail
: "${PBS_NODEFILE:?this is a job script: qsub takes it}"
cd "$PBS_O_WORKDIR"

@PROGRAM@

# What PALS does not tell its tasks; of `123.server` the job's number, of `123[4].server` that too,
# and 4
LUMIIMG_NODES=$(sort -u "$PBS_NODEFILE" | wc -l)
export LUMIIMG_NODES LUMIIMG_TASKS=$((LUMIIMG_NODES * @TASKS@))
export LUMIIMG_NUMBER="${PBS_JOBID%%[!0-9]*}"
element="${PBS_JOBID%%.*}"
element="${element#"$LUMIIMG_NUMBER"}" element="${element//[!0-9]/}"

@FOLDER@

@ADDRESS@
# a port of its own for the job, and for each element of an array, below those of the kernel
export MASTER_PORT=$((20000 + (LUMIIMG_NUMBER + ${element:-0}) % 5000 * 2))

@CONTAINER@

@CORES@
step=(
    -n "$LUMIIMG_TASKS" -ppn @TASKS@
    # the ranks find each other by PMIx, as oneCCL is set to
    --pmi=pmix
    # each task gets the variables of this script
    --envall
    # node and rank before each line: oneCCL's lines tell neither
    -l --line-buffer
@STEP@
)

status=0
mpiexec "${step[@]}" "${container[@]}" sh "$LUMIIMG_JOB/@FIRST@" "${command[@]}" 2>&1 |
    tee "$LUMIIMG_JOB/ranks.log" || status=$?

@LOG@
@CLEAR@
exit "$status"
