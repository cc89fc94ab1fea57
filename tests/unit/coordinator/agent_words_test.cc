// SPDX-License-Identifier: Apache-2.0
// What agents say of their nodes has bounds: a store may take no key of any length.
#include "coordinator/core/agent_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"

namespace lockstep::coordinator {
namespace {

using ::testing::EndsWith;

AgentSaid Hello(const std::string& node_id) {
  AgentSaid said;
  said.session = 1;
  AgentHello& hello = *said.message.mutable_hello();
  hello.set_node_id(node_id);
  hello.set_incarnation("n1-1");
  hello.set_host("host-1");
  hello.set_slots(1);
  hello.set_protocol_version(1);
  return said;
}

class AgentWordsTest : public ::testing::Test {
 protected:
  Effects Do(const Event& event) { return Step(state_, event, now_ += absl::Seconds(1)); }
  // With which words the agent is refused, as one whose hello is malformed; empty: it is not.
  std::string WhyRefused(const AgentSaid& said) {
    const Effects effects = Do(said);
    for (const ToAgent& message : effects.to_agents) {
      if (!message.command.has_rejected()) continue;
      EXPECT_EQ(message.command.rejected().kind(), Rejected::MALFORMED);
      return message.command.rejected().reason();
    }
    return "";
  }

  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(AgentWordsTest, ALongIdIsRefused) {
  EXPECT_EQ(WhyRefused(Hello(std::string(2 << 20, 'n'))),
            "the agent's node_id has 2097152 bytes, and may have 255");
  EXPECT_TRUE(state_.nodes.empty());
  EXPECT_EQ(WhyRefused(Hello(std::string(255, 'n'))), "");
  EXPECT_EQ(state_.nodes.size(), 1u);
}

TEST_F(AgentWordsTest, ALongHostIsRefused) {
  AgentSaid said = Hello("n1");
  said.message.mutable_hello()->set_host(std::string(256, 'h'));
  EXPECT_EQ(WhyRefused(said), "the agent's host has 256 bytes, and may have 255");
}

TEST_F(AgentWordsTest, ALongLifeIsRefused) {
  AgentSaid said = Hello("n1");
  said.message.mutable_hello()->set_incarnation(std::string(256, 'i'));
  EXPECT_EQ(WhyRefused(said), "the agent's incarnation has 256 bytes, and may have 255");
}

TEST_F(AgentWordsTest, LongLabelsAreRefused) {
  AgentSaid said = Hello("n1");
  auto& labels = *said.message.mutable_hello()->mutable_labels();
  labels["rack"] = std::string(256, 'r');
  EXPECT_EQ(WhyRefused(said), "the agent's label rack has 256 bytes, and may have 255");
  labels.clear();
  labels[std::string(256, 'k')] = "r";
  EXPECT_EQ(WhyRefused(said), "the agent's label has 256 bytes, and may have 255");
  labels.clear();
  for (int i = 0; i <= 256; ++i) labels[absl::StrCat("key", i)] = "r";
  EXPECT_EQ(WhyRefused(said), "the agent has 257 labels, and may have 256");
}

TEST_F(AgentWordsTest, NumbersThatNoHostHasAreRefused) {
  AgentSaid said = Hello("n1");
  AgentHello& hello = *said.message.mutable_hello();
  hello.set_slots(-5);
  EXPECT_EQ(WhyRefused(said), "the agent has -5 slots, and may have 0 to 65536");
  hello.set_slots(65537);
  EXPECT_EQ(WhyRefused(said), "the agent has 65537 slots, and may have 0 to 65536");
  hello.set_slots(65536);
  hello.set_cores(-1);
  EXPECT_EQ(WhyRefused(said), "the agent has -1 cores");
  hello.set_cores(4);
  hello.set_memory(-1);
  EXPECT_EQ(WhyRefused(said), "the agent has -1 bytes of memory");
  EXPECT_TRUE(state_.nodes.empty());
  hello.set_memory(0);
  EXPECT_EQ(WhyRefused(said), "");
}

TEST_F(AgentWordsTest, ALongProblemIsClipped) {
  AgentSaid said = Hello("n1");
  said.message.mutable_hello()->mutable_health()->set_problem(std::string(1 << 20, 'p'));
  Do(said);
  EXPECT_EQ(state_.nodes.at("n1").problem,
            absl::StrCat(std::string(4096, 'p'), "... (clipped: 1048576 bytes)"));
}

TEST_F(AgentWordsTest, NoCharacterIsCutInTwo) {
  std::string problem(4095, 'p');
  absl::StrAppend(&problem, "\u00e9 and more");
  const std::string clipped = ClippedProblem(problem);
  EXPECT_EQ(clipped.substr(0, 4098), absl::StrCat(std::string(4095, 'p'), "..."));
  EXPECT_THAT(clipped, EndsWith(" bytes)"));
}

}  // namespace
}  // namespace lockstep::coordinator
