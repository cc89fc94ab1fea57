// SPDX-License-Identifier: Apache-2.0
// The verb of an administrator of users: token.
#include <sys/stat.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/json.h"
#include "common/printable.h"
#include "coordinator/client/access.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/run_verb.h"
#include "launcher/verbs/tables.h"

namespace lockstep::launcher {
namespace {

// "submit".
std::string NameOf(Role role) {
  const std::string name = Role_Name(role);
  return absl::AsciiStrToLower(name.substr(name.find('_') + 1));
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string ExpiryOf(const TokenInfo& info) {
  return info.has_expires() ? TimeText(info.expires()) : "never";
}

std::string TokensJson(const ListTokensResponse& response) {
  JsonArray tokens;
  for (const TokenInfo& info : response.tokens()) {
    JsonObject token;
    token.Add("id", info.id()).Add("user", info.user()).Add("role", NameOf(info.role()));
    token.Add("created", TimeText(info.created())).Add("created_by", info.created_by());
    if (info.has_expires()) token.Add("expires", TimeText(info.expires()));
    token.Add("note", info.note());
    tokens.Raw(token.Done());
  }
  return JsonObject().Add("schema", 1).Raw("tokens", tokens.Done()).Done() + "\n";
}

std::string TokensTable(const ListTokensResponse& response) {
  std::vector<std::vector<std::string>> rows = {
      {"ID", "USER", "ROLE", "CREATED", "BY", "EXPIRES", "NOTE"}};
  for (const TokenInfo& info : response.tokens()) {
    rows.push_back({info.id(), Printable(info.user()), NameOf(info.role()),
                    TimeText(info.created()), Printable(info.created_by()), ExpiryOf(info),
                    Printable(info.note())});
  }
  return AlignedTable(rows);
}

int Create(const TokenArgs& args, const coordinator::ClientOptions& options) {
  struct stat there;
  if (!args.save_as.empty() && ::lstat(args.save_as.c_str(), &there) == 0) {
    return Complain(absl::AlreadyExistsError(
        absl::StrCat("'", args.save_as,
                     "' is there: --save-as writes a new file, so that no token "
                     "is lost; name another one or remove it")));
  }
  CreateTokenRequest request;
  request.set_user(args.user);
  request.set_note(args.note);
  for (const Role role : {ROLE_SUBMIT, ROLE_OPERATE, ROLE_ADMIN, ROLE_JOIN}) {
    if (NameOf(role) == args.role) request.set_role(role);
  }
  if (args.valid_for.has_value()) {
    request.mutable_valid_for()->set_seconds(absl::ToInt64Seconds(*args.valid_for));
  }
  const auto made = coordinator::CreateToken(options, request, kReplyTimeout);
  if (coordinator::IsUnanswered(made.status())) {
    return Complain(absl::Status(
        made.status().code(),
        absl::StrCat(made.status().message(), "; a token that nobody has may have been made: look ",
                     "for it with `launcher token list`, and revoke it")));
  }
  if (!made.ok()) return Complain(made.status());
  std::cerr << "token " << made->info().id() << " of " << Printable(made->info().user())
            << " with the role " << args.role << "; expires: " << ExpiryOf(made->info())
            << ". It is a secret, and not shown again.\n";
  absl::Status saved;
  if (!args.save_as.empty()) {
    saved = coordinator::WritePrivateFile(args.save_as, "token file",
                                          absl::StrCat(made->token(), "\n"), /*replace=*/true);
  } else if (::signal(SIGPIPE, SIG_IGN); !(std::cout << made->token() << std::endl)) {
    saved = absl::DataLossError("the token cannot be written to stdout");
  }
  if (saved.ok()) return kExitOk;
  RevokeTokenRequest nobodys;
  nobodys.set_id(made->info().id());
  const absl::Status revoked = coordinator::RevokeToken(options, nobodys, kReplyTimeout).status();
  return Complain(absl::Status(
      saved.code(), absl::StrCat(saved.message(), revoked.ok() ? "; the token is revoked again"
                                                               : "; revoke the token")));
}

// The caller's own token with a new certificate, into the file that it came from.
int Renew(const TokenArgs& args, const coordinator::ClientOptions& options) {
  const std::string& file = args.save_as.empty() ? args.coordinator.token_file : args.save_as;
  const auto before = args.save_as.empty() && !file.empty()
                          ? coordinator::ReadTokens(file)
                          : absl::StatusOr<std::vector<std::string>>(std::vector<std::string>(1));
  if (!before.ok()) return Complain(before.status());
  if (before->size() > 1) {
    return Complain(absl::FailedPreconditionError(absl::StrCat(
        "'", file, "' has several tokens, as that of a cluster's own may: `coordinator ",
        "init` renews it")));
  }
  const auto renewed = coordinator::RenewToken(options, /*whatever=*/true, kReplyTimeout);
  if (!renewed.ok()) return Complain(renewed.status());
  if (!renewed->has_value()) {
    std::cerr << "the token has no certificate, and needs none here\n";
    return kExitOk;
  }
  if (file.empty()) {
    std::cout << **renewed << std::endl;
    return kExitOk;
  }
  const absl::Status saved = coordinator::WritePrivateFile(
      file, "token file", absl::StrCat(**renewed, "\n"), /*replace=*/true);
  if (!saved.ok()) return Complain(saved);
  std::cerr << "the token in " << file << " has a new certificate\n";
  return kExitOk;
}

}  // namespace

int RunVerb(const TokenArgs& args) {
  const auto options = ClientOptionsOf(args.coordinator);
  if (!options.ok()) return Complain(options.status());
  if (args.action == "create") return Create(args, *options);
  if (args.action == "renew") return Renew(args, *options);
  if (args.action == "revoke") {
    RevokeTokenRequest request;
    request.set_id(args.id);
    const auto revoked = coordinator::RevokeToken(*options, request, kReplyTimeout);
    if (!revoked.ok()) return Complain(revoked.status());
    std::cerr << "token " << Printable(args.id) << " is taken no more\n";
    return kExitOk;
  }
  if (args.action == "whoami") {
    const auto who = coordinator::WhoAmI(*options, kReplyTimeout);
    if (!who.ok()) return Complain(who.status());
    std::cout << JsonObject()
                     .Add("user", who->user())
                     .Add("role", NameOf(who->role()))
                     .Add("token", who->token_id())
                     .Done()
              << "\n";
    return kExitOk;
  }
  const auto tokens = coordinator::ListTokens(*options, kReplyTimeout);
  if (!tokens.ok()) return Complain(tokens.status());
  std::cout << (args.common.output == Output::kJson ? TokensJson(*tokens) : TokensTable(*tokens));
  return kExitOk;
}

}  // namespace lockstep::launcher
