// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/cluster_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr const char* kLoopback[] = {"localhost", "127.0.0.1", "::1"};

std::string AuthorityFile(const std::string& folder) {
  return absl::StrCat(folder, "/authority.pem");
}
std::string NextAuthorityFile(const std::string& folder) {
  return absl::StrCat(folder, "/next-authority.pem");
}
std::string TokenFile(const std::string& folder) { return absl::StrCat(folder, "/token"); }

absl::StatusOr<std::optional<Certified>> ReadPair(const std::string& file, absl::string_view what) {
  absl::StatusOr<std::string> text = ReadPrivateFile(file, what);
  if (absl::IsNotFound(text.status())) return std::optional<Certified>();
  if (!text.ok()) return text.status();
  absl::StatusOr<Certified> pair = ReadCertified(*text);
  LS_RETURN_IF_ERROR(Annotate(pair.status(), file));
  return std::make_optional(*std::move(pair));
}

absl::Status AddCertified(const std::string& file, absl::string_view what,
                          const Certified& certified, PrivateFiles& files) {
  return files.Add(file, what, absl::StrCat(certified.key, certified.certificate));
}

// The authority of the folder, made when there is none.
absl::StatusOr<Certified> ReadOrMakeAuthority(const std::string& folder, const Token& token,
                                              absl::Time now, PrivateFiles& files, bool& made) {
  const std::string file = AuthorityFile(folder);
  LS_ASSIGN_OR_RETURN(const auto read, ReadPair(file, "authority's file"));
  made = !read.has_value();
  if (!made) return *read;
  if (!token.authority.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " is not there, and ", TokenFile(folder),
                     " belongs to it: put it back; or remove the token and ", ServerFile(folder),
                     " to begin a new cluster, which all nodes and users need the new token for"));
  }
  LS_ASSIGN_OR_RETURN(Certified authority, MakeAuthority(now));
  LS_RETURN_IF_ERROR(AddCertified(file, "authority's file", authority, files));
  return authority;
}

// The authority that is to follow, in a rotation.
absl::StatusOr<std::optional<Certified>> ReadNextAuthority(const std::string& folder) {
  return ReadPair(NextAuthorityFile(folder), "next authority's file");
}

// The authorities of callers as they are to be from now on.
absl::StatusOr<Callers> RenewCallers(const std::string& folder, InitOptions::Rotation rotation,
                                     absl::Time now, PrivateFiles& files, bool& made) {
  LS_ASSIGN_OR_RETURN(const std::optional<Callers> before, ReadCallers(folder));
  made = !before.has_value();
  Callers callers = before.value_or(Callers());
  if (made || rotation == InitOptions::Rotation::kBegin) {
    LS_ASSIGN_OR_RETURN(callers.newest, MakeAuthority(now, "callers"));
    callers.all = callers.newest.certificate + callers.all;
  } else if (rotation == InitOptions::Rotation::kFinish) {
    callers.all = callers.newest.certificate;
  } else {
    return callers;
  }
  LS_RETURN_IF_ERROR(files.Add(CallersFile(folder), "callers' authority's file",
                               absl::StrCat(callers.newest.key, callers.all)));
  return callers;
}

// Begins or ends the replacement of the coordinator's authority. What signs and what tokens carry
// afterwards: `signer` and `trusted` (PEM). `next`: the authority that is to follow, before and
// afterwards.
absl::Status Rotate(InitOptions::Rotation rotation, absl::Time now, Certified& signer,
                    std::string& trusted, std::optional<Certified>& next) {
  trusted = signer.certificate;
  if (rotation == InitOptions::Rotation::kFinish) {
    if (!next.has_value()) {
      return absl::FailedPreconditionError(
          "no rotation is under way: `coordinator init --rotate` begins one");
    }
    signer = *next;
    trusted = next->certificate;
    next.reset();
    return absl::OkStatus();
  }
  if (rotation == InitOptions::Rotation::kBegin) {
    if (next.has_value()) {
      return absl::FailedPreconditionError(
          "a rotation is under way already: `coordinator init --finish-rotation` ends it");
    }
    LS_ASSIGN_OR_RETURN(next, MakeAuthority(now));
  }
  if (next.has_value()) trusted += next->certificate;
  return absl::OkStatus();
}

