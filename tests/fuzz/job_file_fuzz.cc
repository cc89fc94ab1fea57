// SPDX-License-Identifier: Apache-2.0
// Any text is a job file or a list of errors, never a crash; a job that is accepted comes back from
// its own YAML. The text after a line "#set" is a --set.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "job/job_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: a fuzz target is one function
  std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> sets;
  const std::string mark = "\n#set ";
  if (const size_t at = text.find(mark); at != std::string::npos) {
    sets.push_back(text.substr(at + mark.size()));
    text.resize(at);
  }
  const job::LoadResult result = job::ParseJob(text, "fuzz.yaml", sets);
  result.FormatErrors();
  const std::string yaml = job::ToYaml(result.spec);
  const std::string json = job::ToJson(result.spec);
  if (!result.ok()) return 0;
  const job::LoadResult again = job::ParseJob(yaml, "again.yaml", {});
  LS_CHECK(again.ok()) << yaml << again.FormatErrors();
  LS_CHECK(job::ToJson(again.spec) == json) << yaml;
  return 0;
}
