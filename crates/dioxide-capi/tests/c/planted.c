/* Faults for valgrind to find: lost memory, and a branch on uninitialised memory. */
#include "check.h"

int main(int argc, char **argv)
{
    enter(argc, argv);
    const char *fault = argc > 2 ? argv[2] : "";
    struct dioxide_file *file = fresh("planted");
    if (strcmp(fault, "unwritten") == 0) {
        volatile char *byte = malloc(1);
        CHECK(dioxide_append(file, byte[0] == 'x' ? "x" : "y", 1) >= 0);
        free((void *)byte);
    }
    if (strcmp(fault, "lost") != 0)
        EXPECT(dioxide_close(file), 0);
    file = NULL;
    return 0;
}
