// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <random>

#include "coordinator/client/quiet.h"

namespace lockstep::coordinator {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // gRPC's name for the least that one attempt to connect gets; what it waits between two attempts
  // is not meant. A way of 200 ms takes half a second, and a lost packet is sent again after a
  // second.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const int silence = static_cast<int>(absl::ToInt64Milliseconds(kSilence));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence);
  // Commands are rare, and pings need not wait for them.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nothing outside decides how a coordinator is reached: no proxy, no service config from DNS.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 64 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

int BackoffMillis(int attempt) {
  thread_local std::minstd_rand random(std::random_device{}());
  const int full = std::min(500, 20 << std::min(attempt, 5));
  return full / 2 + static_cast<int>(random() % (full / 2 + 1));
}

}  // namespace lockstep::coordinator
