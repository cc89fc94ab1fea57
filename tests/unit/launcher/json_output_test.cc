// SPDX-License-Identifier: Apache-2.0
// The launcher's JSON: what docs/json_output.md says, numbers as numbers, and nothing in it that a
// terminal obeys.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "google/protobuf/timestamp.pb.h"
#include "gtest/gtest.h"
#include "launcher/follow/result.h"
#include "launcher/verbs/fetch.h"
#include "launcher/verbs/run_verb.h"
#include "launcher/verbs/tables.h"
#include "launcher/verbs/top.h"
#include "launcher/verbs/validate.h"
#include "nlohmann/json.hpp"
#include "tests/json_documents.h"

namespace lockstep::launcher {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kNasty[] = "a\x1b[31m\x7f\n\xff\xC2\x9B";

// Gives every field a value, messages inside the same one once.
void Fill(Message* message, int depth = 0) {
  if (message->GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    static_cast<google::protobuf::Timestamp*>(message)->set_seconds(1000);
    return;
  }
  const google::protobuf::Reflection& r = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message->GetDescriptor()->field(i);
    const bool many = field.is_repeated();
    if (field.is_map() || field.real_containing_oneof() != nullptr) continue;
#define LS_SET_(Type, value) \
  (many ? r.Add##Type(message, &field, value) : r.Set##Type(message, &field, value))
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        LS_SET_(Bool, true);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        LS_SET_(Int32, 7);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        LS_SET_(Int64, int64_t{1} << 53);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        LS_SET_(UInt64, ~uint64_t{0});
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        LS_SET_(Double, 0.1);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        LS_SET_(String, kNasty);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        LS_SET_(EnumValue, 1);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth > 6 || field.message_type() == JobSpec::descriptor()) break;
        Fill(many ? r.AddMessage(message, &field) : r.MutableMessage(message, &field),
             field.message_type() == message->GetDescriptor() ? 7 : depth + 1);
        break;
      default:
        ADD_FAILURE() << field.full_name();
    }
#undef LS_SET_
  }
}

template <typename MessageType>
MessageType Filled() {
  MessageType message;
  Fill(&message);
  return message;
}

// Nothing but printable text and the line feed at its end.
void ExpectHarmless(const std::string& text) {
  for (const char c : text.substr(0, text.size() - 1)) {
    EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7F) << text;
  }
  EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos) << text;
  EXPECT_EQ(text.find('\xff'), std::string::npos) << text;
}

class JsonOutput : public testing::Test {
 protected:
  void Check(const std::string& section, const std::string& text) {
    SCOPED_TRACE(section);
    ExpectHarmless(text);
    documents_.Check(section, text);
  }
  JsonDocuments documents_{LOCKSTEP_SOURCE_DIR "/docs/json_output.md"};
};

TEST_F(JsonOutput, OfACoordinatorsAnswers) {
  Check("launcher list", ListJson(Filled<ListJobsResponse>()));
  Check("launcher list", ListJson({}));
  Check("launcher describe", DescribeJson(Filled<DescribeJobResponse>()));
  Check("launcher describe", DescribeJson({}));
  Check("launcher nodes", NodesJson(Filled<GetClusterResponse>()));
  Check("launcher nodes", NodesJson({}));
  Check("launcher usage", UsageJson(Filled<GetUsageResponse>()));
  const TopFigures figures{Filled<GetClusterResponse>(), {Filled<DescribeJobResponse>(), {}}};
  Check("launcher top", TopJson(figures));
  Check("launcher fetch",
        FetchJson({.folder = "runs/x-1", .files = 3, .missing = {"host a: away"}}));
  Check("launcher fetch", FetchJson({}));
  documents_.ExpectAllWritten();
}

TEST_F(JsonOutput, KeysAreThereAlsoWhenTheyHaveNothingToSay) {
  ListJobsResponse response;
  response.add_jobs()->set_job_id("j");
  const auto list = nlohmann::json::parse(ListJson(response));
  const auto full = nlohmann::json::parse(ListJson(Filled<ListJobsResponse>()));
  for (const auto& [key, value] : full["jobs"][0].items()) {
    const bool known = list["jobs"][0].contains(key);
    const bool stamp = value.is_string() && value.get<std::string>().starts_with("1970-");
    EXPECT_NE(known, value.is_object() || stamp) << key;
  }
  EXPECT_TRUE(list["jobs"][0]["age_seconds"].is_null());
  EXPECT_EQ(full["jobs"][0]["generation"], int64_t{1} << 53);
}

