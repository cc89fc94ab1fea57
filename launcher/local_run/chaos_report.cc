// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/chaos_report.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {
namespace {

bool Happened(const Suffered& one) {
  return one.time_nanos != 0 || one.injection.action == chaos::Action::kSlow;
}

}  // namespace

std::vector<Suffered> ReadSuffered(const std::string& run_dir,
                                   const std::vector<chaos::Injection>& injections) {
  std::vector<Suffered> all;
  for (size_t i = 0; i < injections.size(); ++i) {
    Suffered one{injections[i], 0, 0};
    std::ifstream file(absl::StrCat(run_dir, "/", chaos::kFolder, "/", i));
    file >> one.time_nanos >> one.pid;
    all.push_back(one);
  }
  return all;
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
  return absl::StrCat("[",
                      absl::StrJoin(all, ",",
                                    [](std::string* out, const Suffered& one) {
                                      absl::StrAppendFormat(
                                          out, R"({"fault":%s,"happened":%s,"time":%.9f,"pid":%d})",
                                          JsonString(chaos::ToString(one.injection)),
                                          Happened(one) ? "true" : "false",
                                          static_cast<double>(one.time_nanos) * 1e-9, one.pid);
                                    }),
                      "]");
}

}  // namespace lockstep::launcher
