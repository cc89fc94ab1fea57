// SPDX-License-Identifier: Apache-2.0
#include "data/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace lockstep::data {
namespace {

// By its definition: the padded picture, cut and mirrored.
std::vector<float> Reference(const ImageChange& change, int64_t channels, int64_t height,
                             int64_t width, const std::vector<float>& padding,
                             const std::vector<float>& image) {
  std::vector<float> out(image.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const int64_t from_y = y + change.down;
        const int64_t from_x = (change.mirror ? width - 1 - x : x) + change.right;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        out[static_cast<size_t>((c * height + y) * width + x)] =
            inside ? image[static_cast<size_t>((c * height + from_y) * width + from_x)]
                   : padding[padding.size() == 1 ? 0 : static_cast<size_t>(c)];
      }
    }
  }
  return out;
}

TEST(AugmentTest, ChangesInPlaceAsDefined) {
  const int64_t channels = 2, height = 5, width = 7;
  std::vector<float> image(static_cast<size_t>(channels * height * width));
  std::iota(image.begin(), image.end(), 1.0f);
  for (int down = -3; down <= 3; ++down) {
    for (int right = -3; right <= 3; ++right) {
      for (const bool mirror : {false, true}) {
        const ImageChange change{down, right, mirror};
        std::vector<float> changed = image;
        ApplyChange(change, channels, height, width, {-1, -2}, changed.data());
        EXPECT_EQ(changed, Reference(change, channels, height, width, {-1, -2}, image))
            << down << " " << right << " " << mirror;
      }
    }
  }
}

TEST(AugmentTest, EveryPlaceIsReachedAndTheAddressDecides) {
  const Augment augment{4, true, 17};
  std::set<int> downs, rights;
  int mirrored = 0;
  for (int64_t place = 0; place < 2000; ++place) {
    const ImageChange change = ChangeOf(augment, 3, 1, place);
    ASSERT_GE(change.down, -4);
    ASSERT_LE(change.down, 4);
    downs.insert(change.down);
    rights.insert(change.right);
    mirrored += change.mirror;
  }
  EXPECT_EQ(downs.size(), 9u);
  EXPECT_EQ(rights.size(), 9u);
  EXPECT_NEAR(mirrored, 1000, 120);
  const auto as_text = [](const Augment& a, int64_t step, int shard) {
    std::string text;
    for (int64_t place = 0; place < 50; ++place) {
      const ImageChange c = ChangeOf(a, step, shard, place);
      text += std::to_string(c.down) + "," + std::to_string(c.right) + (c.mirror ? "m " : " ");
    }
    return text;
  };
  const std::string base = as_text(augment, 3, 1);
  EXPECT_EQ(base, as_text(augment, 3, 1));
  EXPECT_NE(base, as_text(augment, 4, 1));
  EXPECT_NE(base, as_text(augment, 3, 2));
  EXPECT_NE(base, as_text({4, true, 18}, 3, 1));
  EXPECT_EQ(as_text({0, false, 17}, 3, 1).find('m'), std::string::npos);
}

class Pictures : public Dataset {
 public:
  explicit Pictures(std::vector<int64_t> shape) : fields_(ClassificationFields(shape, 2)) {}
  int64_t size() const override { return 10; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return 2; }
  absl::Status ReadBatch(const ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    const auto elements = static_cast<size_t>(fields_[0].elements());
    for (size_t i = 0; i < request.indices.size() * elements; ++i) {
      static_cast<float*>(fields[0])[i] = static_cast<float>(i % elements);
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<FieldSpec> fields_;
};

TEST(AugmentTest, ADataSetWithChangesIsAFunctionOfTheRequest) {
  const Augment augment{2, true, 5};
  const auto dataset =
      AugmentImages(std::make_unique<Pictures>(std::vector<int64_t>{3, 6, 6}), augment, {-9});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<int64_t> indices = {1, 2, 3};
  const auto read = [&](int64_t step, int shard) {
    std::vector<float> inputs(3 * 108);
    std::vector<int32_t> labels(3);
    void* const fields[] = {inputs.data(), labels.data()};
    EXPECT_TRUE((*dataset)->ReadBatch({indices, step, shard}, fields).ok());
    return inputs;
  };
  EXPECT_EQ(read(7, 1), read(7, 1));
  EXPECT_NE(read(7, 1), read(8, 1));
  EXPECT_NE(read(7, 1), read(7, 2));
  std::vector<float> plain(108);
  std::iota(plain.begin(), plain.end(), 0.0f);
  const std::vector<float> changed = Reference(ChangeOf(augment, 7, 1, 2), 3, 6, 6, {-9}, plain);
  const std::vector<float> all = read(7, 1);
  EXPECT_EQ(std::vector<float>(all.end() - 108, all.end()), changed);
}

TEST(AugmentTest, RefusesWhatIsNoImage) {
  const auto rows =
      AugmentImages(std::make_unique<Pictures>(std::vector<int64_t>{36}), {1, true, 0}, {0});
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  const auto wide =
      AugmentImages(std::make_unique<Pictures>(std::vector<int64_t>{1, 6, 6}), {6, true, 0}, {0});
  EXPECT_EQ(wide.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
