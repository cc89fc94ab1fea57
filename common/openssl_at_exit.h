// SPDX-License-Identifier: Apache-2.0
// What OpenSSL does at the end of a process. Thread-safety: called once, first in main().
#ifndef LOCKSTEP_COMMON_OPENSSL_AT_EXIT_H_
#define LOCKSTEP_COMMON_OPENSSL_AT_EXIT_H_

namespace lockstep {

// OpenSSL frees all that it has when the process calls exit(). gRPC's threads may still be in the
// middle of a handshake then, or of taking a connection down, and crash: a program whose work was
// done would end by SIGSEGV, once in some hundred times. After this call the kernel takes the
// memory back instead. To be called before anything else uses OpenSSL.
void KeepOpenSslUntilTheEnd();

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_OPENSSL_AT_EXIT_H_
