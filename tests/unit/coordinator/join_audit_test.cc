// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/join_audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/clock.h"

namespace lockstep::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JoinAuditTest : public testing::Test {
 protected:
  ~JoinAuditTest() override { std::filesystem::remove_all(folder_); }

  static std::string NewFolder() {
    std::string folder = testing::TempDir() + "join_auditXXXXXX";
    return mkdtemp(folder.data());
  }

  static AgentMessage Hello(const std::string& node) {
    AgentMessage message;
    message.mutable_hello()->set_node_id(node);
    message.mutable_hello()->set_host("host-of-" + node);
    return message;
  }
  static AgentCommand Refusal(Rejected::Kind kind, const std::string& why) {
    AgentCommand command;
    command.mutable_rejected()->set_kind(kind);
    command.mutable_rejected()->set_reason(why);
    return command;
  }
  static AgentCommand RunNothing() {
    AgentCommand command;
    command.mutable_desired();
    return command;
  }
  std::vector<std::string> Lines() {
    EXPECT_TRUE(audit_.AwaitWritten().ok());
    std::vector<std::string> lines;
    std::ifstream file(file_);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const std::string folder_ = NewFolder();
  const std::string file_ = folder_ + "/join_audit.jsonl";
  Audit audit_{file_, Clock::Real(), Clock::Real()};
  JoinAudit joins_{&audit_, Requester()};
};

TEST_F(JoinAuditTest, ANodeThatIsServedHasJoined) {
  joins_.Said(Hello("n1"));
  EXPECT_THAT(Lines(), ElementsAre()) << "nobody knows yet";
  joins_.Told(RunNothing());
  joins_.Told(Refusal(Rejected::REPLACED, "a newer connection"));
  joins_.Ended();
  EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr(R"("what":"join","on":"n1")"),
                                         HasSubstr(R"("detail":"host-of-n1","outcome":"ok")"))));
}

TEST_F(JoinAuditTest, ANodeThatIsRefusedHasNot) {
  joins_.Said(Hello("n1"));
  joins_.Told(Refusal(Rejected::OTHER_OWNER, "it joined with a token for bob"));
  joins_.Said(Hello("n2"));
  joins_.Told(Refusal(Rejected::MALFORMED, "no host"));
  joins_.Said(AgentMessage());
  joins_.Ended();
  EXPECT_THAT(
      Lines(),
      ElementsAre(AllOf(HasSubstr(R"("on":"n1")"), HasSubstr(R"("outcome":"permission_denied")"),
                        HasSubstr(R"("why":"it joined with a token for bob")")),
                  AllOf(HasSubstr(R"("on":"n2")"), HasSubstr(R"("outcome":"invalid_argument")"))));
}

TEST_F(JoinAuditTest, ANodeThatHearsNothingHasNotEither) {
  joins_.Said(Hello("n1"));
  joins_.Said(Hello("n2"));
  joins_.Ended();
  EXPECT_THAT(Lines(),
              ElementsAre(AllOf(HasSubstr(R"("on":"n1")"), HasSubstr(R"("outcome":"cancelled")")),
                          AllOf(HasSubstr(R"("on":"n2")"), HasSubstr("ended before"))));
}

}  // namespace
}  // namespace lockstep::coordinator
