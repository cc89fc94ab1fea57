// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

class MemoryStore : public Store {
 public:
  absl::StatusOr<std::vector<StoredRow>> GetAll() override {
    absl::MutexLock lock(&mu_);
    std::vector<StoredRow> rows;
    for (const auto& [key, row] : rows_) rows.push_back(row);
    return rows;
  }

  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    absl::MutexLock lock(&mu_);
    if (rows.empty()) return revision_;
    LS_RETURN_IF_ERROR(CheckKeys(rows));
    for (const Put& put : rows) {
      if (put.expected_revision < 0) continue;
      const auto found = rows_.find(put.key);
      const int64_t revision = found == rows_.end() ? 0 : found->second.revision;
      if (revision != put.expected_revision) {
        return absl::AbortedError(absl::StrCat("row ", put.key, " has revision ", revision,
                                               ", not ", put.expected_revision));
      }
    }
    ++revision_;
    for (const Put& put : rows) {
      if (put.erase) {
        rows_.erase(put.key);
      } else {
        rows_[put.key] = {put.key, put.value, revision_};
      }
    }
    return revision_;
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, StoredRow> rows_ ABSL_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace lockstep::coordinator
