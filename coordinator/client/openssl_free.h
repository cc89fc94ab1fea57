// SPDX-License-Identifier: Apache-2.0
// Frees what OpenSSL made, each kind with its own function:
//   using Cert = std::unique_ptr<X509, Free<X509_free>>;
// Thread-safety: stateless.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_OPENSSL_FREE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_OPENSSL_FREE_H_

namespace lockstep::coordinator {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_OPENSSL_FREE_H_
