// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store_flags.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/private_file.h"
#include "coordinator/etcd_trouble.h"
#include "job/meaning/units.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kShortestLease = absl::Seconds(1);
constexpr absl::Duration kLongestLease = absl::Minutes(10);

const std::map<std::string, std::string StoreFlags::*, std::less<>>& Texts() {
  static const auto* const texts =
      new std::map<std::string, std::string StoreFlags::*, std::less<>>{
          {"store-ca", &StoreFlags::ca_file},
          {"store-cert", &StoreFlags::cert_file},
          {"store-key", &StoreFlags::key_file},
          {"store-user", &StoreFlags::user},
          {"advertise", &StoreFlags::advertise},
          {"store-password-file", &StoreFlags::password_file}};
  return *texts;
}

// Errors: NotFound.
absl::Status ReadText(const std::string& flag, const std::string& file, std::string& text) {
  if (file.empty()) return absl::OkStatus();
  std::ifstream in(file, std::ios::binary);
  std::getline(in, text, '\0');  // whole; a folder is an error of the read
  if (in && !text.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("--", flag, ": cannot read '", file, "', or it is empty"));
}

// The same of what is its owner's alone. Errors: FailedPrecondition, too.
absl::Status ReadSecret(absl::string_view flag, const std::string& file, std::string& text) {
  if (file.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(text, ReadPrivateFile(file, absl::StrCat("file of --", flag)));
  if (!text.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--", flag, ": '", file, "' is empty"));
}

// Errors: FailedPrecondition.
absl::Status CheckEncrypted(const StoreFlags& flags, const EtcdOptions& options) {
  if (options.tls || flags.plaintext) return absl::OkStatus();
  for (const std::string& endpoint : options.endpoints) {
    if (IsLoopbackHost(HostOf(endpoint))) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--store: etcd at ", endpoint,
        " is reached over the network, and without TLS whoever sees "
        "its packets reads jobs' secrets and the password of --store-user: write --store "
        "etcds://... and give etcd a certificate (its --cert-file and --key-file); or give "
        "--store-plaintext where nobody else is in the network"));
  }
  return absl::OkStatus();
}

absl::Status SetLease(absl::string_view value, StoreFlags& flags) {
  const auto lease = job::ParseDuration(value);
  if (!lease.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--store-lease: ", lease.status().message()));
  }
  flags.lease = absl::Nanoseconds(*lease);
  if (flags.lease < kShortestLease || flags.lease > kLongestLease ||
      flags.lease != absl::Seconds(absl::ToInt64Seconds(flags.lease))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--store-lease is whole seconds from 1s to 10m (etcd makes 2s of 1s), not '", value, "'"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsStoreFlag(absl::string_view name) {
  return name == "state-dir" || name == "state-sync" || name == "store" || name == "store-lease" ||
         !StoreFlagTakesValue(name) || Texts().find(name) != Texts().end();
}

bool StoreFlagTakesValue(absl::string_view name) { return name != "store-plaintext"; }

absl::Status CheckAttached(absl::string_view name, absl::string_view value) {
  static constexpr absl::string_view kPaths[] = {"state-dir",  "token-file", "store-ca",
                                                 "store-cert", "store-key",  "store-password-file",
                                                 "audit"};
  if (!absl::StartsWith(value, "~") ||
      std::find(std::begin(kPaths), std::end(kPaths), name) == std::end(kPaths)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", name, " has '", value, "': the shell expands '~' behind a space, not behind '='; './",
      value, "' is a folder of that name"));
}

absl::Status SetStoreFlag(absl::string_view name, absl::string_view value, StoreFlags& flags) {
  if (name == "state-dir") {
    flags.state.folder = std::string(value);
  } else if (name == "state-sync") {
    if (value != "full" && value != "off") {
      return absl::InvalidArgumentError(
          absl::StrCat("--state-sync is full or off, not '", value, "'"));
    }
    flags.state.sync = value == "full";
  } else if (name == "store") {
    LS_RETURN_IF_ERROR(ParseEtcdAddress(value).status());
    flags.address = std::string(value);
  } else if (name == "store-plaintext") {
    flags.plaintext = true;
  } else if (name == "store-lease") {
    return SetLease(value, flags);
  } else {
    flags.*Texts().find(name)->second = std::string(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<EtcdOptions> EtcdOptionsOf(const StoreFlags& flags) {
  LS_ASSIGN_OR_RETURN(EtcdOptions options, ParseEtcdAddress(flags.address));
  const bool files = !flags.ca_file.empty() || !flags.cert_file.empty() || !flags.key_file.empty();
  if (files && !options.tls) {
    return absl::InvalidArgumentError(
        "--store-ca, --store-cert and --store-key need --store etcds://... (TLS)");
  }
  if (flags.cert_file.empty() != flags.key_file.empty()) {
    return absl::InvalidArgumentError("--store-cert and --store-key go together");
  }
  if (flags.user.empty() != flags.password_file.empty()) {
    return absl::InvalidArgumentError("--store-user and --store-password-file go together");
  }
  LS_RETURN_IF_ERROR(CheckEncrypted(flags, options));
  LS_RETURN_IF_ERROR(ReadText("store-ca", flags.ca_file, options.authority));
  LS_RETURN_IF_ERROR(ReadText("store-cert", flags.cert_file, options.certificate));
  LS_RETURN_IF_ERROR(ReadSecret("store-key", flags.key_file, options.key));
  LS_RETURN_IF_ERROR(ReadSecret("store-password-file", flags.password_file, options.password));
  options.password = std::string(absl::StripTrailingAsciiWhitespace(options.password));
  options.user = flags.user;
  options.lease = flags.lease;
  options.explain = ExplainEtcd;
  return options;
}

}  // namespace lockstep::coordinator
