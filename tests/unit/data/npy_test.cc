// SPDX-License-Identifier: Apache-2.0
#include "data/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// As numpy writes it, with a header text of our own.
std::string File(std::string header, size_t payload) {
  header += '\n';
  std::string out = "\x93NUMPY";
  out += '\x01';
  out += '\0';
  out += static_cast<char>(header.size());
  out += '\0';
  return out + header + std::string(payload, 'x');
}

TEST(NpyTest, ReadsWhatItWrites) {
  const std::vector<std::vector<int64_t>> shapes = {{}, {5}, {2, 3}, {2, 3, 4, 5}, {0, 7}};
  for (const std::vector<int64_t>& shape : shapes) {
    for (const NpyType type : {NpyType::kFloat32, NpyType::kFloat64, NpyType::kUInt8,
                               NpyType::kInt32, NpyType::kInt64}) {
      size_t bytes = SizeOf(type);
      for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
      const std::string file = FormatNpyHeader(type, shape) + std::string(bytes, 'x');
      const auto header = ParseNpy(Bytes(file));
      ASSERT_TRUE(header.ok()) << header.status() << file;
      EXPECT_EQ(header->type, type);
      EXPECT_EQ(header->shape, shape);
      EXPECT_EQ(header->header_bytes % 64, 0u);
    }
  }
}

TEST(NpyTest, ReadsOtherSpellings) {
  const auto header =
      ParseNpy(Bytes(File(R"({"shape":(2,),"fortran_order":False,"descr":"<i4"})", 8)));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->shape, ElementsAre(2));
  EXPECT_EQ(header->type, NpyType::kInt32);
}

TEST(NpyTest, SaysWhatIsWrong) {
  const auto error = [](const std::string& file) {
    const auto header = ParseNpy(Bytes(file));
    EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss);
    return std::string(header.status().message());
  };
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  ASSERT_TRUE(ParseNpy(Bytes(File(good, 24))).ok());
  EXPECT_THAT(error(File(good, 23)), HasSubstr("its header says"));
  EXPECT_THAT(error("PK\x03\x04 an archive"), HasSubstr("not a .npy file"));
  EXPECT_THAT(error(File("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 24)),
              HasSubstr("ascontiguousarray"));
  EXPECT_THAT(error(File("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", 16)),
              HasSubstr("save them as float32"));
  EXPECT_THAT(error(File("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8)),
              HasSubstr("expected an extent"));
  EXPECT_THAT(error(File("{'descr': '<f4', 'shape': (2,), }", 8)), HasSubstr("lacks"));
  EXPECT_THAT(error(File("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, "
                         "9999999999999), }",
                         8)),
              HasSubstr("64 TiB"));
  for (size_t length = 0; length < 40; ++length) error(File(good, 24).substr(0, length));
}

}  // namespace
}  // namespace lockstep::data
