// SPDX-License-Identifier: Apache-2.0
#include "data/token_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenWindowsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "tokens-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name + "/";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + name, std::ios::binary) << bytes;
    return folder_ + name;
  }
  std::string folder_;
};

std::vector<std::vector<int32_t>> Read(const Dataset& dataset, std::vector<int64_t> indices,
                                       int64_t step = 0, int shard = 0) {
  std::vector<std::vector<int32_t>> fields;
  std::vector<void*> pointers;
  for (const FieldSpec& field : dataset.fields()) {
    fields.emplace_back(indices.size() * static_cast<size_t>(field.elements()));
  }
  for (auto& field : fields) pointers.push_back(field.data());
  EXPECT_TRUE(dataset.ReadBatch({indices, step, shard}, absl::MakeSpan(pointers)).ok());
  return fields;
}

int64_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
}

std::string Shorts(const std::vector<uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

TEST_F(TokenWindowsTest, AFolderIsItsFilesInOrderEachOnce) {
  Write("b", "fghij");
  Write("a", "abcde");
  Write("empty", "");
  std::filesystem::create_symlink(folder_ + "a", folder_ + "c");
  const auto train =
      Open(TextSource{.path = folder_, .length = 3, .test_fraction = 0.34}, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 2);
  const auto fields = Read(**train, {1, 0});
  EXPECT_THAT(fields[0], ElementsAre('d', 'e', 'f', 'a', 'b', 'c'));
  EXPECT_THAT(fields[1], ElementsAre('e', 'f', 'g', 'b', 'c', 'd'));
  const auto test =
      Open(TextSource{.path = folder_, .length = 3, .test_fraction = 0.34}, Split::kTest);
  ASSERT_TRUE(test.ok());
  EXPECT_THAT(Read(**test, {0})[1], ElementsAre('h', 'i', 'j'));
}

// As caches of downloads have them: each name in the folder is a link to a file elsewhere.
TEST_F(TokenWindowsTest, LinksToFilesAreFollowedEachFileOnce) {
  namespace fs = std::filesystem;
  fs::create_directories(folder_ + "blobs/more");
  fs::create_directories(folder_ + "links/in");
  Write("blobs/2", "abcdef");
  Write("blobs/1", "ghijkl");
  fs::create_symlink(folder_ + "blobs/2", folder_ + "links/a");
  fs::create_symlink("../../blobs/1", folder_ + "links/in/b");
  fs::create_symlink("in/b", folder_ + "links/z");  // the same file again
  const auto read = [this] {
    const auto train =
        Open(TextSource{.path = folder_ + "links", .length = 3, .test_fraction = 0}, Split::kTrain);
    EXPECT_TRUE(train.ok()) << train.status();
    std::string all;
    for (int64_t i = 0; train.ok() && i < (*train)->size(); ++i) {
      const auto fields = Read(**train, {i});
      for (const int32_t token : fields[0]) all += static_cast<char>(token);
    }
    return all;
  };
  EXPECT_EQ(read(), "abcdefghi");
  // A file is itself before it is what a link names, and stands where its own name does.
  Write("links/n", "mnopqr");
  fs::create_symlink("n", folder_ + "links/0");
  EXPECT_EQ(read(), "abcdefghijklmno");
  // Nor is it another file by a second name of its own.
  fs::create_hard_link(folder_ + "links/n", folder_ + "links/n2");
  EXPECT_EQ(read(), "abcdefghijklmno");
  fs::create_hard_link(folder_ + "links/n", folder_ + "links/in/a");
  EXPECT_EQ(read(), "abcdefmnopqrghi") << "the first name in order is its place";
  fs::remove(folder_ + "links/in/a");
  // Not folders, whose links may lead back; nor what is no file.
  Write("blobs/more/x", "xxxxxx");
  fs::create_symlink(folder_ + "blobs/more", folder_ + "links/folder");
  fs::create_symlink("..", folder_ + "links/in/up");
  fs::create_symlink("/dev/null", folder_ + "links/null");
  fs::create_symlink("somebody@host.123", folder_ + "links/.#a");  // an editor's lock
  EXPECT_EQ(read(), "abcdefghijklmno");
  fs::create_symlink(folder_ + "blobs/3", folder_ + "links/gone");
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const auto lost = Open(TextSource{.path = folder_ + "links", .length = 3}, split);
    EXPECT_EQ(lost.status().code(), absl::StatusCode::kNotFound) << lost.status();
    EXPECT_THAT(std::string(lost.status().message()),
                HasSubstr(folder_ + "links/gone is a link that leads to no file"));
  }
}

