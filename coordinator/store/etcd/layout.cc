// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/etcd/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

using ::etcdserverpb::KeyValue;
using ::etcdserverpb::RequestOp;

absl::Status Damaged(absl::string_view key) {
  return absl::DataLossError(absl::StrCat("etcd's key '", absl::CEscape(key),
                                          "' is damaged, or of a later version: restore a backup "
                                          "(`coordinator restore`), or start the version that "
                                          "wrote it"));
}

// Puts the newest batch over the rows.
void Overlay(EtcdContent& content) {
  for (const EtcdChange& change : content.unapplied.changes()) {
    if (change.erase()) {
      content.rows.erase(change.key());
    } else {
      content.rows[change.key()] = {change.key(), change.value(), content.newest.revision()};
    }
  }
}

RequestOp PutOp(std::string key, std::string value) {
  RequestOp op;
  op.mutable_request_put()->set_key(std::move(key));
  op.mutable_request_put()->set_value(std::move(value));
  return op;
}

RequestOp DeleteOp(std::string key, std::string end) {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(std::move(key));
  op.mutable_request_delete_range()->set_range_end(std::move(end));
  return op;
}

}  // namespace

std::string EtcdLayout::PiecesOf(absl::string_view row) const {
  return absl::StrCat(Pieces(), absl::BytesToHexString(row), "/");
}

std::string EtcdLayout::Piece(absl::string_view row, int number) const {
  return absl::StrFormat("%s%08d", PiecesOf(row), number);
}

std::string EtcdLayout::Part(int number) const {
  return absl::StrFormat("%s%08d", Parts(), number);
}

std::string RangeEnd(std::string prefix) {
  ++prefix.back();  // '/' in all of ours
  return prefix;
}

uint64_t EtcdHash(absl::string_view key, absl::string_view value) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto take = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char c : key) take(static_cast<unsigned char>(c));
  take(0);
  for (const char c : value) take(static_cast<unsigned char>(c));
  return hash;
}

std::map<std::string, EtcdChange> ChangesOf(absl::Span<const Put> rows) {
  std::map<std::string, EtcdChange> changes;
  for (const Put& put : rows) {
    EtcdChange& change = changes[put.key];
    change.set_key(put.key);
    change.set_erase(put.erase);
    change.set_value(put.erase ? std::string() : put.value);
  }
  return changes;
}

int PiecesAfter(const EtcdChange& change) {
  if (change.erase()) return 0;
  const size_t size = change.value().size();
  return std::max(1, static_cast<int>((size + kEtcdPiece - 1) / kEtcdPiece));
}

std::vector<RequestOp> OpsOf(const EtcdLayout& layout, const EtcdChange& change, int64_t revision,
                             int pieces) {
  std::vector<RequestOp> ops;
  const std::string row = absl::StrCat(layout.Rows(), change.key());
  const int after = PiecesAfter(change);
  if (change.erase()) {
    ops.push_back(DeleteOp(row, ""));
  } else {
    for (int i = 1; i < after; ++i) {
      ops.push_back(PutOp(layout.Piece(change.key(), i),
                          change.value().substr(static_cast<size_t>(i) * kEtcdPiece, kEtcdPiece)));
    }
    EtcdRow stored;
    stored.set_revision(revision);
    stored.set_value(change.value().substr(0, kEtcdPiece));
    stored.set_pieces(after);
    stored.set_hash(EtcdHash(change.key(), change.value()));
    ops.push_back(PutOp(row, stored.SerializeAsString()));
  }
  if (pieces > 1 && pieces > after) {
    ops.push_back(DeleteOp(layout.Piece(change.key(), std::max(after, 1)),
                           RangeEnd(layout.PiecesOf(change.key()))));
  }
  return ops;
}

std::vector<std::vector<RequestOp>> CutOps(std::vector<RequestOp> ops) {
  std::vector<std::vector<RequestOp>> all;
  size_t bytes = 0;
  for (RequestOp& op : ops) {
    const size_t size = op.ByteSizeLong();
    if (all.empty() || all.back().size() >= kEtcdMostOps || bytes + size > kEtcdMostBytes) {
      all.emplace_back();
      bytes = 0;
    }
    bytes += size;
    all.back().push_back(std::move(op));
  }
  return all;
}

std::vector<std::string> CutChanges(const std::map<std::string, EtcdChange>& changes) {
  EtcdChanges message;
  for (const auto& [key, change] : changes) *message.add_changes() = change;
  const std::string text = message.SerializeAsString();
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size(); at += kEtcdPiece) {
    parts.push_back(text.substr(at, kEtcdPiece));
  }
  return parts;
}

absl::StatusOr<EtcdContent> ContentOf(const EtcdLayout& layout, const std::vector<KeyValue>& all) {
  EtcdContent content;
  std::map<std::string, std::string> pieces, parts;
  std::vector<std::pair<std::string, EtcdRow>> rows;
  for (const KeyValue& kv : all) {
    absl::string_view key = kv.key();
    if (key == layout.Newest()) {
      if (!content.newest.ParseFromString(kv.value())) return Damaged(key);
      content.newest_mod = kv.mod_revision();
    } else if (absl::ConsumePrefix(&key, layout.Rows())) {
      auto& [name, row] = rows.emplace_back(key, EtcdRow());
      if (!row.ParseFromString(kv.value()) || row.pieces() < 1) return Damaged(kv.key());
    } else if (absl::ConsumePrefix(&key, layout.Pieces())) {
      const std::pair<std::string, std::string> place =
          absl::StrSplit(key, absl::MaxSplits('/', 1));
      int number = 0;
      if (!absl::SimpleAtoi(place.second, &number)) return Damaged(kv.key());
      int& known = content.pieces[absl::HexStringToBytes(place.first)];
      known = std::max(known, number + 1);
      pieces[kv.key()] = kv.value();
    } else if (absl::StartsWith(key, layout.Parts())) {
      parts[kv.key()] = kv.value();
    }
  }
  content.has_parts = !parts.empty();
  std::string text;
  for (int i = 0; i < content.newest.parts(); ++i) text += parts[layout.Part(i)];
  if (content.newest.parts() > 0 &&
      (EtcdHash("", text) != content.newest.hash() || !content.unapplied.ParseFromString(text))) {
    return Damaged(layout.Parts());
  }
  // A row that the newest batch changes may be half written.
  std::map<std::string, bool> changing;
  for (const EtcdChange& change : content.unapplied.changes()) changing[change.key()] = true;
  for (auto& [key, row] : rows) {
    if (changing.count(key) != 0) continue;
    std::string value = std::move(*row.mutable_value());
    for (int i = 1; i < row.pieces(); ++i) value += pieces[layout.Piece(key, i)];
    if (EtcdHash(key, value) != row.hash() || row.revision() > content.newest.revision()) {
      return Damaged(absl::StrCat(layout.Rows(), key));
    }
    content.rows[key] = {key, std::move(value), row.revision()};
  }
  Overlay(content);
  return content;
}

}  // namespace lockstep::coordinator
