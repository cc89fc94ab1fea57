// SPDX-License-Identifier: Apache-2.0
// Damaged files of every format: cut anywhere, bytes changed, of another kind, empty, a folder.
// Each gives data or an error that names the file; nothing is read beyond a file's end (the
// sanitizers watch).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/npy.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
  return out;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

struct File {
  std::string name;
  std::string bytes;
  // Any shorter beginning of it is an error.
  bool cut_is_error = true;
};

struct Format {
  std::string name;
  std::vector<File> files;
  // The training split of what lies in `folder`, with its slash.
  Source (*source)(const std::string& folder);
};

Format Cifar() {
  const std::string record = "\x03" + std::string(3072, '\x50');
  Format format{"cifar", {}, [](const std::string& folder) -> Source {
                  return Cifar10Source{folder, {}, {}};
                }};
  for (int i = 1; i <= 5; ++i) {
    format.files.push_back({"data_batch_" + std::to_string(i) + ".bin", record});
  }
  return format;
}

Format Npy() {
  const std::string inputs =
      FormatNpyHeader(NpyType::kFloat32, {3, 2}) + BytesOf<float>({1, 2, 3, 4, 5, 6});
  const std::string labels = FormatNpyHeader(NpyType::kInt64, {3}) + BytesOf<int64_t>({0, 2, 1});
  return {"npy", {{"x.npy", inputs}, {"y.npy", labels}}, [](const std::string& folder) -> Source {
            NpySource source;
            source.train_inputs = folder + "x.npy";
            source.train_labels = folder + "y.npy";
            return source;
          }};
}

Format Csv() {
  return {"csv",
          {{"t.csv", "a,b,label\n1,2.5,0\n-3,4e2,1\n", false}},
          [](const std::string& folder) -> Source {
            CsvSource source;
            source.train = folder + "t.csv";
            return source;
          }};
}

Format Idx() {
  const std::string images =
      BigEndian(0x803) + BigEndian(2) + BigEndian(2) + BigEndian(2) + std::string("abcdefgh");
  const std::string labels = BigEndian(0x801) + BigEndian(2) + std::string("\x01\x00", 2);
  return {"idx", {{"images", images}, {"labels", labels}}, [](const std::string& folder) -> Source {
            return IdxSource{folder + "images", folder + "labels", folder + "images",
                             folder + "labels"};
          }};
}

Format Tokens() {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 9;
  return {"tokens",
          {{"t.bin", BytesOf(header) + BytesOf<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9}), false}},
          [](const std::string& folder) -> Source {
            return TokensSource{.train = folder + "t.bin", .length = 4, .vocab = 10};
          }};
}

class DamageTest : public testing::TestWithParam<Format (*)()> {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "damage-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name + "/";
    ::setenv("XDG_CACHE_HOME", (folder_ + "cache").c_str(), 1);
    format_ = GetParam()();
    for (const File& file : format_.files) Write(file, file.bytes);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const File& file, const std::string& bytes) {
    std::ofstream(folder_ + file.name, std::ios::binary) << bytes;
  }

  // Opens and reads all samples.
  absl::Status ReadAll() {
    const auto dataset = Open(format_.source(folder_), Split::kTrain);
    return dataset.ok() ? ReadAllOf(**dataset) : dataset.status();
  }
  absl::Status ReadAllOf(const Dataset& dataset) {
    std::vector<int64_t> indices(static_cast<size_t>(dataset.size()));
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<std::vector<uint32_t>> memory;
    std::vector<void*> fields;
    for (const FieldSpec& field : dataset.fields()) {
      memory.emplace_back(indices.size() * static_cast<size_t>(field.elements()));
    }
    for (auto& field : memory) fields.push_back(field.data());
    return dataset.ReadBatch({indices}, absl::MakeSpan(fields));
  }
  // With `file` holding `bytes`: data, or an error that names the file.
  bool Reads(const File& file, const std::string& bytes) {
    Write(file, bytes);
    const absl::Status status = ReadAll();
    if (status.ok()) return true;
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsNotFound(status) ||
                absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file.name));
    return false;
  }

  std::string folder_;
  Format format_;
};

TEST_P(DamageTest, WholeFilesAreRead) { EXPECT_TRUE(ReadAll().ok()) << ReadAll(); }

