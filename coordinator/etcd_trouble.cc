// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd_trouble.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/knock.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kMoment = absl::Milliseconds(500);

// Returns what is wrong with its certificate; empty: nothing.
std::string OfItsCertificate(const EtcdOptions& options, const Knock& knock,
                             const std::string& endpoint) {
  const CertificateFacts facts =
      ReadCertificate(knock.PeersCertificate()).value_or(CertificateFacts());
  const std::string its = absl::StrCat("the certificate of etcd at ", endpoint);
  switch (knock.verdict()) {
    case Knock::Verdict::kGood:
      return "";
    case Knock::Verdict::kExpired:
      return absl::StrCat(its, " expired on ", Day(facts.ends));
    case Knock::Verdict::kOfTheFuture:
      return absl::StrCat(its, " is valid from ", Day(facts.begins),
                          " on: look at the clocks of both hosts");
    case Knock::Verdict::kOfAnotherName:
      return absl::StrCat(its, " is for ", absl::StrJoin(facts.names, ", "), ", not for ",
                          HostOf(endpoint), ": name one of these in --store");
    case Knock::Verdict::kOfAnotherAuthority:
      return absl::StrCat(its, options.authority.empty()
                                   ? " is of no authority that this host trusts: give the file of "
                                     "its authority (--store-ca)"
                                   : " is not of the authority in --store-ca");
  }
  return "";
}

}  // namespace

std::string ExplainEtcd(const EtcdOptions& options, const std::string& endpoint) {
  Knock knock(endpoint, {options.authority, {options.certificate, options.key}, true},
              Clock::Real()->Now() + kMoment);
  const Knock::End end = knock.Run();
  if (!options.tls) {
    if (end != Knock::End::kThrough) return "";
    return absl::StrCat("etcd at ", endpoint,
                        " speaks TLS alone: write --store etcds://... for etcd://...");
  }
  if (end == Knock::End::kNoTls || (end == Knock::End::kUnknown && knock.was_closed())) {
    return absl::StrCat("what listens at ", endpoint,
                        " does not speak TLS: write --store etcd://... for etcds://..., or give "
                        "etcd a certificate (its --cert-file and --key-file)");
  }
  if (end != Knock::End::kThrough) return "";
  std::string why = OfItsCertificate(options, knock, endpoint);
  if (!why.empty() || !knock.asked() || !knock.TurnsAway()) return why;
  return absl::StrCat("etcd at ", endpoint, " lets in who shows a certificate of its authority, ",
                      options.certificate.empty()
                          ? "and none was given (--store-cert and --store-key)"
                          : "and does not take that in --store-cert (of another authority than "
                            "etcd's --trusted-ca-file, not for clients, or expired)");
}

}  // namespace lockstep::coordinator
