// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/data_identity.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utf8.h"

namespace lockstep::worker {
namespace {

// Each once: both splits may be of one file. Paths are text.
std::vector<checkpoint::DataRecord> DataRecordsOf(const std::vector<data::FileFingerprint>& files) {
  std::vector<checkpoint::DataRecord> records;
  for (const data::FileFingerprint& file : files) {
    const checkpoint::DataRecord record{PathText(file.path), file.bytes, file.hash};
    if (std::find(records.begin(), records.end(), record) == records.end()) {
      records.push_back(record);
    }
  }
  return records;
}

}  // namespace

std::string PathText(const std::string& path) {
  return ToUtf8(path) == path ? path : Printable(path);
}

DataIdentity::DataIdentity(data::Source source, bool evaluates, uint64_t stamp)
    : source_(std::move(source)), evaluates_(evaluates), stamp_(stamp) {}

void DataIdentity::Know(const std::vector<data::FileFingerprint>& files) {
  for (const data::FileFingerprint& file : files) {
    std::error_code error;
    if (std::filesystem::is_directory(file.path, error)) return;
  }
  absl::MutexLock lock(&mu_);
  records_ = DataRecordsOf(files);
}

std::vector<checkpoint::DataRecord> DataIdentity::Records(const checkpoint::GoOn& go_on) {
  absl::MutexLock lock(&mu_);
  if (records_.has_value()) return *records_;
  const absl::StatusOr<std::vector<data::FileFingerprint>> files = data::FingerprintFiles(
      source_, {.test = evaluates_, .folder_bytes = data::kWholeBytes, .go_on = go_on});
  if (absl::IsCancelled(files.status())) return {};
  records_.emplace();
  if (files.ok()) {
    *records_ = DataRecordsOf(*files);
  } else {
    LS_LOG_WARNING << "checkpoints are not told from those of other data: "
                   << files.status().message();
  }
  return *records_;
}

bool DataIdentity::Changed() const { return data::StampFiles(source_, evaluates_) != stamp_; }

std::vector<checkpoint::DataRecord> DataIdentity::RecordsAsMade(const checkpoint::GoOn& go_on) {
  std::vector<checkpoint::DataRecord> records = Records(go_on);
  if (records.empty() || !Changed()) return records;
  LS_LOG_WARNING << "files of the data were written to since this worker opened them; checkpoints "
                 << "are not told from those of other data";
  return {};
}

}  // namespace lockstep::worker
