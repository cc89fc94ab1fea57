// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "coordinator/client/no_tickets.h"
#include "coordinator/service/cluster_files.h"

namespace lockstep::coordinator {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kLookAgainSeconds = 2;

// Asked when OpenSSL has found the certificate to be valid and of a known authority, before a byte
// of HTTP/2 is read.
class OfGoodTokens : public tls::ExternalCertificateVerifier {
 public:
  OfGoodTokens(Admits admits, bool optional) : admits_(std::move(admits)), optional_(optional) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref name = request->common_name();
    const bool none = name.empty() && request->peer_cert().empty();
    if (none ? !optional_ : !admits_(absl::string_view(name.data(), name.size()))) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "its token is not taken any more");
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const Admits admits_;
  const bool optional_;
};

std::shared_ptr<tls::CertificateProviderInterface> ProviderOf(const ServerTls& from) {
  if (from.folder.empty()) {
    const std::vector<tls::IdentityKeyCertPair> own = {{from.server.key, from.server.certificate}};
    return std::make_shared<tls::StaticDataCertificateProvider>(from.callers, own);
  }
  const std::string server = ServerFile(from.folder);
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      server, server, CallersFile(from.folder), kLookAgainSeconds);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const std::optional<ServerTls>& from,
                                                        Admits admits) {
  if (!from.has_value()) return grpc::InsecureServerCredentials();
  GiveNoTickets();
  tls::TlsServerCredentialsOptions options(ProviderOf(*from));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(from->optional
                                    ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<OfGoodTokens>(std::move(admits), from->optional));
  return tls::TlsServerCredentials(options);
}

}  // namespace lockstep::coordinator
