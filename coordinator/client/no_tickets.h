// SPDX-License-Identifier: Apache-2.0
// A setting of OpenSSL's for servers, which gRPC does not offer.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_NO_TICKETS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_NO_TICKETS_H_

namespace lockstep::coordinator {

// From the first call on, servers of this process give no tickets by which a caller would come back
// without showing a certificate. Nobody uses them here: a process connects once and stays
// connected, and what they are encrypted with ends with the coordinator. To make two of them takes
// OpenSSL more than a quarter of a handshake, and each handshake is looked at whole. gRPC has no
// word for it, OpenSSL's configuration has; what that says otherwise, the host's own included,
// stays as it is. Where OpenSSL cannot be told, all is as before.
void GiveNoTickets();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_NO_TICKETS_H_
