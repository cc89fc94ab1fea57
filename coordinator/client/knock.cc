// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/knock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/fd.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/openssl_free.h"

namespace lockstep::coordinator {
namespace {

using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Free<SSL_free>>;
using Cert = std::unique_ptr<X509, Free<X509_free>>;
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;

struct Place {
  std::string host, port;
};

std::optional<Place> PlaceOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (!IsTcpAddress(address) || colon == std::string::npos) return std::nullopt;
  return Place{HostOf(address), address.substr(colon + 1)};
}

// Waits for `events` on `fd`. Whether they came.
bool Await(int fd, short events, absl::Time deadline) {
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - Clock::Real()->Now());
    if (left <= 0) return false;
    pollfd one = {fd, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// A connection to one of the place's addresses; invalid: there is none.
UniqueFd Dial(const Place& place, absl::Time deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, Free<freeaddrinfo>> owned(list);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) continue;
    if (::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
    if (errno != EINPROGRESS || !Await(fd.get(), POLLOUT, deadline)) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return fd;
  }
  return {};
}

}  // namespace

// One handshake over memory, so that no write to a closed connection is a signal.
class Knock::Handshake {
 public:
  Handshake(int fd, absl::Time deadline) : fd_(fd), deadline_(deadline) {}

  bool Prepare(const Knock::Papers& papers, const std::string& host);
  End Run();
  // After Run: whether the other side wants to see a certificate, and whether it closed the
  // connection when it had seen what there is. Blocks until it speaks or closes.
  bool AsksForCertificate() const { return asks_; }
  bool TurnsAway();
  bool WasClosed() const { return closed_; }
  SSL* ssl() const { return ssl_.get(); }

 private:
  // Sends what OpenSSL has to say.
  bool Flush();
  // Takes what came. Whether anything did.
  bool Take();
  static int OnAsked(SSL* ssl, X509** cert, EVP_PKEY** key);

  const int fd_;
  const absl::Time deadline_;
  bool asks_ = false;
  bool closed_ = false;  // by the other side
  Certified shown_;
  Context context_;
  Ssl ssl_;
  BIO* in_ = nullptr;  // the connection's
  BIO* out_ = nullptr;
};

// Certificates come from here, so that it is known that they were asked for.
int Knock::Handshake::OnAsked(SSL* ssl, X509** cert, EVP_PKEY** key) {
  auto* const self = static_cast<Handshake*>(SSL_get_app_data(ssl));
  self->asks_ = true;
  if (self->shown_.certificate.empty()) return 0;
  const Bio cert_text(BIO_new_mem_buf(self->shown_.certificate.data(), -1));
  const Bio key_text(BIO_new_mem_buf(self->shown_.key.data(), -1));
  *cert = PEM_read_bio_X509(cert_text.get(), nullptr, nullptr, nullptr);
  *key = PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr);
  return *cert != nullptr && *key != nullptr ? 1 : 0;
}

bool Knock::Handshake::Prepare(const Knock::Papers& papers, const std::string& host) {
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (context_ == nullptr) return false;
  shown_ = papers.shown;
  SSL_CTX_set_client_cert_cb(context_.get(), OnAsked);
  // It is looked at when the handshake is through.
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
  const std::string& authorities = papers.authorities;
  if (papers.or_the_hosts && authorities.empty()) {
    SSL_CTX_set_default_verify_paths(context_.get());
  }
  const Bio text(BIO_new_mem_buf(authorities.data(), static_cast<int>(authorities.size())));
  while (const Cert cert{PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr)}) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), cert.get()) != 1) return false;
  }
  ERR_clear_error();
  ssl_.reset(SSL_new(context_.get()));
  in_ = BIO_new(BIO_s_mem());
  out_ = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || in_ == nullptr || out_ == nullptr) return false;
  SSL_set_bio(ssl_.get(), in_, out_);
  SSL_set_app_data(ssl_.get(), this);
  constexpr unsigned char kProtocols[] = {2, 'h', '2'};  // without it gRPC hangs up
  if (SSL_set_alpn_protos(ssl_.get(), kProtocols, sizeof(kProtocols)) != 0) return false;
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size());
    SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
  }
  SSL_set_connect_state(ssl_.get());
  return true;
}

