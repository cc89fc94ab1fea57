// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/rows.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

TEST(RowsTest, EveryVariantGivesTheSameBits) {
  std::vector<uint8_t> bytes(1003);
  std::vector<float> a(1003), b(1003), c(1003);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 7);
    a[i] = std::sin(static_cast<float>(i));
    b[i] = 1.0f / static_cast<float>(i + 1);
    c[i] = std::cos(static_cast<float>(i));
  }
  for (const int64_t count : {0, 1, 7, 8, 9, 784, 1003}) {
    std::vector<float> portable(1004, -1), best(1004, -1);
    PortableRowKernels().scale_bytes(bytes.data(), count, 0.0111f, -0.81f, portable.data());
    BestRowKernels().scale_bytes(bytes.data(), count, 0.0111f, -0.81f, best.data());
    EXPECT_EQ(std::memcmp(portable.data(), best.data(), portable.size() * sizeof(float)), 0);
    EXPECT_EQ(best[static_cast<size_t>(count)], -1);
    PortableRowKernels().add_three(a.data(), b.data(), c.data(), count, portable.data());
    BestRowKernels().add_three(a.data(), b.data(), c.data(), count, best.data());
    EXPECT_EQ(std::memcmp(portable.data(), best.data(), portable.size() * sizeof(float)), 0);
  }
}

class ImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "images-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name + "/";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, std::string bytes) {
    std::ofstream(folder_ + name, std::ios::binary) << bytes;
    return folder_ + name;
  }
  std::string folder_;
};

std::string Labels(const std::string& labels) {
  return std::string("\0\0\x08\x01\0\0\0", 7) + static_cast<char>(labels.size()) + labels;
}
std::string Images(char count) {
  std::string bytes = std::string("\0\0\x08\x03\0\0\0", 7) + count;
  bytes += std::string("\0\0\0\x02\0\0\0\x03", 8);
  for (int i = 0; i < count * 6; ++i) bytes += static_cast<char>(i * 17);
  return bytes;
}

TEST_F(ImagesTest, ReadsAndNormalises) {
  IdxSource source{.train_images = Write("i", Images(4)),
                   .train_labels = Write("l", Labels({0, 2, 1, 0})),
                   .test_images = Write("ti", Images(2)),
                   .test_labels = Write("tl", Labels({1, 0})),
                   .mean = 0.25,
                   .std = 0.5};
  const auto dataset = Open(source, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 4);
  EXPECT_EQ((*dataset)->classes(), 3);
  EXPECT_EQ((*dataset)->fields(), ClassificationFields({1, 2, 3}, 3));
  float samples[12];
  int32_t labels[2];
  void* const fields[] = {samples, labels};
  ASSERT_TRUE((*dataset)->ReadBatch({{2, 1}}, fields).ok());
  EXPECT_EQ(labels[0], 1);
  EXPECT_EQ(labels[1], 2);
  for (int i = 0; i < 12; ++i) {
    const int pixel = ((i < 6 ? 12 + i : i) * 17) & 255;
    EXPECT_NEAR(samples[i], (pixel / 255.0 - 0.25) / 0.5, 3e-7);
  }
  const auto test = Open(source, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ((*test)->classes(), 3);
}

TEST_F(ImagesTest, WhatDoesNotFitIsNamed) {
  IdxSource source{.train_images = Write("i", Images(4)),
                   .train_labels = Write("l", Labels({0, 2, 1})),
                   .test_images = Write("ti", Images(2)),
                   .test_labels = Write("tl", Labels({1, 7}))};
  auto status = Open(source, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 4 samples"));
  status = Open(source, Split::kTest).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("label 7 at offset 9"));
  source.std = 0;
  EXPECT_EQ(Open(source, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
  source.train_labels = "";
  EXPECT_EQ(Open(source, Split::kTrain).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ImagesTest, MissingFashionMnistSaysHowToGetIt) {
  const auto status = Open(FashionMnistSource{.path = folder_ + "none"}, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(folder_ + "none/train-images-idx3-ubyte.gz"));
  EXPECT_THAT(message, HasSubstr("apt-get install dataset-fashion-mnist"));
  EXPECT_THAT(message, HasSubstr("data.fashion_mnist.path"));
}

TEST(SyntheticTest, IsAddressedAndLearnable) {
  const SyntheticSource source{.train_samples = 500, .features = 64, .classes = 4, .seed = 3};
  const auto a = Open(source, Split::kTrain), b = Open(source, Split::kTrain);
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE(b.ok());
  std::vector<int64_t> ids(500);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::vector<float> x(500 * 64), one(64);
  std::vector<int32_t> y(500);
  void* const all[] = {x.data(), y.data()};
  ASSERT_TRUE((*a)->ReadBatch({ids}, all).ok());
  int32_t label;
  void* const single[] = {one.data(), &label};
  ASSERT_TRUE((*b)->ReadBatch({{321}}, single).ok());
  EXPECT_EQ(label, y[321]);
  EXPECT_EQ(std::memcmp(one.data(), &x[321 * 64], 64 * sizeof(float)), 0);
  // The nearest class mean, taken from the first half, names the class of most of the second half.
  std::vector<double> mean(4 * 64), count(4);
  for (size_t i = 0; i < 250; ++i) {
    count[static_cast<size_t>(y[i])] += 1;
    for (size_t f = 0; f < 64; ++f) mean[static_cast<size_t>(y[i]) * 64 + f] += x[i * 64 + f];
  }
  int right = 0;
  for (size_t i = 250; i < 500; ++i) {
    double best = 1e30;
    int32_t guess = -1;
    for (size_t c = 0; c < 4; ++c) {
      double distance = 0;
      for (size_t f = 0; f < 64; ++f) {
        const double d = x[i * 64 + f] - mean[c * 64 + f] / count[c];
        distance += d * d;
      }
      if (distance < best) best = distance, guess = static_cast<int32_t>(c);
    }
    right += guess == y[i];
  }
  EXPECT_GT(right, 200);
  EXPECT_EQ(Open(SyntheticSource{.features = 0}, Split::kTest).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
