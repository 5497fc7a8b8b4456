#? What the job has in /tmp goes with it, on every node, whatever ends its task there (srun --task-epilog)
printf '#!/bin/sh\nrm -rf@NAMES@\n' @FOLDERS@ | install /dev/stdin "$LUMIIMG_JOB/epilog.sh"
