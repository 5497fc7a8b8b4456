WHEEL = $(dir $(shell find wheel -name libmpi.so.12))
all:
install:
	mkdir -p $(PREFIX)/lib $(PREFIX)/include $(PREFIX)/bin
	sed 's/libmpi\.so\.12/libmpw.so.12/g' $(WHEEL)libmpi.so.12 >$(PREFIX)/lib/libmpw.so.12
	cp -r $(WHEEL)mpich $(PREFIX)/lib/
	rm -r $(PREFIX)/lib/mpich/libfabric*
	cp -r $(dir $(shell find wheel -name mpi.h)). $(PREFIX)/include/
	gcc -shared -Wl,-soname,libmpi.so.12 -Wl,--no-as-needed -Wl,--allow-shlib-undefined -o $(PREFIX)/lib/libmpi.so.12 \
	    $(FLAGS) -lfabric -lamdhip64 -L$(PREFIX)/lib -l:libmpw.so.12
	ln -sf libmpi.so.12 $(PREFIX)/lib/libmpi.so
	printf '#!/bin/sh\nexec gcc "$$@" -I$(PREFIX)/include -L$(PREFIX)/lib -lmpi -l:libmpw.so.12\n' >$(PREFIX)/bin/mpicc
	printf '#!/bin/sh\nexec g++ "$$@" -I$(PREFIX)/include -L$(PREFIX)/lib -lmpi -l:libmpw.so.12\n' >$(PREFIX)/bin/mpicxx
	printf '#include <stdio.h>\nint main(void) { puts("MPICH Version: @VERSION@"); puts("MPICH Device: ch4:ofi"); }\n' | gcc -x c -o $(PREFIX)/bin/mpichversion -
	chmod 755 $(PREFIX)/bin/*
