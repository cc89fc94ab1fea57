// SPDX-License-Identifier: Apache-2.0
// The one way in which channels to a coordinator are made.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_CHANNEL_H_
#define LOCKSTEP_COORDINATOR_CLIENT_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>

#include "absl/time/time.h"
#include "coordinator/client/client.h"

namespace lockstep::coordinator {

// Either side of a connection with a call asks the other for a sign of life when it has heard
// nothing for so long (the default failure_detection of a job), and gives the connection up when it
// has waited as long again. Agents and workers send heartbeats once a second and more often, so
// that in truth only a coordinator's host that vanished, or their own, is found out by this.
inline constexpr absl::Duration kSilence = absl::Seconds(5);

// The largest message that is taken of a coordinator.
inline constexpr int kMaxReceivedBytes = 64 << 20;

// A channel of its own (no shared subchannels), with a reconnect backoff of 20 to 500 ms. TLS,
// where the token asks for it. `one_of_several`: there are other coordinators to turn to, so that
// one whose host has vanished is given up sooner. REQUIRES: one address; the token is one that
// ParseToken takes.
std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options,
                                           bool one_of_several = false);

// Adds what a call shows: the token's secret.
void ShowToken(const ClientOptions& options, grpc::ClientContext* context);

// Ends a call after `timeout`. gRPC takes the wall clock's time and turns it into the monotonic
// clock's at once, so that no later change of the wall clock matters.
void SetDeadline(absl::Duration timeout, grpc::ClientContext* context);

// A deliberately uneven wait before try number `attempt` (from 0): 20 ms doubling to 500 ms, x 0.5
// to 1.
int BackoffMillis(int attempt);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_CHANNEL_H_
