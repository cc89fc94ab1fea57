// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/resealed_manifest.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Manifest Example() {
  Manifest manifest;
  manifest.step = 500;
  manifest.sequence = 7;
  manifest.generation = 3;
  manifest.run = "a1b2c3";
  manifest.plan_hash = "0123";
  manifest.device_hash = "4567";
  manifest.device = "a CPU, 1 thread";
  manifest.threads = 2;
  manifest.train = R"({"seed":"3","optimizer":{"sgd":{"lr":0.05}}})";
  manifest.samples = 60000;
  manifest.data = {{"train.csv", 12, 0xfedcba9876543210}, {"t\u00e4st", 3, 1}};
  manifest.data_stamp = 0x0123456789abcdef;
  manifest.eval = R"({"loss":0.1,"step":"480"})";
  manifest.evaluated_step = 480;
  manifest.best_step = 440;
  manifest.best_sha256 = Sha256Hex("best");
  manifest.files = {{"model.safetensors", 12, Sha256Hex("a")},
                    {"training-00001-of-00002.safetensors", 0, Sha256Hex("b")}};
  return manifest;
}

TEST(Manifest, ComesBack) {
  const Manifest wanted = Example();
  const auto got = ParseManifest(FormatManifest(wanted));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->step, 500);
  EXPECT_EQ(got->sequence, 7);
  EXPECT_EQ(got->generation, 3);
  EXPECT_EQ(got->run, "a1b2c3");
  EXPECT_EQ(got->plan_hash, "0123");
  EXPECT_EQ(got->device_hash, "4567");
  EXPECT_EQ(got->device, "a CPU, 1 thread");
  EXPECT_EQ(got->threads, 2);
  EXPECT_THAT(got->train, HasSubstr("\"lr\":0.05"));
  EXPECT_THAT(got->eval, HasSubstr("\"step\":\"480\""));
  EXPECT_EQ(got->samples, 60000);
  EXPECT_EQ(got->data, wanted.data);
  EXPECT_EQ(got->data_stamp, wanted.data_stamp);
  EXPECT_EQ(got->evaluated_step, 480);
  EXPECT_EQ(got->best_step, 440);
  EXPECT_EQ(got->best_sha256, wanted.best_sha256);
  EXPECT_EQ(got->files, wanted.files);
}

// What versions before these fields wrote.
TEST(Manifest, WithoutAGenerationOrData) {
  const auto got = ParseManifest(Resealed(FormatManifest(Example()), [](nlohmann::json& body) {
    for (const char* later : {"generation", "samples", "data", "data_stamp"}) body.erase(later);
  }));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->generation, 0);
  EXPECT_EQ(got->samples, 0);
  EXPECT_TRUE(got->data.empty());
  EXPECT_EQ(got->data_stamp, 0u);
  EXPECT_EQ(got->sequence, 7);
}

// So that versions before these fields read it.
TEST(Manifest, WhatIsNotKnownOfTheDataIsNotWritten) {
  Manifest manifest = Example();
  manifest.samples = 0;
  manifest.data.clear();
  manifest.data_stamp = 0;
  const std::string text = FormatManifest(manifest);
  EXPECT_THAT(text, Not(HasSubstr("samples")));
  EXPECT_THAT(text, Not(HasSubstr("\"data")));
  const auto got = ParseManifest(text);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->samples, 0);
  EXPECT_TRUE(got->data.empty());
}

TEST(Manifest, OfANewerVersionIsNotDamaged) {
  const auto code = [](auto change) {
    return ParseManifest(Resealed(FormatManifest(Example()), change)).status();
  };
  const absl::Status key = code([](nlohmann::json& body) { body["key_of_the_future"] = 1; });
  EXPECT_EQ(key.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(key.message(), HasSubstr("newer version of lockstep"));
  EXPECT_THAT(key.message(), HasSubstr("'key_of_the_future'"));
  const absl::Status schema = code([](nlohmann::json& body) {
    body["schema"] = 2;
    body.erase("plan_hash");
    body["data"] = "elsewhere";
  });
  EXPECT_EQ(schema.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(schema.message(), HasSubstr("schema 2"));
  for (const char* list : {"files", "data"}) {
    const absl::Status inner = code([&](nlohmann::json& body) { body[list][1]["owner"] = "me"; });
    EXPECT_EQ(inner.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(inner.message(), HasSubstr("'owner'"));
  }
  // No version has a key less, or a schema before the first.
  EXPECT_TRUE(absl::IsDataLoss(code([](nlohmann::json& body) { body.erase("plan_hash"); })));
  EXPECT_TRUE(absl::IsDataLoss(code([](nlohmann::json& body) { body["schema"] = 0; })));
  EXPECT_TRUE(absl::IsDataLoss(code([](nlohmann::json& body) { body["schema"] = "2"; })));
}

TEST(Manifest, WithoutAnEvaluation) {
  Manifest manifest = Example();
  manifest.eval.clear();
  manifest.best_sha256.clear();
  const auto got = ParseManifest(FormatManifest(manifest));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->eval, "");
}

TEST(Manifest, EveryCutAndEveryFlippedBitIsFound) {
  const std::string text = FormatManifest(Example());
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_EQ(ParseManifest(text.substr(0, length)).status().code(), absl::StatusCode::kDataLoss);
  }
  const std::string whole = FormatManifest(*ParseManifest(text));
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto got = ParseManifest(damaged);
      // What is left may be the same in other words (a blank as a tab), never something else.
      if (got.ok()) {
        EXPECT_EQ(FormatManifest(*got), whole) << at;
      }
    }
  }
}

// The text of a manifest with one thing changed and sealed again.
std::string With(const std::string& from, const std::string& to) {
  std::string text = FormatManifest(Example());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return text;
}

TEST(Manifest, AChangeIsNotWhatWasWritten) {
  const auto got = ParseManifest(With("\"step\": 500", "\"step\": 501"));
  EXPECT_THAT(got.status().message(), HasSubstr("not what was written"));
}

TEST(Manifest, NamesThatLeaveTheFolderAreRefused) {
  for (const std::string name :
       {"../model", "/etc/passwd", ".hidden", "", "manifest.json", "a b"}) {
    const auto got = ParseFileRecords(FormatFileRecords({{name, 1, Sha256Hex("a")}}));
    EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss) << name;
  }
  EXPECT_FALSE(ParseFileRecords(FormatFileRecords({{"a", 1, "short"}})).ok());
  EXPECT_FALSE(
      ParseFileRecords(FormatFileRecords({{"a", 1, Sha256Hex("a")}, {"a", 2, Sha256Hex("b")}}))
          .ok());
  EXPECT_TRUE(ParseFileRecords(FormatFileRecords({{"a-1.x_Y", 1, Sha256Hex("a")}})).ok());
}

TEST(Manifest, HostileTextsEndInAnError) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[]"), std::string("null"),
        std::string(100'000, '['), std::string(R"({"checkpoint":{},"sha256":"x"})"),
        std::string(R"({"checkpoint":{},"sha256":")") + Sha256Hex("{}") + "\"}"}) {
    EXPECT_EQ(ParseManifest(text).status().code(), absl::StatusCode::kDataLoss)
        << text.substr(0, 50);
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
