#? Only what is written below is bound: nothing of a module or a profile comes over it, nor over the numbers and
#? addresses that the ranks get
unset {SINGULARITY,APPTAINER}{_BIND,_BINDPATH,_CLEANENV,_COMPAT,_CONTAIN,_CONTAINALL,_PWD,_CWD}
unset {SINGULARITY,APPTAINER}ENV_{LD_LIBRARY_PATH,MASTER_ADDR,MASTER_PORT,LUMIIMG_JOB}
unset "${!SINGULARITYENV_@NUMBERS@_@}" "${!APPTAINERENV_@NUMBERS@_@}"
#? Of a heterogeneous job, srun starts ranks in the first part alone, and they would wait for the others
if [ "${SLURM_HET_SIZE:-1}" != 1 ]; then
    echo "this script is for a job without other parts, submit it without hetjob" >&2
    exit 2
fi
