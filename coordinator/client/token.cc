// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/token.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/hmac.h"
#include "common/status.h"
#include "coordinator/client/private_file.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::string_view kPrefix = "lockstep2.";
constexpr absl::string_view kFormerPrefix = "lockstep1.";
constexpr absl::string_view kHashLabel = "lockstep token";  // as core/tokens.cc
constexpr size_t kMaxToken = 4096;
// Of a secret that hosts share; what they derive from it can be tried out by whoever connects.
constexpr size_t kMinShared = 16;
constexpr size_t kKeyBytes = 32;
constexpr uint64_t kScryptN = 1 << 15, kScryptR = 8, kScryptP = 1;
constexpr uint64_t kScryptMemory = uint64_t{64} << 20;
constexpr absl::string_view kScryptSalt = "lockstep run over several hosts";

// Takes what follows the last dot off `rest`. The secret of a worker's life has dots, too.
bool CutLast(absl::string_view& rest, std::string& bytes) {
  const size_t dot = rest.rfind('.');
  if (dot == rest.npos || !absl::WebSafeBase64Unescape(rest.substr(dot + 1), &bytes)) return false;
  rest = rest.substr(0, dot);
  return true;
}

}  // namespace

TokenPlaces PlacesOf(absl::string_view token) {
  TokenPlaces places;
  absl::string_view rest = token;
  const bool former = absl::ConsumePrefix(&rest, kFormerPrefix);
  if (former || absl::ConsumePrefix(&rest, kPrefix)) {
    const size_t last = rest.rfind('.');
    const size_t dot = former || last == rest.npos || last == 0 ? last : rest.rfind('.', last - 1);
    places.secret = rest.substr(0, dot);
    places.rest = rest.substr(places.secret.size());
    places.kind = token.substr(0, token.size() - rest.size());
  } else {
    places.secret = token;
  }
  return places;
}

std::string WithSecret(absl::string_view token, absl::string_view secret) {
  const TokenPlaces places = PlacesOf(token);
  return absl::StrCat(places.kind, secret, places.rest);
}

absl::StatusOr<std::string> CheckToken(absl::string_view text, absl::string_view where) {
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.size() > kMaxToken || !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the token in ", where, " is not one line of plain letters, digits and signs"));
  }
  LS_RETURN_IF_ERROR(Annotate(ParseToken(token).status(), absl::StrCat("the token in ", where)));
  return std::string(token);
}

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile(file, "token file"));
  LS_ASSIGN_OR_RETURN(
      std::string token,
      CheckToken(absl::string_view(text).substr(0, text.find('\n')), absl::StrCat("'", file, "'")));
  if (token.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("there is no token in '", file, "'"));
  }
  return token;
}

absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& file) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile(file, "token file"));
  std::vector<std::string> tokens;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    LS_ASSIGN_OR_RETURN(std::string token, CheckToken(line, absl::StrCat("'", file, "'")));
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  if (!tokens.empty()) return tokens;
  return absl::FailedPreconditionError(absl::StrCat("there is no token in '", file, "'"));
}

std::string NameOfToken(absl::string_view secret) {
  return absl::BytesToHexString(HmacSha256(std::string_view(kHashLabel.data(), kHashLabel.size()),
                                           std::string_view(secret.data(), secret.size())));
}

absl::StatusOr<Token> ParseToken(absl::string_view token) {
  absl::string_view rest = token;
  const bool former = absl::ConsumePrefix(&rest, kFormerPrefix);
  if (!former && !absl::ConsumePrefix(&rest, kPrefix)) {
    Token plain;
    plain.secret = std::string(token);
    return plain;
  }
  Token parts;
  std::string der;
  bool whole = true;
  if (!former) {
    whole = CutLast(rest, der);
    absl::StatusOr<Certified> client = CertifiedOf(der);
    whole = whole && client.ok();
    if (whole) parts.client = *std::move(client);
  }
  whole = whole && CutLast(rest, der);
  absl::StatusOr<std::string> authority = whole ? PemOf(der) : std::string();
  if (!whole || !authority.ok() || rest.empty()) {
    return absl::FailedPreconditionError(
        "it is damaged or cut short: copy the whole file from the coordinator's host");
  }
  parts.authority = *std::move(authority);
  parts.secret = std::string(rest);
  return parts;
}

absl::StatusOr<std::string> TokenOf(const Token& parts) {
  if (parts.authority.empty()) return parts.secret;
  LS_ASSIGN_OR_RETURN(const std::string der, DerOf(parts.authority));
  const std::string authority = absl::WebSafeBase64Escape(der);
  if (parts.client.certificate.empty()) {
    return absl::StrCat(kFormerPrefix, parts.secret, ".", authority);
  }
  LS_ASSIGN_OR_RETURN(const std::string client, DerOfCertified(parts.client));
  return absl::StrCat(kPrefix, parts.secret, ".", authority, ".",
                      absl::WebSafeBase64Escape(client));
}

absl::StatusOr<std::string> HashOfAuthorities(absl::string_view authorities) {
  std::string der;
  if (!authorities.empty()) {
    LS_ASSIGN_OR_RETURN(der, DerOf(authorities));
  }
  return HmacSha256("lockstep authorities", der);
}

absl::StatusOr<RunCredentials> CredentialsOfRun(const std::string& shared) {
  if (shared.size() < kMinShared) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the token that the hosts of a run share has ", shared.size(), " characters and needs ",
        kMinShared, ": make one with `openssl rand -hex 32`"));
  }
  std::string bytes(2 * kKeyBytes, '\0');
  if (EVP_PBE_scrypt(shared.data(), shared.size(),
                     reinterpret_cast<const unsigned char*>(kScryptSalt.data()), kScryptSalt.size(),
                     kScryptN, kScryptR, kScryptP, kScryptMemory,
                     reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()) != 1) {
    return absl::ResourceExhaustedError("no memory to make keys out of the run's token");
  }
  RunCredentials credentials;
  LS_ASSIGN_OR_RETURN(credentials.authority, AuthorityOf(bytes.substr(0, kKeyBytes)));
  Token token;
  token.secret = absl::BytesToHexString(bytes.substr(kKeyBytes));
  token.authority = credentials.authority.certificate;
  // Who can make the authority's key makes a certificate of it; it is valid as long as that.
  LS_ASSIGN_OR_RETURN(token.client, IssueClient(credentials.authority, NameOfToken(token.secret),
                                                absl::InfinitePast(), absl::InfiniteFuture()));
  LS_ASSIGN_OR_RETURN(credentials.token, TokenOf(token));
  return credentials;
}

}  // namespace lockstep::coordinator
