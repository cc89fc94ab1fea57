// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/tokens.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/hmac.h"
#include "coordinator/core/access.h"
#include "coordinator/core/journal.h"

namespace lockstep::coordinator {
namespace {

constexpr char kHashLabel[] = "lockstep token";
constexpr absl::string_view kWorkerPrefix = "worker.";
constexpr size_t kHexDigits = 64;
constexpr size_t kMostTokens = 10000;
constexpr size_t kLongestName = 64;
constexpr size_t kLongestNote = 200;
// An expired token is shown for so long.
constexpr absl::Duration kShowExpired = absl::Hours(30 * 24);

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName && name[0] != '-' && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

bool IsExpired(const TokenInfo& info, absl::Time now) {
  return info.has_expires() && FromProto(info.expires()) <= now;
}

absl::Status CheckToken(const TokenInfo& info, absl::Time now) {
  if (!IsName(info.user())) {
    return absl::InvalidArgumentError(absl::StrCat("a token's user has 1 to ", kLongestName,
                                                   " letters, digits, '.', '_' and '-'"));
  }
  const bool of_a_token = info.role() == ROLE_SUBMIT || info.role() == ROLE_OPERATE ||
                          info.role() == ROLE_ADMIN || info.role() == ROLE_JOIN;
  if (!of_a_token) {
    return absl::InvalidArgumentError("a token's role is submit, operate, admin or join");
  }
  if (info.note().size() > kLongestNote ||
      std::any_of(info.note().begin(), info.note().end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError(absl::StrCat("a token's note has ", kLongestNote,
                                                   " bytes at most, and no control characters"));
  }
  if (IsExpired(info, now)) return absl::InvalidArgumentError("the token would have expired");
  return absl::OkStatus();
}

void Write(Context& context, const std::string& id) {
  std::string value = Bytes(context.state.tokens.at(id));
  context.state.saved[TokenKey(id)] = value;
  context.effects.rows.push_back({TokenKey(id), std::move(value)});
}

void Forget(Context& context, const std::string& id) {
  context.state.token_of_hash.erase(context.state.tokens.at(id).sha256());
  context.state.tokens.erase(id);
  EraseRow(context, TokenKey(id));
}

void ForgetExpired(Context& context) {
  std::vector<std::string> old;
  for (const auto& [id, record] : context.state.tokens) {
    if (IsExpired(record.info(), context.now - kShowExpired)) old.push_back(id);
  }
  for (const std::string& id : old) Forget(context, id);
}

std::string WorkerDigits(const State& state, const std::string& incarnation) {
  return absl::BytesToHexString(HmacSha256(state.secret, absl::StrCat("worker ", incarnation)));
}

}  // namespace

std::string TokenHash(absl::string_view secret) {
  return HmacSha256(kHashLabel, std::string_view(secret.data(), secret.size()));
}

absl::Status CreateToken(Context& context, const TokenCreated& event) {
  if (absl::Status may = CheckCall("Access/CreateToken", event.record.by()); !may.ok()) return may;
  TokenRecord record = event.record;
  TokenInfo& info = *record.mutable_info();
  // The clock that `expires` is of; the core's own may be apart (service/wall_clock.h).
  const absl::Time created = info.has_created() ? FromProto(info.created()) : context.now;
  if (absl::Status fits = CheckToken(info, created); !fits.ok()) return fits;
  ForgetExpired(context);
  State& state = context.state;
  if (state.tokens.size() >= kMostTokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMostTokens, " tokens: revoke some"));
  }
  *info.mutable_created() = ToProto(created);
  info.set_created_by(record.by().user());
  record.clear_by();
  const std::string id = info.id();
  state.token_of_hash[record.sha256()] = id;
  state.tokens[id] = std::move(record);
  Write(context, id);
  return absl::OkStatus();
}

