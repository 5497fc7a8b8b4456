const char *cxip_stand_in = "cxip_stand_in";
int fi_getinfo() { return -61; }
void fi_freeinfo() {}
void *fi_dupinfo() { return 0; }
const char *fi_strerror() { return "a stand-in"; }
unsigned fi_version() { return 0x20000; }
int fi_fabric() { return -61; }
const char *fi_tostr() { return ""; }
int getinfo_7() { return -61; }
void freeinfo_7() {}
void *dupinfo_7() { return 0; }
__asm__(".symver getinfo_7, fi_getinfo@FABRIC_1.7");
__asm__(".symver freeinfo_7, fi_freeinfo@FABRIC_1.7");
__asm__(".symver dupinfo_7, fi_dupinfo@FABRIC_1.7");
