// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/certificates.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/client/openssl_free.h"

namespace lockstep::coordinator {
namespace {

constexpr int kSerialBytes = 16;
constexpr absl::Duration kAuthorityLasts = absl::Hours(24 * 365 * 20);
constexpr absl::Duration kExpiresSoon = absl::Hours(24 * 30);
constexpr size_t kSeedBytes = 32;
constexpr size_t kMaxName = 253;       // of DNS
constexpr size_t kMaxCommonName = 64;  // of X.509

using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Time = std::unique_ptr<ASN1_TIME, Free<ASN1_TIME_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

absl::Status Failed(absl::string_view what) {
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what));
}

Bio Reader(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(std::max(size, 0L)));
}

absl::StatusOr<Cert> ParseCertificate(absl::string_view pem) {
  Cert cert(PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
  if (cert == nullptr) return absl::DataLossError("there is no whole certificate in it");
  return cert;
}

absl::StatusOr<Key> ParseKey(absl::string_view pem) {
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return absl::DataLossError("there is no whole key in it");
  return key;
}

absl::StatusOr<Certified> ToPem(X509* cert, EVP_PKEY* key) {
  const Bio cert_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(cert_text.get(), cert) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write a certificate");
  }
  return Certified{TextOf(cert_text.get()), TextOf(key_text.get())};
}

bool SetTimes(X509* cert, absl::Time begins, absl::Time ends) {
  const Time from(ASN1_TIME_set(nullptr, absl::ToTimeT(begins)));
  const Time until(ASN1_TIME_set(nullptr, absl::ToTimeT(ends)));
  return from != nullptr && until != nullptr && X509_set1_notBefore(cert, from.get()) == 1 &&
         X509_set1_notAfter(cert, until.get()) == 1;
}

bool SetSerial(X509* cert, absl::string_view bytes) {
  std::string positive(bytes);
  positive[0] = static_cast<char>((positive[0] & 0x3f) | 0x40);
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(
      BN_bin2bn(reinterpret_cast<const unsigned char*>(positive.data()),
                static_cast<int>(positive.size()), nullptr));
  return number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(cert)) != nullptr;
}

bool AddExtension(X509* cert, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  return extension != nullptr && X509_add_ext(cert, extension.get(), -1) == 1;
}

bool SetCommonName(X509_NAME* name, const std::string& text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

// Ed25519 has its digest in itself.
const EVP_MD* DigestFor(EVP_PKEY* key) {
  return EVP_PKEY_is_a(key, "ED25519") == 1 ? nullptr : EVP_sha256();
}

// A certificate of `key` with what all have; the caller adds extensions and signs.
absl::StatusOr<Cert> NewCertificate(EVP_PKEY* key, const std::string& name,
                                    absl::string_view serial, absl::Time begins, absl::Time ends) {
  Cert cert(X509_new());
  if (cert == nullptr || X509_set_version(cert.get(), X509_VERSION_3) != 1 ||
      !SetSerial(cert.get(), serial) || !SetTimes(cert.get(), begins, ends) ||
      X509_set_pubkey(cert.get(), key) != 1 ||
      !SetCommonName(X509_get_subject_name(cert.get()), name)) {
    return Failed("make a certificate");
  }
  return cert;
}

absl::StatusOr<Certified> SelfSigned(EVP_PKEY* key, const std::string& name,
                                     absl::string_view serial, absl::Time begins, absl::Time ends) {
  LS_ASSIGN_OR_RETURN(const Cert cert, NewCertificate(key, name, serial, begins, ends));
  X509* const raw = cert.get();
  if (X509_set_issuer_name(raw, X509_get_subject_name(raw)) != 1 ||
      !AddExtension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(raw, raw, NID_subject_key_identifier, "hash") ||
      X509_sign(raw, key, DigestFor(key)) == 0) {
    return Failed("make an authority");
  }
  return ToPem(raw, key);
}

// Signs a certificate that is no authority's, with what all of them have.
bool SignLeaf(X509* cert, X509* issuer, EVP_PKEY* issuer_key, const char* usage) {
  return X509_set_issuer_name(cert, X509_get_subject_name(issuer)) == 1 &&
         AddExtension(cert, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
         AddExtension(cert, issuer, NID_key_usage, "critical,digitalSignature") &&
         AddExtension(cert, issuer, NID_ext_key_usage, usage) &&
         AddExtension(cert, issuer, NID_subject_key_identifier, "hash") &&
         AddExtension(cert, issuer, NID_authority_key_identifier, "keyid:always") &&
         X509_sign(cert, issuer_key, DigestFor(issuer_key)) != 0;
}

std::string RandomSerial() {
  std::string bytes(kSerialBytes, '\0');
  LS_CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), kSerialBytes), 1);
  return bytes;
}