// The kernel allows a process 65,530 mappings: vm.max_map_count.
TEST_F(TokenWindowsTest, AFolderOfManySmallFilesTakesFewMappings) {
  std::string all;
  for (int i = 0; i < 25'000; ++i) {
    // The largest of them are mapped, the others read.
    const std::string bytes(i == 0 ? 1 : static_cast<size_t>(2 + i % 7),
                            static_cast<char>('a' + i % 26));
    Write(std::to_string(10'000 + i), bytes);
    all += bytes;
  }
  Write("9", std::string(3 << 20, 'z'));  // the last one
  all += std::string(3 << 20, 'z');
  const TextSource source{.path = folder_, .length = 5, .test_fraction = 0.998};
  const int64_t before = Mappings();
  const auto train = Open(source, Split::kTrain), test = Open(source, Split::kTest);
  ASSERT_TRUE(train.ok() && test.ok()) << train.status() << test.status();
  EXPECT_LT(Mappings() - before, 24'100);
  // Of the training split, which has the smallest; all of the test split's 4 MiB are mapped.
  EXPECT_GT((*train)->own_bytes() + (*test)->own_bytes(), 1000u);
  EXPECT_LT((*train)->own_bytes() + (*test)->own_bytes(), 100'000u);
  const int64_t windows = (*train)->size();
  for (int64_t i = 0; i < 4000; ++i) {
    const Dataset& split = i < windows ? **train : **test;
    const auto fields = Read(split, {i < windows ? i : i - windows});
    const auto at = static_cast<size_t>(i) * 5;
    ASSERT_EQ(std::string(fields[0].begin(), fields[0].end()), all.substr(at, 5)) << i;
    ASSERT_EQ(std::string(fields[1].begin(), fields[1].end()), all.substr(at + 1, 5)) << i;
  }
  // What was read stays what it was; what is mapped is looked at.
  std::filesystem::resize_file(folder_ + "10000", 0);  // the smallest
  EXPECT_EQ(Read(**train, {0})[0][0], 'a');
  std::filesystem::resize_file(folder_ + "9", 5000);
  std::vector<int32_t> tokens(5), labels(5);
  void* const fields[] = {tokens.data(), labels.data()};
  const int64_t last = (*test)->size() - 1;
  const absl::Status cut = (*test)->ReadBatch({{&last, 1}}, fields);
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss) << cut;
  EXPECT_THAT(std::string(cut.message()), HasSubstr("/9 was truncated while in use"));
}

TEST_F(TokenWindowsTest, MasksAreAFunctionOfStepAndShard) {
  const std::string path = Write("text", std::string(4000, 'x'));
  const auto dataset = Open(TextSource{.path = path, .length = 103, .masked = 0.15}, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int64_t> all(30);
  std::iota(all.begin(), all.end(), 0);
  const auto first = Read(**dataset, all, 5, 1);
  EXPECT_EQ(first, Read(**dataset, all, 5, 1));
  EXPECT_NE(first, Read(**dataset, all, 6, 1));
  EXPECT_NE(first, Read(**dataset, all, 5, 2));
  int chosen = 0, hidden = 0;
  for (size_t i = 0; i < first[0].size(); ++i) {
    if (first[2][i] < 0) continue;
    ++chosen;
    hidden += first[0][i] == kMaskToken;
    EXPECT_EQ(first[2][i], 'x');
  }
  EXPECT_NEAR(chosen, 450, 80);  // 15 % of 3,000
  EXPECT_NEAR(hidden, 0.8 * chosen, 40);
  EXPECT_EQ(first[0][0], kFirstToken);
  EXPECT_EQ(first[0][102], kSeparator);
  EXPECT_EQ(first[1][0], 0);
  EXPECT_EQ(first[1][102], 1);
}

TEST_F(TokenWindowsTest, MasksOfTheTestSplitAreThoseOfTheWindow) {
  const std::string path = Write("text", std::string(4000, 'x'));
  const TextSource source{.path = path, .length = 53, .test_fraction = 0.5, .masked = 0.15};
  const auto dataset = Open(source, Split::kTest);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const auto both = Read(**dataset, {6, 7});
  const auto alone = Read(**dataset, {7});
  for (size_t field = 0; field < both.size(); ++field) {
    EXPECT_EQ(std::vector<int32_t>(both[field].begin() + 53, both[field].end()), alone[field]);
  }
  EXPECT_NE(alone[2], Read(**dataset, {6})[2]);
}

TEST_F(TokenWindowsTest, ReadsBothLayouts) {
  const std::vector<uint16_t> tokens = {5, 6, 7, 8, 9, 10, 11};
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 7;
  const std::string head(reinterpret_cast<const char*>(header.data()), 1024);
  const std::string raw = Write("raw.bin", Shorts(tokens));
  const std::string with = Write("header.bin", head + Shorts(tokens));
  for (const std::string& path : {raw, with}) {
    const auto dataset = Open(TokensSource{.train = path, .length = 3, .vocab = 12}, Split::kTrain);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->size(), 2);
    EXPECT_THAT(Read(**dataset, {1})[0], ElementsAre(8, 9, 10));
    EXPECT_THAT(Read(**dataset, {1})[1], ElementsAre(9, 10, 11));
  }
}

TEST_F(TokenWindowsTest, BadFilesAreNamed) {
  const auto open = [](TokensSource source) { return Open(source, Split::kTrain).status(); };
  const std::string odd = Write("odd.bin", "abc");
  EXPECT_THAT(std::string(open({.train = odd, .length = 1}).message()), HasSubstr("odd.bin"));
  std::string cut(2048, '\0');
  const int32_t header[3] = {20240520, 1, 1000};
  std::memcpy(cut.data(), header, sizeof(header));
  EXPECT_EQ(open({.train = Write("cut.bin", cut), .length = 4}).code(),
            absl::StatusCode::kDataLoss);
  const absl::Status high =
      open({.train = Write("high.bin", Shorts({1, 99, 2})), .length = 2, .vocab = 50});
  EXPECT_EQ(high.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(high.message()),
              HasSubstr("high.bin: token 99 at place 1, but data.tokens.vocab is 50"));
  EXPECT_EQ(Open(TextSource{.path = folder_ + "none"}, Split::kTrain).status().code(),
            absl::StatusCode::kNotFound);
}

// What gzip writes first, as a text or as tokens of 16 bits.
TEST_F(TokenWindowsTest, PackedFilesAreNotTrainedOn) {
  const std::string packed("\x1f\x8b\x08\x08 of a file that is packed", 30);
  const std::string expected = " is packed by gzip: unpack it (of packed files IDX alone is read)";
  const std::string tokens = Write("tokens.bin.gz", packed);
  for (const int64_t vocab : {65536, 50}) {
    EXPECT_THAT(
        std::string(Open(TokensSource{.train = tokens, .length = 2, .vocab = vocab}, Split::kTrain)
                        .status()
                        .message()),
        HasSubstr(tokens + expected));
  }
  std::filesystem::create_directory(folder_ + "books");
  Write("books/a", "a book that is not packed");
  const std::string book = Write("books/b", packed);
  for (const std::string& path : {tokens, folder_ + "books"}) {
    EXPECT_THAT(
        std::string(Open(TextSource{.path = path, .length = 3}, Split::kTrain).status().message()),
        HasSubstr((path == tokens ? tokens : book) + expected));
  }
  // Tokens that begin with the same two bytes are tokens.
  const std::string plain = Write("plain.bin", Shorts({0x8b1f, 50000, 3, 4, 5}));
  EXPECT_TRUE(Open(TokensSource{.train = plain, .length = 2, .vocab = 65536}, Split::kTrain).ok());
}

TEST_F(TokenWindowsTest, WithoutAHeaderTokensHave16Bits) {
  const std::string wide = Write("wide.bin", Shorts({1, 2, 3, 4, 5, 6, 7, 8}));
  const absl::Status status =
      Open(TokensSource{.train = wide, .length = 2, .vocab = 70000}, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("wide.bin"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("20240801, 7"));
  EXPECT_TRUE(Open(TokensSource{.train = wide, .length = 2, .vocab = 65536}, Split::kTrain).ok());
  // 16 bits and a header that says so are meant.
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 4;
  const std::string head(reinterpret_cast<const char*>(header.data()), 1024);
  const std::string narrow = Write("narrow.bin", head + Shorts({1, 2, 3, 4}));
  EXPECT_TRUE(Open(TokensSource{.train = narrow, .length = 2, .vocab = 70000}, Split::kTrain).ok());
}

TEST_F(TokenWindowsTest, WiderTokensWithoutAHeaderAreSeen) {
  const auto opened = [&](int each) {  // places of 16 bits to a token
    std::vector<uint16_t> tokens(static_cast<size_t>(80 * each));
    for (size_t i = 0; i < 80; ++i) tokens[i * static_cast<size_t>(each)] = i % 9;
    const std::string path = folder_ + "tokens.bin";
    std::ofstream(path).write(reinterpret_cast<const char*>(tokens.data()),
                              static_cast<std::streamsize>(2 * tokens.size()));
    return Open(TokensSource{.train = path, .length = 2, .vocab = 9}, Split::kTrain).status();
  };
  EXPECT_TRUE(opened(1).ok());
  for (const int each : {2, 4}) {
    EXPECT_THAT(
        std::string(opened(each).message()),
        HasSubstr("tokens.bin has no header, so its tokens have 16 bits, and every second one "
                  "is 0: tokens of 32 or 64 bits look so"));
  }
}

// All of a large file would take too long: its begin, its end and pieces between.
TEST_F(TokenWindowsTest, LargeFilesAreLookedThroughInPieces) {
  constexpr int64_t kTokens = int64_t{150} << 20;
  const std::string path = folder_ + "large.bin";
  const auto opened = [&](int64_t at) {
    std::ofstream(path).flush();
    std::filesystem::resize_file(path, 2 * kTokens);  // of zeros, which take no room on the disk
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * at);
    file << Shorts({99});
    file.close();
    return Open(TokensSource{.train = path, .length = 1, .vocab = 50}, Split::kTrain);
  };
  for (const int64_t at : {int64_t{0}, (kTokens - 1) / 2 + 400'000, kTokens - 1}) {
    const absl::Status status = opened(at).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(status.message()), HasSubstr("token 99 at place")) << at;
  }
  // Between two pieces: found when it is read.
  const int64_t piece = int64_t{1} << 19, between = (kTokens - piece) / 255 - 1;
  ASSERT_GT(between, piece);
  const auto dataset = opened(between);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int32_t> a(1), b(1);
  void* fields[] = {a.data(), b.data()};
  EXPECT_EQ((*dataset)->ReadBatch({{&between, 1}}, fields).code(), absl::StatusCode::kDataLoss);
}

TEST_F(TokenWindowsTest, MadeTokensAreTheSameEachTime) {
  const TokensSource source{.length = 16, .vocab = 100, .train_samples = 8, .test_samples = 2};
  const auto a = Open(source, Split::kTrain), b = Open(source, Split::kTrain);
  ASSERT_TRUE(a.ok() && b.ok());
  const auto first = Read(**a, {3, 5});
  EXPECT_EQ(first, Read(**b, {3, 5}));
  for (size_t t = 0; t + 1 < 16; ++t) EXPECT_EQ(first[1][t], first[0][t + 1]);
}

}  // namespace
}  // namespace lockstep::data
