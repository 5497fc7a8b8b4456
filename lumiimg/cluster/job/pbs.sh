cd "${PBS_O_WORKDIR:?this is a job script: qsub takes it}"
#? What PALS does not say to its tasks; of `123.server` the job's number, of `123[4].server` that too, and 4
LUMIIMG_NODES=$(sort -u "$PBS_NODEFILE" | wc -l)
export LUMIIMG_NODES LUMIIMG_TASKS=$((LUMIIMG_NODES * @TASKS@))
number="${PBS_JOBID%%[!0-9]*}" element="${PBS_JOBID%%.*}"
element="${element#"$number"}" element="${element//[!0-9]/}"
#? Where the ranks meet: the first node, by its name on the fast network where it has one; and a port of the job's own,
#? also of each element of an array, below those of the kernel
read -r first <"$PBS_NODEFILE"
export MASTER_ADDR=@ADDRESS@ MASTER_PORT=$((20000 + (number + ${element:-0}) % 5000 * 2))
#? Folders are named by it
export USER="${USER:-$(id -un)}"