absl::Status RevokeToken(Context& context, const TokenRevoked& event) {
  State& state = context.state;
  const auto found = state.tokens.find(event.id);
  // Nobody learns of others' tokens that they are there.
  const bool within_reach =
      found != state.tokens.end() &&
      CheckOwner("Access/RevokeToken", event.by, found->second.info().user(), "").ok();
  if (absl::Status may = CheckCall("Access/RevokeToken", event.by); !may.ok()) return may;
  if (!within_reach) {
    return absl::NotFoundError(
        absl::StrCat("there is no token '", event.id, "'; 'launcher token list' shows them"));
  }
  Forget(context, event.id);
  for (const auto& [id, node] : state.nodes) {
    if (node.session == 0 || node.token_id != event.id) continue;
    ToAgent end;
    end.session = node.session;
    end.command.mutable_rejected()->set_reason("its token was revoked");
    end.command.mutable_rejected()->set_kind(Rejected::REVOKED);
    end.close = true;
    context.effects.to_agents.push_back(std::move(end));
  }
  return absl::OkStatus();
}

const TokenInfo* FindToken(const State& state, absl::string_view secret, absl::Time now) {
  const auto found = state.token_of_hash.find(TokenHash(secret));
  if (found == state.token_of_hash.end()) return nullptr;
  const TokenInfo& info = state.tokens.at(found->second).info();
  return IsExpired(info, now) ? nullptr : &info;
}

absl::Status WhyNotTaken(const State& state, absl::string_view secret) {
  const auto found = state.token_of_hash.find(TokenHash(secret));
  const std::string why =
      found == state.token_of_hash.end()
          ? "the coordinator does not know the token that was shown: it was revoked, is mistyped, "
            "or is another coordinator's"
          : absl::StrCat(
                "the token that was shown expired on ",
                absl::FormatTime("%Y-%m-%d at %H:%M:%S UTC",
                                 FromProto(state.tokens.at(found->second).info().expires()),
                                 absl::UTCTimeZone()));
  return absl::UnauthenticatedError(
      absl::StrCat(why, "; ask an administrator for another one (`launcher token create`)"));
}

ListTokensResponse ListTokens(const State& state, const Requester& who) {
  ListTokensResponse response;
  for (const auto& [id, record] : state.tokens) {
    if (!CheckOwner("Access/ListTokens", who, record.info().user(), "").ok()) continue;
    *response.add_tokens() = record.info();
  }
  std::stable_sort(response.mutable_tokens()->begin(), response.mutable_tokens()->end(),
                   [](const TokenInfo& a, const TokenInfo& b) {
                     return FromProto(a.created()) < FromProto(b.created());
                   });
  return response;
}

std::string WorkerToken(const State& state, const std::string& incarnation) {
  if (state.secret.empty()) return "";
  return absl::StrCat(kWorkerPrefix, incarnation, ".", WorkerDigits(state, incarnation));
}

std::string WorkerOf(const State& state, absl::string_view token) {
  if (state.secret.empty() || !absl::ConsumePrefix(&token, kWorkerPrefix)) return "";
  if (token.size() <= kHexDigits || token[token.size() - kHexDigits - 1] != '.') return "";
  std::string incarnation(token.substr(0, token.size() - kHexDigits - 1));
  // Hashes of both are compared, so that the time says nothing of the digits.
  const absl::string_view digits = token.substr(token.size() - kHexDigits);
  if (TokenHash(digits) != TokenHash(WorkerDigits(state, incarnation))) return "";
  return incarnation;
}

std::string TokenKey(const std::string& id) { return absl::StrCat("token/", id); }

bool RestoreToken(const std::string& id, const std::string& value, State& state) {
  TokenRecord record;
  if (!record.ParseFromString(value) || record.info().id() != id) return false;
  state.token_of_hash[record.sha256()] = id;
  state.tokens[id] = std::move(record);
  return true;
}

void WriteOwedTokens(Context& context) {
  const std::set<std::string> owed = std::exchange(context.state.owed_tokens, {});
  for (const std::string& id : owed) {
    if (context.state.tokens.count(id) != 0) Write(context, id);
  }
}

}  // namespace lockstep::coordinator
