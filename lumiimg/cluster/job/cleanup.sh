#? What the job has in /tmp goes with it, on every node, also where it is cancelled or out of time: a step of its own
#? waits for the SIGTERM that Slurm sends to all steps at the end of a job, and then for the ranks, which have the same
#? one. Other signals are for the program (sbatch --signal)
srun --overlap --input=none --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c '
    trap "" HUP INT USR1 USR2
    trap "sleep 3; rm -rf \"\$@\"; exit" TERM
    sleep infinity' sh @FOLDERS@ >/dev/null 2>&1 &
