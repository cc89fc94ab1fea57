// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/chaos_report.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/json.h"

namespace lockstep::launcher {
namespace {

bool Happened(const Suffered& one) {
  return one.time_nanos != 0 || one.injection.action == chaos::Action::kSlow;
}

}  // namespace

std::vector<Suffered> ReadSuffered(const std::string& run_dir, const std::string& job_id,
                                   const std::vector<chaos::Injection>& injections,
                                   const std::set<int>& refused) {
  std::vector<Suffered> all;
  for (size_t i = 0; i < injections.size(); ++i) {
    Suffered one{injections[i], 0, 0};
    std::ifstream file(chaos::MarkFile(run_dir, job_id, static_cast<int>(i)));
    file >> one.time_nanos >> one.pid;
    if (refused.contains(static_cast<int>(i))) one.time_nanos = 0;
    all.push_back(one);
  }
  return all;
}

void AddSuffered(const std::vector<Suffered>& all, bool json, std::string* result) {
  if (!json) return absl::StrAppend(result, SufferedText(all));
  result->replace(result->rfind('}'), 1, absl::StrCat(",\"injections\":", SufferedJson(all), "}"));
}

std::string SufferedText(const std::vector<Suffered>& all) {
  int happened = 0;
  std::string text;
  for (const Suffered& one : all) {
    happened += Happened(one) ? 1 : 0;
    if (!Happened(one)) {
      absl::StrAppend(&text, "did not happen: ", chaos::ToString(one.injection), "\n");
    }
  }
  return absl::StrCat(text, happened, " of ", all.size(), " faults happened\n");
}

std::string SufferedJson(const std::vector<Suffered>& all) {
  return JsonArrayOf(all, [](const Suffered& one) {
    return JsonObject()
        .Add("fault", chaos::ToString(one.injection))
        .Add("happened", Happened(one))
        .Add("time", static_cast<double>(one.time_nanos) * 1e-9)
        .Add("pid", one.pid)
        .Done();
  });
}

}  // namespace lockstep::launcher