TEST_F(JsonOutput, OfValidate) {
  ValidateArgs args;
  args.common.output = Output::kJson;
  args.job.job_file = LOCKSTEP_SOURCE_DIR "/examples/one-step.yaml";
  std::ostringstream out, err;
  EXPECT_EQ(Validate(args, out, err), 0);
  Check("launcher validate", out.str());
  EXPECT_TRUE(nlohmann::json::parse(out.str())["job"]["train"]["global_batch"].is_number());
  EXPECT_EQ(nlohmann::json::parse(out.str())["warnings"].size(), 0u);
  args.job.sets = {"train.epochs=null", "train.steps=5",
                   "train.schedule={step: {milestones: [9]}}"};
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 0);
  Check("launcher validate", out.str());
  EXPECT_EQ(nlohmann::json::parse(out.str())["warnings"][0],
            "'train.schedule.step.milestones': 9 changes nothing, as the run's last step is 5");
  EXPECT_EQ(err.str(), "");
  args.common.output = Output::kTable;
  EXPECT_EQ(Validate(args, out, err), 0);
  EXPECT_EQ(err.str().find("warning: 'train.schedule.step.milestones': 9 changes"), 0u);
  args.common.output = Output::kJson;
  args.job.sets = {"a\x1b=1"};
  out.str("");
  EXPECT_EQ(Validate(args, out, err), 3);
  Check("launcher validate", out.str());
  documents_.ExpectAllWritten();
}

TEST_F(JsonOutput, OfVersion) {
  VersionArgs args;
  args.common.output = Output::kJson;
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  EXPECT_EQ(RunVerb(args), 0);
  std::cout.rdbuf(before);
  Check("launcher version", out.str());
  documents_.ExpectAllWritten();
}

// The tables of json_result.md have their types in words; here they are as code.
TEST_F(JsonOutput, OfAResult) {
  const std::string text = ResultJson(Filled<JobStatus>());
  ExpectHarmless(text);
  const auto result = nlohmann::json::parse(text);
  for (const char* key : {"schema", "exit_code", "workers", "steps", "generations", "restarts"}) {
    EXPECT_TRUE(result[key].is_number_integer()) << key;
  }
  for (const char* key : {"epochs", "wall_seconds", "train_seconds", "samples_per_second"}) {
    EXPECT_TRUE(result[key].is_number()) << key;
  }
  for (const char* key : {"job", "name", "state", "reason", "run_dir"}) {
    EXPECT_TRUE(result[key].is_string()) << key;
  }
  EXPECT_TRUE(result["peak_rss_bytes"][0].is_number_integer());
  EXPECT_TRUE(result["eval"]["samples"].is_number_integer());
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/json_result.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const auto& [key, value] : result["eval"].items()) {
    EXPECT_THAT(page.str(), ::testing::HasSubstr(absl::StrCat("`", key, "`")));
  }
  EXPECT_TRUE(result["faults"][0]["victims"][0].is_number_integer());
  EXPECT_TRUE(result["faults"][0]["last_lines"][0].is_string());
  EXPECT_TRUE(result["model"]["sha256"].is_string());
}

TEST(Terminal, NoTextOfOthersActsOnIt) {
  const auto harmless = [](const std::string& text) {
    for (const char c : text) {
      EXPECT_FALSE((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F) << text;
    }
    EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos) << text;
  };
  harmless(ListTable(Filled<ListJobsResponse>()));
  harmless(NodesTable(Filled<GetClusterResponse>()));
  harmless(DescribeText(Filled<DescribeJobResponse>()));
  harmless(TopTable({Filled<GetClusterResponse>(), {Filled<DescribeJobResponse>()}}));
  harmless(ResultSummary(Filled<JobStatus>()));
  harmless(FaultText(Filled<Fault>()));
}

TEST(Tables, NamesOfAnyLanguageKeepTheColumns) {
  EXPECT_EQ(AlignedTable({{"NAME", "AGE"}, {"gr\xC3\xBC\xC3\x9F", "1s"}, {"abc", "2s"}}),
            "NAME  AGE\n"
            "gr\xC3\xBC\xC3\x9F  1s\n"
            "abc   2s\n");
}

}  // namespace
}  // namespace lockstep::launcher
