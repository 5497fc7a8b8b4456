#? Only what is written below is bound: nothing of a module or a profile comes over it, nor over the numbers and
#? addresses that the ranks get
unset {SINGULARITY,APPTAINER}{_BIND,_BINDPATH,_CLEANENV,_COMPAT,_CONTAIN,_CONTAINALL,_PWD,_CWD}
unset {SINGULARITY,APPTAINER}ENV_{LD_LIBRARY_PATH,MASTER_ADDR,MASTER_PORT,LUMIIMG_JOB}
unset "${!SINGULARITYENV_@NUMBERS@_@}" "${!APPTAINERENV_@NUMBERS@_@}"