bool Knock::Handshake::Flush() {
  char bytes[4096];
  for (int n; (n = BIO_read(out_, bytes, sizeof(bytes))) > 0;) {
    for (int sent = 0; sent < n;) {
      const ssize_t now = ::send(fd_, bytes + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
      if (now > 0) sent += static_cast<int>(now);
      if (now < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (now < 0 && !Await(fd_, POLLOUT, deadline_)) return false;
    }
  }
  return true;
}

bool Knock::Handshake::Take() {
  if (!Await(fd_, POLLIN, deadline_)) return false;
  char bytes[4096];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  closed_ = n <= 0;
  return n > 0 && BIO_write(in_, bytes, static_cast<int>(n)) == n;
}

Knock::End Knock::Handshake::Run() {
  for (;;) {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_.get());
    const int error = SSL_get_error(ssl_.get(), done);
    const bool sent = Flush();
    if (done == 1) return End::kThrough;
    if (error == SSL_ERROR_SSL) {
      // An alert is TLS, too; anything else is not what a server says.
      return ERR_GET_REASON(ERR_peek_last_error()) >= SSL_AD_REASON_OFFSET ? End::kUnknown
                                                                           : End::kNoTls;
    }
    if (error != SSL_ERROR_WANT_READ || !sent || !Take()) return End::kUnknown;
  }
}

bool Knock::Handshake::TurnsAway() {
  for (;;) {
    ERR_clear_error();
    char byte;
    const int got = SSL_peek(ssl_.get(), &byte, 1);
    if (got > 0) return false;  // HTTP/2's settings
    const int error = SSL_get_error(ssl_.get(), got);
    if (closed_ || (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_NONE)) return true;
    if (!Take()) return closed_;
  }
}

class Knock::Connection {
 public:
  Connection(const std::string& address, const Papers& papers, absl::Time deadline) {
    const std::optional<Place> place = PlaceOf(address);
    if (place.has_value()) fd_ = Dial(*place, deadline);
    if (!fd_.valid()) return;
    handshake_.emplace(fd_.get(), deadline);
    if (!handshake_->Prepare(papers, place->host)) handshake_.reset();
  }
  Handshake* handshake() { return handshake_.has_value() ? &*handshake_ : nullptr; }

 private:
  UniqueFd fd_;
  std::optional<Handshake> handshake_;
};

Knock::Knock(const std::string& address, const Papers& papers, absl::Time deadline)
    : connection_(std::make_unique<Connection>(address, papers, deadline)) {}

Knock::~Knock() = default;

Knock::End Knock::Run() {
  Handshake* const handshake = connection_->handshake();
  return handshake == nullptr ? End::kUnknown : handshake->Run();
}

bool Knock::asked() const {
  Handshake* const handshake = connection_->handshake();
  return handshake != nullptr && handshake->AsksForCertificate();
}

bool Knock::TurnsAway() { return connection_->handshake()->TurnsAway(); }

bool Knock::was_closed() const {
  Handshake* const handshake = connection_->handshake();
  return handshake != nullptr && handshake->WasClosed();
}

Knock::Verdict Knock::verdict() const {
  switch (SSL_get_verify_result(connection_->handshake()->ssl())) {
    case X509_V_OK:
      return Verdict::kGood;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Verdict::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Verdict::kOfTheFuture;
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
    case X509_V_ERR_HOSTNAME_MISMATCH:
      return Verdict::kOfAnotherName;
    default:
      return Verdict::kOfAnotherAuthority;
  }
}

std::string Knock::PeersCertificate() const {
  const Cert peer(SSL_get1_peer_certificate(connection_->handshake()->ssl()));
  const Bio text(BIO_new(BIO_s_mem()));
  if (peer == nullptr || PEM_write_bio_X509(text.get(), peer.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace lockstep::coordinator
