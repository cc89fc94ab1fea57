// SPDX-License-Identifier: Apache-2.0
// The rule table speaks of fields that exist.
#include "job/schema.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace lockstep::job {
namespace {

TEST(Schema, EveryRuleNamesAField) {
  std::set<std::string> seen;
  for (const FieldRule& rule : AllRules()) {
    const std::string name = "lockstep." + std::string(rule.field);
    const auto* field = google::protobuf::DescriptorPool::generated_pool()->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(RuleOf(*field).field, rule.field);
    EXPECT_TRUE(seen.insert(name).second) << name << " has two rules";
  }
}

TEST(Schema, EveryAlternativeNamesAField) {
  for (const Alternatives& entry : AllAlternatives()) {
    const auto* type = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
        "lockstep." + std::string(entry.message));
    ASSERT_NE(type, nullptr);
    for (const std::string& name : entry.fields) EXPECT_NE(type->FindFieldByName(name), nullptr);
  }
}

}  // namespace
}  // namespace lockstep::job