// One that was to follow an authority that is gone is nobody's successor, and may be as lost as it.
absl::Status ForgetNextAuthority(const std::string& folder) {
  const std::string file = NextAuthorityFile(folder);
  if (::unlink(file.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot remove ", file));
}

// The one that followed is the authority now.
absl::Status ReplaceAuthority(const std::string& folder) {
  if (::rename(NextAuthorityFile(folder).c_str(), AuthorityFile(folder).c_str()) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("cannot replace ", AuthorityFile(folder)));
}

// The token with these authorities and a certificate of these callers'; as it was when it has them.
absl::StatusOr<std::string> Equipped(Token token, const std::string& trusted,
                                     const Certified& callers, absl::Time now) {
  token.authority = trusted;
  const bool has_one = !token.client.certificate.empty() &&
                       CheckIssued(token.client.certificate, callers.certificate).ok();
  if (!has_one) {
    LS_ASSIGN_OR_RETURN(token.client, IssueClient(callers, NameOfToken(token.secret),
                                                  now - kClocksDiffer, absl::InfiniteFuture()));
  }
  return TokenOf(token);
}

// The newest token first. One that was made before there were certificates keeps its secret.
absl::Status AddTokens(const std::string& file, const std::vector<std::string>& before,
                       const std::string& trusted, const Certified& callers, bool another,
                       absl::Time now, PrivateFiles& files) {
  std::vector<std::string> tokens;
  if (before.empty() || another) {
    Token newest;
    newest.secret = RandomHex(kSecretBytes);
    LS_ASSIGN_OR_RETURN(std::string line, Equipped(std::move(newest), trusted, callers, now));
    tokens.push_back(std::move(line));
  }
  for (const std::string& text : before) {
    LS_ASSIGN_OR_RETURN(Token token, ParseToken(text));
    LS_ASSIGN_OR_RETURN(std::string line, Equipped(std::move(token), trusted, callers, now));
    tokens.push_back(std::move(line));
  }
  if (tokens == before) return absl::OkStatus();
  return files.Add(file, "token file", absl::StrCat(absl::StrJoin(tokens, "\n"), "\n"));
}

// A colon is one of an IPv6 address. What else is wrong with a name is found when it is certified.
absl::Status CheckHost(const std::string& host) {
  in6_addr address;
  if (!absl::StrContains(host, ':') || ::inet_pton(AF_INET6, host.c_str(), &address) == 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", host, "' is neither a host's name nor a numeric address: give it without ",
                   "the port, and one of IPv6 without brackets"));
}

void AddOnce(const std::string& name, std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

std::vector<std::string> OwnNames() {
  std::vector<std::string> names;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 ||
          (one->ifa_flags & IFF_LOOPBACK) != 0) {
        continue;
      }
      const int family = one->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      char text[NI_MAXHOST];
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(one->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 &&
          !absl::StrContains(text, "%")) {  // one of the link alone
        AddOnce(text, names);
      }
    }
  }
  char host[HOST_NAME_MAX + 1] = "";
  if (::gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0') AddOnce(host, names);
  for (const char* name : kLoopback) AddOnce(name, names);
  return names;
}

absl::Status MakeStateFolder(const std::string& folder, absl::string_view verb) {
  for (size_t slash = folder.find('/', 1); slash != folder.npos;
       slash = folder.find('/', slash + 1))
    ::mkdir(folder.substr(0, slash).c_str(), 0755);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make the folder ", folder));
  }
  struct stat status;
  if (::stat(folder.c_str(), &status) != 0) return ErrnoStatus(errno, folder);
  if (status.st_uid == ::geteuid()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the folder ", folder, " belongs to user ",
                                                    status.st_uid, ": run `coordinator ", verb,
                                                    "` as that user, as the coordinator runs"));
}

