#? Of a heterogeneous job, srun starts ranks in the first part alone, and they would wait for the others; what is
#? submitted from inside of one has its variables, too, but the number
if [ "${SLURM_JOB_ID_HET_GROUP_0:-}" = "${SLURM_JOB_ID:-none}" ]; then echo "submit this script without other parts (hetjob, or ':' of sbatch)" >&2; exit 2; fi
#? Where the ranks meet: the first node, asked here, as there is no scontrol in the container; and a port of the job's
#? own, above those of Ray's workers (10002 to 19999), below those that the kernel gives away
read -r MASTER_ADDR < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?this is a job script: sbatch takes it}")
#? Each step gets the variables of this script, however the job was submitted: after `sbatch --export=NONE`, or with a
#? list of names, srun would give it no PATH and no MASTER_ADDR. Folders are named by USER
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 5000 * 2)) SLURM_EXPORT_ENV=ALL PATH USER="${USER:-$(id -un)}"
#? And nothing by which srun would give the tasks another shape: a job that is submitted from inside of another has the
#? variables of that one, too
unset {SLURM,SRUN}_CPUS_PER_TASK SLURM_{GPUS,TRES}_PER_TASK SLURM_NTASKS_PER_{CORE,GPU,SOCKET,TRES} SLURM_CPUS_PER_GPU
unset SLURM_MEM_PER_{CPU,GPU,NODE} SLURM_{CPU,GPU,TRES}_BIND SLURM_{GPUS,THREADS_PER_CORE,DISTRIBUTION,EXACT,EXCLUSIVE,HINT}
