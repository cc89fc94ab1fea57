// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/etcd/etcd_store.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

using ::etcdserverpb::Compare;
using ::etcdserverpb::RequestOp;
using ::etcdserverpb::TxnRequest;
using ::etcdserverpb::TxnResponse;

// One endpoint gets so long for a transaction; then the next one is asked, and has twice as long.
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kTryAgain = absl::Milliseconds(50);
// While the journal is read: for each page of it.
constexpr absl::Duration kReadPatience = absl::Seconds(20);
// Revisions that are older than this are forgotten: etcd keeps all until it is told.
constexpr absl::Duration kCompactEvery = absl::Minutes(5);

std::vector<StoredRow> RowsOf(EtcdContent content) {
  std::vector<StoredRow> rows;
  for (auto& [key, row] : content.rows) rows.push_back(std::move(row));
  return rows;
}

class EtcdStore : public Store {
 public:
  explicit EtcdStore(Election* election) : election_(*election), etcd_(*election->etcd()) {}

  // Reads what is there and ends what an earlier leader began.
  absl::Status Init() ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::vector<StoredRow>> GetAll() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override ABSL_LOCKS_EXCLUDED(mu_);
  bool Leads() override { return election_.Leads(); }

 private:
  absl::Status LeadsNoMore() const {
    return absl::AbortedError("this coordinator leads no more, and its writes do not count");
  }
  absl::Status CompareRevisions(absl::Span<const Put> rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A transaction that happens while this one leads and no other has come after the last one.
  TxnRequest Guarded(std::vector<RequestOp> ops) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends it until there is an answer; whether its guards held is in it. An error says that it has
  // not happened.
  absl::StatusOr<TxnResponse> Send(TxnRequest txn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Carries the operations out and makes `newest` the mark. Each transaction writes the mark, with
  // a number of its own, also where what counts stays as it is (`newest_`): so none is carried out
  // after the next one, however late a copy of it comes.
  absl::Status SendMarked(std::vector<RequestOp> ops, EtcdNewest newest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteInParts(const std::map<std::string, EtcdChange>& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves the parts of the newest batch into the rows.
  absl::Status Move() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Note(const EtcdChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RequestOp DropParts() const;
  void CompactNowAndThen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  struct Row {
    int64_t revision = 0;
    int pieces = 1;
  };

  Election& election_;
  EtcdClient& etcd_;
  absl::Mutex mu_;
  std::map<std::string, Row> rows_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> surplus_ ABSL_GUARDED_BY(mu_);  // pieces that an old batch left
  EtcdNewest newest_ ABSL_GUARDED_BY(mu_);
  int64_t newest_mod_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t number_ ABSL_GUARDED_BY(mu_) = 0;  // of transactions
  // What Init has read, until it is asked for or changed: reading it again may take long.
  std::optional<std::vector<StoredRow>> read_ ABSL_GUARDED_BY(mu_);
  EtcdChanges unmoved_ ABSL_GUARDED_BY(mu_);  // of the newest batch, when it lies in parts
  absl::Time compact_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t compact_to_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::Status EtcdStore::Init() {
  absl::MutexLock lock(&mu_);
  LS_ASSIGN_OR_RETURN(const auto all, etcd_.ReadAll(election_.layout().prefix, kReadPatience));
  LS_ASSIGN_OR_RETURN(EtcdContent content, ContentOf(election_.layout(), all));
  for (const auto& [key, row] : content.rows) rows_[key] = {row.revision, 1};
  for (const auto& [key, pieces] : content.pieces) {
    const auto found = rows_.find(key);
    (found == rows_.end() ? surplus_[key] : found->second.pieces) = pieces;
  }
  newest_ = content.newest;
  newest_mod_ = content.newest_mod;
  unmoved_ = std::move(content.unapplied);
  const bool has_parts = content.has_parts;
  read_ = RowsOf(std::move(content));
  if (newest_.parts() > 0) {
    LS_LOG_INFO << "ends the batch that the last leader began: " << unmoved_.changes_size()
                << " rows";
    return Move();
  }
  return has_parts ? SendMarked({DropParts()}, newest_) : absl::OkStatus();
}

absl::StatusOr<std::vector<StoredRow>> EtcdStore::GetAll() {
  {
    absl::MutexLock lock(&mu_);
    if (read_.has_value()) return *std::exchange(read_, std::nullopt);
  }
  return ReadEtcdRows(&etcd_, election_.layout(), kReadPatience);
}

RequestOp EtcdStore::DropParts() const {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(election_.layout().Parts());
  op.mutable_request_delete_range()->set_range_end(RangeEnd(election_.layout().Parts()));
  return op;
}

TxnRequest EtcdStore::Guarded(std::vector<RequestOp> ops) const {
  TxnRequest txn;
  auto* const leads = txn.add_compare();
  leads->set_target(Compare::CREATE);
  leads->set_key(election_.layout().Leader());
  leads->set_create_revision(election_.created());
  auto* const next = txn.add_compare();
  next->set_target(Compare::MOD);
  next->set_key(election_.layout().Newest());
  next->set_mod_revision(newest_mod_);
  for (RequestOp& op : ops) *txn.add_success() = std::move(op);
  txn.add_failure()->mutable_request_range()->set_key(election_.layout().Leader());
  txn.add_failure()->mutable_request_range()->set_key(election_.layout().Newest());
  return txn;
}

absl::StatusOr<TxnResponse> EtcdStore::Send(TxnRequest txn) {
  bool unanswered = false;
  absl::Status refused;
  for (absl::Duration patience = kPatience;; patience *= 2) {
    const absl::Duration left = election_.Until() - election_.clock()->Now();
    if (left <= absl::ZeroDuration()) return LeadsNoMore();
    absl::StatusOr<TxnResponse> answer = etcd_.Txn(txn, std::min(left, patience));
    if (absl::IsUnavailable(answer.status())) {
      unanswered = true;
      election_.clock()->Sleep(kTryAgain);
      continue;
    }
    if (!answer.ok()) {
      // Etcd says that it has no space also of what it has carried out.
      const bool known = !unanswered && !absl::IsResourceExhausted(answer.status());
      if (known || !refused.ok()) return answer.status();
      // It says nothing of the tries that nobody answered: the guards do, which are read alone.
      refused = answer.status();
      txn.clear_success();
      continue;
    }
    // An answer that was waited for too long is none.
    if (!election_.Leads()) return LeadsNoMore();
    if (!answer->succeeded()) {
      const auto& leader = answer->responses(0).response_range();
      if (leader.kvs().empty() || leader.kvs(0).create_revision() != election_.created()) {
        election_.Deposed();
        return LeadsNoMore();
      }
    } else if (!refused.ok()) {
      return refused;
    }
    return answer;
  }
}

absl::Status EtcdStore::SendMarked(std::vector<RequestOp> ops, EtcdNewest newest) {
  newest.set_leader(election_.created());
  newest.set_number(++number_);
  TxnRequest txn = Guarded(std::move(ops));
  auto* const mark = txn.add_success()->mutable_request_put();
  mark->set_key(election_.layout().Newest());
  mark->set_value(newest.SerializeAsString());
  LS_ASSIGN_OR_RETURN(const TxnResponse answer, Send(std::move(txn)));
  int64_t mod = answer.header().revision();
  if (!answer.succeeded()) {
    // It had happened, and the reply was lost; or an earlier one happened after its refusal.
    const auto& found = answer.responses(1).response_range();
    EtcdNewest there;
    if (found.kvs().empty() || !there.ParseFromString(found.kvs(0).value()) ||
        there.leader() != newest.leader() || there.number() != newest.number()) {
      election_.Deposed();
      return absl::AbortedError("etcd holds a batch that this coordinator takes for refused");
    }
    mod = found.kvs(0).mod_revision();
  }
  newest_ = std::move(newest);
  newest_mod_ = mod;
  return absl::OkStatus();
}

void EtcdStore::Note(const EtcdChange& change) {
  surplus_.erase(change.key());
  if (change.erase()) {
    rows_.erase(change.key());
  } else {
    rows_[change.key()] = {newest_.revision(), PiecesAfter(change)};
  }
}

absl::Status EtcdStore::CompareRevisions(absl::Span<const Put> rows) {
  for (const Put& put : rows) {
    if (put.expected_revision < 0) continue;
    const auto found = rows_.find(put.key);
    const int64_t revision = found == rows_.end() ? 0 : found->second.revision;
    if (revision == put.expected_revision) continue;
    return absl::AbortedError(
        absl::StrCat("row ", put.key, " has revision ", revision, ", not ", put.expected_revision));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EtcdStore::PutBatch(absl::Span<const Put> rows) {
  absl::MutexLock lock(&mu_);
  if (!election_.Leads()) return LeadsNoMore();
  if (newest_.parts() > 0) LS_RETURN_IF_ERROR(Move());  // it could not before
  if (rows.empty()) return newest_.revision();
  read_.reset();
  LS_RETURN_IF_ERROR(CheckKeys(rows));
  LS_RETURN_IF_ERROR(CompareRevisions(rows));
  const std::map<std::string, EtcdChange> changes = ChangesOf(rows);
  std::vector<RequestOp> ops;
  size_t bytes = 0;
  for (const auto& [key, change] : changes) {
    const auto found = rows_.find(key);
    const int pieces = found != rows_.end()       ? found->second.pieces
                       : surplus_.count(key) != 0 ? surplus_[key]
                                                  : 0;
    for (RequestOp& op : OpsOf(election_.layout(), change, newest_.revision() + 1, pieces)) {
      bytes += op.ByteSizeLong();
      ops.push_back(std::move(op));
    }
  }
  if (ops.size() > kEtcdMostOps || bytes > kEtcdMostBytes) {
    LS_RETURN_IF_ERROR(WriteInParts(changes));
  } else {
    EtcdNewest newest;
    newest.set_revision(newest_.revision() + 1);
    LS_RETURN_IF_ERROR(SendMarked(std::move(ops), std::move(newest)));
    for (const auto& [key, change] : changes) Note(change);
  }
  CompactNowAndThen();
  return newest_.revision();
}

absl::Status EtcdStore::WriteInParts(const std::map<std::string, EtcdChange>& changes) {
  // What a batch left that came to nothing is in nobody's way, but must not look like this one's.
  LS_RETURN_IF_ERROR(SendMarked({DropParts()}, newest_));
  const std::vector<std::string> parts = CutChanges(changes);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    RequestOp op;
    op.mutable_request_put()->set_key(election_.layout().Part(static_cast<int>(i)));
    op.mutable_request_put()->set_value(parts[i]);
    LS_RETURN_IF_ERROR(SendMarked({std::move(op)}, newest_));
    text += parts[i];
  }
  EtcdNewest newest;
  newest.set_revision(newest_.revision() + 1);
  newest.set_parts(static_cast<int>(parts.size()));
  newest.set_hash(EtcdHash("", text));
  LS_RETURN_IF_ERROR(SendMarked({}, std::move(newest)));
  // From here on it counts, whatever becomes of the move.
  unmoved_.Clear();
  for (const auto& [key, change] : changes) *unmoved_.add_changes() = change;
  if (absl::Status moved = Move(); absl::IsAborted(moved)) return moved;
  return absl::OkStatus();
}

absl::Status EtcdStore::Move() {
  std::vector<RequestOp> ops;
  for (const EtcdChange& change : unmoved_.changes()) {
    // Some of it may have been moved, and there may be more pieces than the row says.
    for (RequestOp& op : OpsOf(election_.layout(), change, newest_.revision(), 1 << 20)) {
      ops.push_back(std::move(op));
    }
  }
  for (std::vector<RequestOp>& some : CutOps(std::move(ops))) {
    LS_RETURN_IF_ERROR(SendMarked(std::move(some), newest_));
  }
  EtcdNewest newest;
  newest.set_revision(newest_.revision());
  LS_RETURN_IF_ERROR(SendMarked({DropParts()}, std::move(newest)));
  for (const EtcdChange& change : unmoved_.changes()) Note(change);
  unmoved_.Clear();
  return absl::OkStatus();
}

// Etcd's own history is of no use here, and would fill it. Failures do not matter: a user may not
// have the right, and then somebody else has to see to it.
void EtcdStore::CompactNowAndThen() {
  const absl::Time now = election_.clock()->Now();
  if (now < compact_at_) return;
  if (compact_to_ > 0) {
    const absl::Status done = etcd_.Compact(compact_to_, kPatience);
    if (!done.ok() && !absl::IsOutOfRange(done) && !absl::IsUnavailable(done)) {
      LS_LOG_WARNING << "etcd's history is not compacted, and grows unless etcd does it "
                        "(--auto-compaction-retention): "
                     << done.message();
    }
  }
  compact_to_ = newest_mod_;
  compact_at_ = now + kCompactEvery;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(Election* election) {
  auto store = std::make_unique<EtcdStore>(election);
  LS_RETURN_IF_ERROR(store->Init());
  return store;
}

absl::StatusOr<std::vector<StoredRow>> ReadEtcdRows(EtcdClient* etcd, const EtcdLayout& layout,
                                                    absl::Duration patience) {
  LS_ASSIGN_OR_RETURN(const auto all, etcd->ReadAll(layout.prefix, patience));
  LS_ASSIGN_OR_RETURN(EtcdContent content, ContentOf(layout, all));
  return RowsOf(std::move(content));
}

}  // namespace lockstep::coordinator
