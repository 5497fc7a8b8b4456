all:
	printf '#include <mpi.h>\nint main(void) { return MPI_SUCCESS; }\n' >osu_bw.c
	$(CC) -Wl,--no-as-needed -o osu_bw osu_bw.c -L$(ROCM)/lib -lamdhip64
install:
	install -D osu_bw $(PREFIX)/libexec/osu-micro-benchmarks/mpi/pt2pt/osu_bw
