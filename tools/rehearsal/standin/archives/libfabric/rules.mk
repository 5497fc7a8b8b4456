all:
	gcc -shared -fPIC -Wl,-soname,libfabric.so.1,--version-script=libfabric.map -Wl,--no-as-needed -o libfabric.so.1 libfabric.c $(FLAGS) -lcxi -lhsa-runtime64
	printf '#include <stdio.h>\n#include <string.h>\nint main(int count, char **words) { puts(count > 1 && !strcmp(words[1], "--list") ? "cxi:" : "libfabric: @VERSION@"); }\n' | gcc -x c -o fi_info -
install:
	install -D libfabric.so.1 $(PREFIX)/lib/libfabric.so.1
	ln -sf libfabric.so.1 $(PREFIX)/lib/libfabric.so
	install -D fi_info $(PREFIX)/bin/fi_info
	mkdir -p $(PREFIX)/include
	cp -r /usr/include/rdma $(PREFIX)/include/
