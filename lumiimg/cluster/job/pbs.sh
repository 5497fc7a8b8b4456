cd "${PBS_O_WORKDIR:?this is a job script: submit it with qsub}"
#? Numbers that PALS does not pass to its tasks: of `123.server` the job's number, of `123[4].server` also the 4
LUMIIMG_NODES=$(sort -u "$PBS_NODEFILE" | wc -l)
export LUMIIMG_NODES LUMIIMG_TASKS=$((LUMIIMG_NODES * @TASKS@))
number="${PBS_JOBID%%[!0-9]*}" element="${PBS_JOBID%%.*}"
element="${element#"$number"}" element="${element//[!0-9]/}"
#? Where the ranks meet: the first node, by its name on the fast network if it has one, on a port that belongs to this
#? job or array element and is below those that the kernel assigns
read -r first <"$PBS_NODEFILE"
export MASTER_ADDR=@ADDRESS@ MASTER_PORT=$((20000 + (number + ${element:-0}) % 5000 * 2))
#? Folder names contain it
export USER="${USER:-$(id -un)}"
