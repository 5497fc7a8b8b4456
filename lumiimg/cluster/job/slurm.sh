#!/bin/bash
@HEAD@
@DIRECTIVES@

@MODULES@
set -euo pipefail
: "${SLURM_JOB_ID:?this is a job script: sbatch takes it}"

@PROGRAM@

@FOLDER@

# Where the ranks meet: the first node, asked here, as there is no scontrol in the container
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR
# a port of the job's own: above those of Ray's workers (10002 to 19999), below those that the
# kernel gives away
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 5000 * 2))

# Each step gets the variables of this script, however the job was submitted: after `sbatch
# --export=NONE`, or with a list of names, srun would give it no PATH and no MASTER_ADDR
export PATH SLURM_EXPORT_ENV=ALL
# and nothing by which srun would give the tasks another shape: a job that is submitted from inside of
# another has the variables of that one, too
unset @OTHER@

@CONTAINER@

@MASKS@
step=(
    # one rank that dies ends the others, which would wait for it until the time is up
    --kill-on-bad-exit=1
@STEP@
)

@SWEEP@
status=0
srun "${step[@]}" "${container[@]}" sh "$LUMIIMG_JOB/@FIRST@" "${command[@]}" || status=$?

@LOG@
exit "$status"
