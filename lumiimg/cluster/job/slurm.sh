#? In a heterogeneous job, srun starts ranks only in the first part, and they would wait for the others; a job that is
#? submitted from inside one inherits its variables, except for the job number
if [ "${SLURM_JOB_ID_HET_GROUP_0:-}" = "${SLURM_JOB_ID:-none}" ]; then echo "submit this script without other parts (hetjob, or ':' of sbatch)" >&2; exit 2; fi
#? Where the ranks meet: the first node, looked up here, as the container has no scontrol; and a port of the job's own,
#? above those of Ray's workers (10002 to 19999) and below those that the kernel assigns
read -r MASTER_ADDR < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?this is a job script: submit it with sbatch}")
#? Each step gets the variables of this script, however the job was submitted: after `sbatch --export=NONE`, or with a
#? list of names, srun would pass neither PATH nor MASTER_ADDR. Folder names contain USER
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 5000 * 2)) SLURM_EXPORT_ENV=ALL PATH USER="${USER:-$(id -un)}"
#? Remove variables with which srun would give the tasks another shape: a job that is submitted from inside another
#? one inherits that one's variables
unset {SLURM,SRUN}_CPUS_PER_TASK SLURM_{GPUS,TRES}_PER_TASK SLURM_NTASKS_PER_{CORE,GPU,SOCKET,TRES} SLURM_CPUS_PER_GPU
unset SLURM_MEM_PER_{CPU,GPU,NODE} SLURM_{CPU,GPU,TRES}_BIND SLURM_{GPUS,THREADS_PER_CORE,DISTRIBUTION,EXACT,EXCLUSIVE,HINT}
