// SPDX-License-Identifier: Apache-2.0
// Ways to read files that somebody may truncate meanwhile (docs/adr/0017), in turn in one run, from
// the page cache:
//   load: a whole file into memory that has its pages, as weights are: mapped and copied, the same
//         behind the guard and checked piece by piece, and by pread;
//   rows: batches of rows in random order, as samples are: from a mapping, from a mapping that is
//         checked after each batch, and by pread, row by row;
//   save: a checkpoint's file written, flushed and hashed, and then read back.
//
//   bench_reads [folder] [MiB of the file] [bytes of a row] [rows of a batch]
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/storage.h"
#include "common/check.h"
#include "common/fd.h"
#include "common/mapped_bytes.h"
#include "common/philox.h"

namespace lockstep {
namespace {

constexpr int kRounds = 7;

double TimeOf(const std::function<void()>& body) {
  const double begin = bench::Now();
  body();
  return bench::Now() - begin;
}

struct Way {
  std::string name;
  std::function<void()> body;
  std::vector<double> seconds = {};
};

// Runs all ways in turn, kRounds times, and prints median and spread of each beside the first one.
void Compare(const char* what, double units, const char* unit, std::vector<Way> ways) {
  for (int round = -1; round < kRounds; ++round) {  // the first is a rehearsal
    for (Way& way : ways) {
      const double seconds = TimeOf(way.body);
      if (round >= 0) way.seconds.push_back(seconds);
    }
  }
  double first = 0;
  for (Way& way : ways) {
    std::sort(way.seconds.begin(), way.seconds.end());
    const double median = way.seconds[kRounds / 2];
    if (first == 0) first = median;
    std::printf("%-6s %-34s %10.2f %s  (%.2f to %.2f)  time %.3f of the first\n", what,
                way.name.c_str(), units / median, unit, units / way.seconds.back(),
                units / way.seconds.front(), median / first);
  }
}

void CompareLoads(const std::string& path, size_t bytes) {
  std::vector<char> to(bytes, 1);
  std::vector<Way> ways;
  ways.push_back({"mapped, copied", [&] {
                    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
                    void* from = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
                    LS_CHECK(from != MAP_FAILED);
                    std::memcpy(to.data(), from, bytes);
                    ::munmap(from, bytes);
                  }});
  ways.push_back({"mapped behind the guard, 4 MiB each", [&] {
                    constexpr size_t kPiece = size_t{4} << 20;
                    const auto file = checkpoint::Storage::Disk()->Open(path);
                    for (size_t at = 0; at < bytes; at += kPiece) {
                      const size_t n = std::min(kPiece, bytes - at);
                      LS_CHECK((*file)->ReadAt(at, to.data() + at, n).ok());
                    }
                  }});
  for (const size_t piece : {size_t{256} << 10, size_t{4} << 20}) {
    ways.push_back({"pread, " + std::to_string(piece >> 10) + " KiB each", [&, piece] {
                      const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
                      for (size_t at = 0; at < bytes; at += piece) {
                        const size_t n = std::min(piece, bytes - at);
                        LS_CHECK_EQ(::pread(fd.get(), to.data() + at, n, static_cast<off_t>(at)),
                                    static_cast<ssize_t>(n));
                      }
                    }});
  }
  Compare("load", static_cast<double>(bytes) / 1e9, "GB/s", std::move(ways));
}

void CompareRows(const std::string& path, size_t bytes, size_t row, size_t batch) {
  const size_t rows = bytes / row, batches = std::max<size_t>(1, 200'000 / batch);
  std::vector<size_t> order(batches * batch);
  for (size_t i = 0; i < order.size(); ++i) order[i] = MixBits(i) % rows;
  std::vector<char> to(row * batch);
  const auto mapped = MappedBytes::OpenFile(path);
  LS_CHECK(mapped.ok());
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto all = [&](const std::function<void(const size_t* rows)>& one) {
    for (size_t b = 0; b < batches; ++b) one(order.data() + b * batch);
  };
  const auto copy = [&](const size_t* numbers) {
    for (size_t i = 0; i < batch; ++i) {
      std::memcpy(to.data() + i * row, mapped->data() + numbers[i] * row, row);
    }
  };
  std::vector<Way> ways;
  ways.push_back({"mapped", [&] { all(copy); }});
  ways.push_back({"mapped, checked after each batch", [&] {
                    all([&](const size_t* numbers) {
                      copy(numbers);
                      LS_CHECK(mapped->Check().ok());
                    });
                  }});
  ways.push_back({"pread, row by row", [&] {
                    all([&](const size_t* numbers) {
                      for (size_t i = 0; i < batch; ++i) {
                        LS_CHECK_EQ(::pread(fd.get(), to.data() + i * row, row,
                                            static_cast<off_t>(numbers[i] * row)),
                                    static_cast<ssize_t>(row));
                      }
                    });
                  }});
  Compare("rows", static_cast<double>(order.size()) / 1e6, "Mrows/s", std::move(ways));
}

void CompareSaves(const std::string& folder, size_t bytes) {
  const std::vector<char> from(bytes, 3);
  checkpoint::Storage* const disk = checkpoint::Storage::Disk();
  const checkpoint::GoOn go_on = [] { return true; };
  checkpoint::FileRecord record;
  std::vector<Way> ways;
  ways.push_back({"written, flushed and read back", [&] {
                    auto written = checkpoint::WriteShard(
                        disk, folder, "bench_reads.saved",
                        {{"t", "U8", {static_cast<int64_t>(bytes)}, from.data(), bytes}}, go_on);
                    LS_CHECK(written.ok()) << written.status().message();
                    record = *std::move(written);
                  }});
  ways.push_back({"the reading back of that",
                  [&] { LS_CHECK(checkpoint::CheckFile(disk, folder, record, go_on).ok()); }});
  Compare("save", static_cast<double>(bytes) / 1e9, "GB/s", std::move(ways));
  LS_CHECK(disk->Remove(folder + "/bench_reads.saved").ok());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const auto number = [&](int at, size_t otherwise) {
    return argc > at ? static_cast<size_t>(std::atoll(argv[at])) : otherwise;
  };
  const std::string folder = argc > 1 ? argv[1] : "/tmp";
  const size_t bytes = number(2, 256) << 20;
  const std::string path = folder + "/bench_reads.bin";
  LS_CHECK(lockstep::checkpoint::WriteWhole(lockstep::checkpoint::Storage::Disk(), path,
                                            std::string(bytes, 'x'))
               .ok());
  lockstep::CompareLoads(path, bytes);
  lockstep::CompareRows(path, bytes, number(3, 784), number(4, 64));
  lockstep::CompareSaves(folder, bytes);
  LS_CHECK(lockstep::checkpoint::Storage::Disk()->Remove(path).ok());
  return 0;
}
