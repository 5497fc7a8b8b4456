#? Removes the job's files in /tmp on every node, even if the job is cancelled or hits its time limit: a separate step
#? waits for the SIGTERM that Slurm sends to all steps at the end of a job, and then for the ranks, which get the same
#? signal. Other signals are for the program (sbatch --signal)
srun --overlap --input=none --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '
    trap "" HUP INT USR1 USR2
    trap "sleep 3; rm -rf \"\$@\"; exit" TERM
    sleep infinity' sh @FOLDERS@ >/dev/null 2>&1 &