TEST_P(DamageTest, CutFiles) {
  for (const File& file : format_.files) {
    SCOPED_TRACE(file.name);
    // All lengths of the first bytes, some of the rest.
    for (size_t length = 0; length < file.bytes.size(); length += length < 200 ? 1 : 97) {
      const bool reads = Reads(file, file.bytes.substr(0, length));
      EXPECT_FALSE(reads && (file.cut_is_error || length == 0)) << length;
    }
    EXPECT_TRUE(Reads(file, file.bytes));
  }
}

TEST_P(DamageTest, ChangedBytes) {
  for (const File& file : format_.files) {
    SCOPED_TRACE(file.name);
    for (size_t at = 0; at < file.bytes.size() && at < 160; ++at) {
      for (const char other : {'\0', '\x01', '7', '(', '\x7F', '\xFF'}) {
        std::string bytes = file.bytes;
        bytes[at] = other;
        Reads(file, bytes);
      }
    }
    EXPECT_TRUE(Reads(file, file.bytes));
  }
}

TEST_P(DamageTest, FilesOfAnotherKind) {
  for (const File& file : format_.files) {
    SCOPED_TRACE(file.name);
    const bool any = format_.name == "text";  // every file is text
    EXPECT_EQ(Reads(file, "<!DOCTYPE html><html>404 Not Found</html>\n"), any);
    EXPECT_EQ(Reads(file, "\x1F\x8B\x08" + std::string(30, '\x55')), any);
    std::filesystem::remove(folder_ + file.name);
    EXPECT_THAT(std::string(ReadAll().message()), HasSubstr(file.name));
    std::filesystem::create_directory(folder_ + file.name);
    EXPECT_THAT(std::string(ReadAll().message()), HasSubstr(file.name));
    std::filesystem::remove(folder_ + file.name);
    EXPECT_TRUE(Reads(file, file.bytes));
  }
}

// Neither SIGBUS nor the zeros that the kernel shows behind a file's end.
TEST_P(DamageTest, FilesTruncatedWhileInUse) {
  for (size_t number = 0; number < format_.files.size(); ++number) {
    const File& file = format_.files[number];
    SCOPED_TRACE(file.name);
    for (const size_t length : {size_t{0}, file.bytes.size() / 2, file.bytes.size() - 1}) {
      const auto dataset = Open(format_.source(folder_), Split::kTrain);
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      ASSERT_TRUE(ReadAllOf(**dataset).ok());
      std::filesystem::resize_file(folder_ + file.name, length);
      const absl::Status read = ReadAllOf(**dataset);
      // Tables and the labels of arrays are in memory.
      if (format_.name == "csv" || (format_.name == "npy" && number == 1)) {
        EXPECT_TRUE(read.ok()) << read;
      } else {
        EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << length;
        EXPECT_THAT(std::string(read.message()),
                    HasSubstr(file.name + " was truncated while in use"));
        EXPECT_FALSE(ReadAllOf(**dataset).ok()) << "and again";
      }
      EXPECT_TRUE(Reads(file, file.bytes)) << "opened again it is as good as ever";
    }
  }
}

Format Text() {
  return {"text",
          {{"book.txt", std::string(200, 'x'), false}},
          [](const std::string& folder) -> Source {
            return TextSource{.path = folder + "book.txt", .length = 8};
          }};
}

INSTANTIATE_TEST_SUITE_P(All, DamageTest, testing::Values(&Cifar, &Npy, &Csv, &Idx, &Tokens, &Text),
                         [](const auto& info) { return info.param().name; });

class TokensDamageTest : public DamageTest {};

// A file of several pages, so that some are gone and not only the rest of one.
TEST_P(TokensDamageTest, PagesThatAreGone) {
  File file{"big.bin", std::string(1 << 20, '\x01')};
  Write(file, file.bytes);
  const auto dataset =
      Open(TokensSource{.train = folder_ + file.name, .length = 64, .vocab = 300}, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::filesystem::resize_file(folder_ + file.name, 4096);
  const absl::Status read = ReadAllOf(**dataset);
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
  std::filesystem::resize_file(folder_ + file.name, 1 << 20);
  EXPECT_EQ(ReadAllOf(**dataset).code(), absl::StatusCode::kUnavailable)
      << "zeros were read: its length alone does not make it good again";
}

INSTANTIATE_TEST_SUITE_P(One, TokensDamageTest, testing::Values(&Tokens));

}  // namespace
}  // namespace lockstep::data