absl::StatusOr<InitResult> InitCluster(const std::string& folder, const InitOptions& options,
                                       absl::Time now) {
  LS_RETURN_IF_ERROR(MakeStateFolder(folder, "init"));
  InitResult result;
  result.token_file = TokenFile(folder);
  Token token;
  absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(result.token_file);
  if (absl::IsNotFound(tokens.status())) tokens = std::vector<std::string>();
  if (!tokens.ok()) return tokens.status();
  if (!tokens->empty()) {
    LS_ASSIGN_OR_RETURN(token, ParseToken(tokens->front()));
  }
  LS_ASSIGN_OR_RETURN(const auto before, ReadServerCertificate(folder));
  PrivateFiles files;
  LS_ASSIGN_OR_RETURN(Certified authority,
                      ReadOrMakeAuthority(folder, token, now, files, result.new_cluster));
  std::string trusted;
  std::optional<Certified> next;
  if (!result.new_cluster) {
    LS_ASSIGN_OR_RETURN(next, ReadNextAuthority(folder));
  }
  LS_RETURN_IF_ERROR(Rotate(options.rotation, now, authority, trusted, next));
  result.rotating = next.has_value();
  for (const std::string& host : options.hosts) LS_RETURN_IF_ERROR(CheckHost(host));
  result.names = options.hosts;
  if (result.names.empty() && before.has_value()) {
    LS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(before->certificate));
    result.names = facts.names;
  }
  if (result.names.empty()) result.names = OwnNames();
  for (const char* name : kLoopback) AddOnce(name, result.names);
  LS_ASSIGN_OR_RETURN(const Certified server,
                      IssueServer(authority, result.names, now, kServerValidity));
  LS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(server.certificate));
  result.ends = facts.ends;
  LS_RETURN_IF_ERROR(AddCertified(ServerFile(folder), "certificate's file", server, files));
  LS_ASSIGN_OR_RETURN(const Callers callers,
                      RenewCallers(folder, options.rotation, now, files, result.new_callers));
  LS_RETURN_IF_ERROR(AddTokens(result.token_file, *tokens, trusted, callers.newest,
                               options.new_token, now, files));
  // By the next authority's file a rotation is known as under way: it comes last and goes last, so
  // that a step of it that was cut short is taken again as a whole.
  if (options.rotation == InitOptions::Rotation::kBegin) {
    LS_RETURN_IF_ERROR(
        AddCertified(NextAuthorityFile(folder), "next authority's file", *next, files));
  }
  if (result.new_cluster) LS_RETURN_IF_ERROR(ForgetNextAuthority(folder));
  LS_RETURN_IF_ERROR(files.PutInPlace());
  if (options.rotation == InitOptions::Rotation::kFinish) {
    LS_RETURN_IF_ERROR(ReplaceAuthority(folder));
  }
  return result;
}

std::string ServerFile(const std::string& folder) { return absl::StrCat(folder, "/server.pem"); }
std::string CallersFile(const std::string& folder) { return absl::StrCat(folder, "/callers.pem"); }

absl::StatusOr<std::optional<Callers>> ReadCallers(const std::string& folder) {
  const std::string file = CallersFile(folder);
  absl::StatusOr<std::string> text = ReadPrivateFile(file, "callers' authority's file");
  if (absl::IsNotFound(text.status())) return std::optional<Callers>();
  if (!text.ok()) return text.status();
  Callers callers;
  absl::StatusOr<Certified> newest = ReadCertified(*text);
  LS_RETURN_IF_ERROR(Annotate(newest.status(), file));
  callers.newest = *std::move(newest);
  const absl::StatusOr<std::vector<std::string>> all = CertificatesIn(*text);
  LS_RETURN_IF_ERROR(Annotate(all.status(), file));
  callers.all = absl::StrJoin(*all, "");
  return std::make_optional(std::move(callers));
}

absl::StatusOr<std::optional<Certified>> ReadServerCertificate(const std::string& folder) {
  return ReadPair(ServerFile(folder), "certificate's file");
}

}  // namespace lockstep::coordinator
