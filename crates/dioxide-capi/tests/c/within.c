/* A file inside of an unmounted volume: the image "volume" in the directory, with an empty file
 * "data". */
#include "check.h"

int main(int argc, char **argv)
{
    struct dioxide_file *file;
    enter(argc, argv);
    FAILS(dioxide_open_in_image("volume", "/missing", O_RDWR, NULL, &file), ENOENT, "missing");
    FAILS(dioxide_open_in_image("volume", "/new", O_RDWR | O_CREAT, NULL, &file), EOPNOTSUPP, "create");
    EXPECT(dioxide_open_in_image("volume", "/data", O_RDWR, NULL, &file), 0);
    EXPECT(dioxide_append(file, "inside", 6), 0);
    EXPECT(dioxide_fdatasync(file), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(dioxide_open_in_image("volume", "data", O_RDONLY, NULL, &file), 0);
    char back[8];
    EXPECT(dioxide_pread(file, back, 8, 0), 6);
    CHECK(memcmp(back, "inside", 6) == 0);
    EXPECT(dioxide_close(file), 0);
    return 0;
}