bool AddName(GENERAL_NAMES* names, const std::string& text) {
  std::unique_ptr<GENERAL_NAME, Free<GENERAL_NAME_free>> name(GENERAL_NAME_new());
  if (name == nullptr) return false;
  if (ASN1_OCTET_STRING* const address = a2i_IPADDRESS(text.c_str()); address != nullptr) {
    GENERAL_NAME_set0_value(name.get(), GEN_IPADD, address);
  } else {
    ASN1_IA5STRING* const dns = ASN1_IA5STRING_new();
    if (dns == nullptr) return false;
    GENERAL_NAME_set0_value(name.get(), GEN_DNS, dns);
    if (ASN1_STRING_set(dns, text.data(), static_cast<int>(text.size())) != 1) return false;
  }
  if (sk_GENERAL_NAME_push(names, name.get()) <= 0) return false;
  static_cast<void>(name.release());
  return true;
}

absl::Status CheckName(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == ':' ||
           c == '_';
  });
  if (plain && !name.empty() && name.size() <= kMaxName) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is neither a host's name nor a numeric address"));
}

absl::Time ToTime(const ASN1_TIME* time) {
  tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(::timegm(&parts));
}

std::string NameText(const GENERAL_NAME* name) {
  int type = 0;
  const void* const any = GENERAL_NAME_get0_value(name, &type);
  if (type != GEN_DNS && type != GEN_IPADD) return "";
  const auto* const value = static_cast<const ASN1_STRING*>(any);
  const unsigned char* const data = ASN1_STRING_get0_data(value);
  const int size = ASN1_STRING_length(value);
  if (type == GEN_DNS) return std::string(reinterpret_cast<const char*>(data), size);
  char text[INET6_ADDRSTRLEN] = "";
  if (size == 4 || size == 16) {
    ::inet_ntop(size == 4 ? AF_INET : AF_INET6, data, text, sizeof(text));
  }
  return text;
}

}  // namespace

absl::StatusOr<Certified> MakeAuthority(absl::Time now, absl::string_view of) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  return SelfSigned(key.get(), absl::StrCat("Lockstep ", of, " ", RandomHex(4)), RandomSerial(),
                    now - kClocksDiffer, now + kAuthorityLasts);
}

absl::StatusOr<Certified> AuthorityOf(absl::string_view seed) {
  LS_CHECK_EQ(seed.size(), kSeedBytes);
  const Key key(EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
  if (key == nullptr) return Failed("make a key");
  // Everything else is fixed, so that all make the same.
  return SelfSigned(key.get(), "Lockstep run", std::string(kSerialBytes, '\1'),
                    absl::FromUnixSeconds(0), absl::FromUnixSeconds(int64_t{1} << 32));
}

absl::StatusOr<Certified> IssueServer(const Certified& authority,
                                      const std::vector<std::string>& names, absl::Time now,
                                      absl::Duration validity) {
  for (const std::string& name : names) LS_RETURN_IF_ERROR(CheckName(name));
  LS_ASSIGN_OR_RETURN(const Cert issuer, ParseCertificate(authority.certificate));
  LS_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key));
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  LS_ASSIGN_OR_RETURN(const Cert cert,
                      NewCertificate(key.get(), "Lockstep coordinator", RandomSerial(),
                                     now - kClocksDiffer, now + validity));
  const Names alternatives(GENERAL_NAMES_new());
  for (const std::string& name : names) {
    if (!AddName(alternatives.get(), name)) return Failed("take a name");
  }
  if (X509_add1_ext_i2d(cert.get(), NID_subject_alt_name, alternatives.get(), 0,
                        X509V3_ADD_DEFAULT) != 1 ||
      !SignLeaf(cert.get(), issuer.get(), issuer_key.get(), "serverAuth")) {
    return Failed("issue a certificate");
  }
  return ToPem(cert.get(), key.get());
}

absl::StatusOr<Certified> IssueClient(const Certified& authority, const std::string& name,
                                      absl::Time begins, absl::Time ends) {
  LS_ASSIGN_OR_RETURN(const Cert issuer, ParseCertificate(authority.certificate));
  LS_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key));
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  begins = std::max(begins, ToTime(X509_get0_notBefore(issuer.get())));
  ends = std::min(ends, ToTime(X509_get0_notAfter(issuer.get())));
  LS_ASSIGN_OR_RETURN(const Cert cert,
                      NewCertificate(key.get(), name, RandomSerial(), begins, ends));
  if (!SignLeaf(cert.get(), issuer.get(), issuer_key.get(), "clientAuth")) {
    return Failed("issue a certificate");
  }
  return ToPem(cert.get(), key.get());
}

absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view certificate) {
  LS_ASSIGN_OR_RETURN(const Cert cert, ParseCertificate(certificate));
  CertificateFacts facts;
  char name[kMaxCommonName + 1] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(cert.get()), NID_commonName, name, sizeof(name));
  facts.name = name;
  facts.begins = ToTime(X509_get0_notBefore(cert.get()));
  facts.ends = ToTime(X509_get0_notAfter(cert.get()));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(cert.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    facts.names.push_back(NameText(sk_GENERAL_NAME_value(names.get(), i)));
  }
  return facts;
}

