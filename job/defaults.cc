// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "job/meaning/defaults.h"
#include "job/resolve.h"
#include "job/schema.h"

namespace lockstep::job {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The file's name without its folder and ending, as a job may be named.
std::string NameFromFile(const std::string& file) {
  std::string stem = file.substr(file.rfind('/') + 1);
  const size_t dot = stem.rfind('.');
  if (dot != std::string::npos && dot > 0) stem.resize(dot);
  for (char& c : stem) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') c = '-';
  }
  const auto first =
      std::find_if(stem.begin(), stem.end(), [](char c) { return absl::ascii_isalnum(c); });
  stem.erase(stem.begin(), first);
  if (stem.size() > kMostNameLength) stem.resize(kMostNameLength);
  return stem.empty() ? "job" : stem;
}

// The table's defaults, in `message` and all that is in it. Messages outside a oneof come to be.
void FillFromTable(const std::string& path, const Written& written, Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string at = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
    if (field.is_repeated()) {
      if (field.message_type() == nullptr || field.is_map()) continue;
      for (int k = 0; k < reflection.FieldSize(*message, &field); ++k) {
        FillFromTable(absl::StrCat(at, "[", k, "]"), written,
                      reflection.MutableRepeatedMessage(message, &field, k));
      }
      continue;
    }
    if (field.message_type() != nullptr && !IsDuration(field)) {
      const bool chosen = field.real_containing_oneof() != nullptr || RuleOf(field).optional;
      if (chosen && !reflection.HasField(*message, &field)) continue;
      FillFromTable(at, written, reflection.MutableMessage(message, &field));
      continue;
    }
    const FieldRule& rule = RuleOf(field);
    if (rule.fallback.empty() || written.count(at)) continue;
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.plain = true;
    node.text = std::string(rule.fallback);
    const std::string error = DecodeScalar(message, field, node);
    LS_CHECK(error.empty()) << rule.field << " " << error;
  }
}

// Makes a list of ranks and the numbers that stand for it agree. Returns how many workers it is.
int32_t FillWorkers(const Written& written, JobSpec* spec) {
  Resources& resources = *spec->mutable_resources();
  const auto& list = resources.ranks_per_node();
  int64_t workers = int64_t{resources.nodes()} * resources.nproc_per_node();
  if (!list.empty()) {
    if (!written.count("resources.nodes")) resources.set_nodes(list.size());
    if (!written.count("resources.nproc_per_node")) {
      resources.set_nproc_per_node(*std::max_element(list.begin(), list.end()));
    }
    workers = std::accumulate(list.begin(), list.end(), int64_t{0});
  }
  return static_cast<int32_t>(std::min<int64_t>(workers, std::numeric_limits<int32_t>::max()));
}

void FillEvalBlock(const Written& written, Train* train) {
  if (written.count("train.eval.block")) return;
  const Data& data = train->data();
  // How long these are their file says, which only workers need to see.
  if (data.npy().vocab() > 0) return;
  int64_t block = kDefaultEvalBlock;
  if (data.has_text()) block = EvalBlockOfTokens(data.text().length());
  if (data.has_tokens()) block = EvalBlockOfTokens(data.tokens().length());
  train->mutable_eval()->set_block(block);
}

}  // namespace

void FillDefaults(const std::string& file, const Written& written, JobSpec* spec) {
  FillFromTable("", written, spec);
  if (!written.count("name")) spec->set_name(NameFromFile(file));
  const int32_t workers = FillWorkers(written, spec);
  if (spec->has_run() && !written.count("restart.max_restarts")) {
    spec->mutable_restart()->set_max_restarts(kDefaultCommandRestarts);
  }
  if (spec->has_checkpoint() && spec->checkpoint().dir().empty()) {
    spec->mutable_checkpoint()->set_dir(absl::StrCat("runs/", spec->name()));
  }
  if (!spec->has_train()) return;
  if (!written.count("train.shards")) spec->mutable_train()->set_shards(workers);
  FillEvalBlock(written, spec->mutable_train());
  if (spec->train().schedule().kind_case() == Schedule::KIND_NOT_SET) {
    spec->mutable_train()->mutable_schedule()->mutable_constant();
  }
}

}  // namespace lockstep::job
