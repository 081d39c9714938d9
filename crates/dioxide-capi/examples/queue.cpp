// One thread with 64 durable appends in flight, in C++: queue FILE [RECORDS]. Build it with
//
//     c++ queue.cpp $(pkg-config --cflags --libs dioxide)

#include <dioxide.h>
#include <fcntl.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t depth = 64;

/// The result of a call, or an exception with the library's message.
std::int64_t must(std::int64_t result)
{
    if (result < 0)
        throw std::runtime_error(dioxide_last_error());
    return result;
}

struct Closer {
    void operator()(dioxide_file *file) const { dioxide_close(file); }
};

struct Freer {
    void operator()(dioxide_queue *queue) const { dioxide_queue_free(queue); }
};

/// The records, each in memory of its own, which is reused once the record is stable.
using Places = std::vector<std::string>;
using File = std::unique_ptr<dioxide_file, Closer>;
using Queue = std::unique_ptr<dioxide_queue, Freer>;

File open_log(const char *path)
{
    dioxide_file *file = nullptr;
    must(dioxide_open(path, O_RDWR | O_CREAT | O_DSYNC, 0644, nullptr, &file));
    return File(file);
}

Queue make_queue(std::uint32_t flags)
{
    dioxide_queue *queue = nullptr;
    must(dioxide_queue_new(depth, flags, &queue));
    return Queue(queue);
}

/// Appends this number of records, and returns their size in bytes.
std::int64_t append_all(dioxide_queue *queue, dioxide_file *log, Places &places, unsigned records)
{
    std::array<dioxide_completion, depth> done;
    std::int64_t bytes = 0;
    unsigned begun = 0;
    auto begin = [&](std::size_t place) {
        if (begun == records)
            return;
        places[place] = "record " + std::to_string(begun++) + "\n";
        must(dioxide_queue_append(queue, log, places[place].data(), places[place].size(), place));
    };
    for (std::size_t place = 0; place < depth; place++)
        begin(place);
    while (must(dioxide_queue_outstanding(queue)) > 0) {
        auto count = must(dioxide_queue_reap(queue, done.data(), depth, 1));
        for (std::int64_t number = 0; number < count; number++) {
            auto place = static_cast<std::size_t>(done[number].user_data);
            must(done[number].result);
            bytes += static_cast<std::int64_t>(places[place].size());
            begin(place);
        }
    }
    return bytes;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s FILE [RECORDS]\n", argv[0]);
        return 2;
    }
    try {
        File log = open_log(argv[1]);
        Places places(depth); // before the queue, which must be freed first, also by an exception
        Queue queue = make_queue(std::getenv("PLAIN_CALLS") ? DIOXIDE_QUEUE_PLAIN : 0);
        auto before = must(dioxide_size(log.get()));
        auto bytes = append_all(queue.get(), log.get(), places, argc > 2 ? std::atoi(argv[2]) : 1000);
        queue.reset();
        if (must(dioxide_size(log.get())) != before + bytes)
            throw std::runtime_error("the length is not what was appended");
        std::printf("%lld bytes, all stable\n", static_cast<long long>(bytes));
        must(dioxide_close(log.release()));
    } catch (const std::exception &problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return 1;
    }
}