absl::StatusOr<Certified> ReadCertified(absl::string_view text) {
  LS_ASSIGN_OR_RETURN(const Cert cert, ParseCertificate(text));
  LS_ASSIGN_OR_RETURN(const Key key, ParseKey(text));
  if (X509_check_private_key(cert.get(), key.get()) != 1) {
    return absl::FailedPreconditionError("the certificate is of another key");
  }
  return ToPem(cert.get(), key.get());
}

absl::StatusOr<std::vector<std::string>> CertificatesIn(absl::string_view text) {
  const Bio reader = Reader(text);
  std::vector<std::string> all;
  while (const Cert cert{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    const Bio pem(BIO_new(BIO_s_mem()));
    if (PEM_write_bio_X509(pem.get(), cert.get()) != 1) return Failed("write a certificate");
    all.push_back(TextOf(pem.get()));
  }
  const unsigned long why = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(why) == ERR_LIB_PEM && ERR_GET_REASON(why) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (all.empty() || !at_end) {
    return absl::DataLossError("there is no whole certificate in it");
  }
  return all;
}

absl::Status CheckIssued(absl::string_view certificate, absl::string_view authorities) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> issuers, CertificatesIn(authorities));
  LS_ASSIGN_OR_RETURN(const Cert cert, ParseCertificate(certificate));
  for (const std::string& pem : issuers) {
    LS_ASSIGN_OR_RETURN(const Cert issuer, ParseCertificate(pem));
    if (X509_check_issued(issuer.get(), cert.get()) == X509_V_OK &&
        X509_verify(cert.get(), X509_get0_pubkey(issuer.get())) == 1) {
      return absl::OkStatus();
    }
  }
  ERR_clear_error();
  return absl::FailedPreconditionError("the certificate is of another authority");
}

std::string Day(absl::Time time) { return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone()); }

std::string ExpiryWarning(absl::Time ends, absl::Time now) {
  const absl::Duration left = ends - now;
  if (left > kExpiresSoon) return "";
  const std::string day = Day(ends);
  const std::string advice =
      ": run `coordinator init` again with its --state-dir, which keeps the token";
  if (left <= absl::ZeroDuration()) {
    return absl::StrCat("the coordinator's certificate expired on ", day, advice);
  }
  return absl::StrCat("the coordinator's certificate expires in ", absl::ToInt64Hours(left) / 24,
                      " days, on ", day, advice);
}

bool EndsSoon(const CertificateFacts& facts, absl::Time now) {
  const absl::Duration left = facts.ends - now;
  return left <= kExpiresSoon && left <= (facts.ends - facts.begins) / 3;
}

std::string AdmissionWarning(const CertificateFacts& shown, absl::Time now) {
  if (!EndsSoon(shown, now)) return "";
  const std::string day = absl::FormatTime("%Y-%m-%d %H:%M UTC", shown.ends, absl::UTCTimeZone());
  return absl::StrCat("the token that is shown here ", shown.ends <= now ? "expired" : "expires",
                      " on ", day,
                      ": ask an administrator for another one (`launcher token create`)");
}

absl::StatusOr<std::string> DerOf(absl::string_view certificates) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> all, CertificatesIn(certificates));
  std::string der;
  for (const std::string& pem : all) {
    LS_ASSIGN_OR_RETURN(const Cert cert, ParseCertificate(pem));
    unsigned char* bytes = nullptr;
    const int size = i2d_X509(cert.get(), &bytes);
    if (size <= 0) return Failed("write a certificate");
    der.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    OPENSSL_free(bytes);
  }
  return der;
}

absl::StatusOr<std::string> PemOf(absl::string_view der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  const unsigned char* const end = bytes + der.size();
  const Bio text(BIO_new(BIO_s_mem()));
  do {
    const Cert cert(d2i_X509(nullptr, &bytes, static_cast<long>(end - bytes)));
    if (cert == nullptr) return absl::DataLossError("it is no whole certificate");
    if (PEM_write_bio_X509(text.get(), cert.get()) != 1) return Failed("write a certificate");
  } while (bytes != end);
  return TextOf(text.get());
}

absl::StatusOr<std::string> DerOfCertified(const Certified& certified) {
  LS_ASSIGN_OR_RETURN(std::string der, DerOf(certified.certificate));
  LS_ASSIGN_OR_RETURN(const Key key, ParseKey(certified.key));
  unsigned char* bytes = nullptr;
  const int size = i2d_PrivateKey(key.get(), &bytes);
  if (size <= 0) return Failed("write a key");
  der.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  OPENSSL_clear_free(bytes, static_cast<size_t>(size));
  return der;
}

absl::StatusOr<Certified> CertifiedOf(absl::string_view der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  const unsigned char* const end = bytes + der.size();
  const Cert cert(d2i_X509(nullptr, &bytes, static_cast<long>(end - bytes)));
  const Key key(cert == nullptr
                    ? nullptr
                    : d2i_AutoPrivateKey(nullptr, &bytes, static_cast<long>(end - bytes)));
  if (key == nullptr || bytes != end || X509_check_private_key(cert.get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::DataLossError("it is no whole certificate with its key");
  }
  return ToPem(cert.get(), key.get());
}

}  // namespace lockstep::coordinator
